"""bertopt finds out why a BERT service is slow, and fixes it in the order of cost."""

__version__ = "0.1.0"

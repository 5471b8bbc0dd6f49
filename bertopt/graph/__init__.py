"""The ONNX graph of a checkpoint and every rewrite of it."""

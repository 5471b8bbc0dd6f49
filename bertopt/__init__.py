"""bertopt finds out why a BERT service is slow, and fixes it in the order of cost."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {"load": "bertopt.bundle", "record_steps": "bertopt.steps"}  # the module is imported when its name is asked for


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

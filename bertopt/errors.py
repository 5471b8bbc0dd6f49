"""What a user can do wrong, each with one sentence.

The command line prints the sentence and exits with ``exit_code``; nothing here ever shows a traceback.
A sentence names the file, row, field, limit or value, and where there is one, the way out.
"""

from __future__ import annotations


class BertoptError(Exception):
    """Base of everything that bertopt raises on purpose."""

    exit_code = 2


class UsageError(BertoptError):
    """An option's value cannot be used: ``--bs 0``, an unknown rung, a folder that cannot be written."""


class DataError(BertoptError):
    """The requests cannot be read: no such file, a row without text, an encoding that is not UTF-8."""


class ModelError(BertoptError):
    """The checkpoint cannot be served: not a checkpoint, weights missing, a head that bertopt does not know."""


class GraphError(BertoptError):
    """A graph could not be exported or rewritten, or a rewrite did not happen."""


class PlanError(BertoptError):
    """A built plan does not fit what is asked of it; both values are named."""


class BackendUnavailable(BertoptError):
    """A library or device is missing; the sentence carries the command that brings it."""


class WorkerError(BertoptError):
    """A worker died or failed; the sentence carries its own error."""

    exit_code = 1


class Inconclusive(BertoptError):
    """There is too little evidence to decide."""

    exit_code = 3

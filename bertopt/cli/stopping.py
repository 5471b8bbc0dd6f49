"""How a run ends before its time: Ctrl-C, SIGTERM and a closed terminal."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from bertopt.outputs import discard_unfinished

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
GRACE_S = 0.8  # for what is under way to unwind


class Stopped(BaseException):
    """A signal ends the run. Not an Exception, nor KeyboardInterrupt: no library must take it for its own failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def stop_on_signals() -> None:
    """From now on a signal unwinds what is under way, so that nothing half-written is left, and ends it within a second.

    Python runs a handler when the main thread is back from whatever library it called. The thread started here sees the
    signal at once, and does not wait for a call that takes longer than GRACE_S.
    """

    def stop(number: int, frame: FrameType | None) -> Any:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # once is enough: unwinding must not be interrupted
        raise Stopped(number)

    seen, tells = os.pipe()
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells)
    threading.Thread(target=_insist, args=(seen,), daemon=True).start()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, stop)


def _insist(seen: int) -> None:
    number = os.read(seen, 1)[0]
    time.sleep(GRACE_S)
    discard_unfinished()
    os.write(2, b"\nbertopt: stopped\n")
    leave(128 + number)


def leave(code: int) -> NoReturn:
    """Leave at once: threads that are deep in a library's batch must not hold up the end, and no worker outlives it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads on
            stream.flush()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(code)

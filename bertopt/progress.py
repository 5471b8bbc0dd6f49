"""What a user sees while a run works: a bar with the rung and the time left, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any


def progress(quiet: bool = False) -> Bar | Lines:
    import sys

    return Bar() if sys.stderr.isatty() and not quiet else Lines(quiet)


class Lines:
    """A line a step on standard error."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._start = time.perf_counter()
        self._doing = ""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def stage(self, text: str) -> None:
        if not self._quiet:
            import sys

            print(f"[{time.perf_counter() - self._start:6.1f} s] {text}", file=sys.stderr, flush=True)

    def tick(self, seconds: float, text: str) -> None:
        """Work whose end nobody can tell: a line when what is being done changes."""
        if text != self._doing:
            self._doing = text
            self.stage(text)

    def total(self, seconds: float) -> None:
        return None

    def advance(self, seconds: float) -> None:
        return None


class Bar:
    """A rich progress bar; work is counted in estimated seconds, so the time left means something."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: Any = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        self._bar.update(self._task, description=f"{text:<34}")

    def tick(self, seconds: float, text: str) -> None:
        """Work whose end nobody can tell: the elapsed time runs on."""
        self.stage(text)

    def total(self, seconds: float) -> None:
        self._bar.reset(self._task, total=seconds)

    def advance(self, seconds: float) -> None:
        self._bar.advance(self._task, seconds)

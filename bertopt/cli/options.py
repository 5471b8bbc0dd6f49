"""Options that several commands share, each written once."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from bertopt.errors import UsageError


class Device(str, Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def option(*names: str, help: str) -> Any:
    """An option whose default is said in its help where it is more than a value."""
    return typer.Option(*names, help=help, show_default=False)


# typer reads these at run time, and on Python 3.10 it wants Optional spelled out
Model = Annotated[str, typer.Option("--model", "-m", help="A folder, a hub name, or the embedded `demo`.")]
Data = Annotated[Optional[Path], option("--data", "-d", help="JSONL, CSV, TSV, text or Parquet (default: the demo's texts).")]
BatchSize = Annotated[int, typer.Option("--bs", help="Rows of a batch.")]
Sequence = Annotated[
    Optional[int], option("--seq", help="Longest sequence in tokens; longer texts are truncated (default: 128 or the model's).")
]
Limit = Annotated[Optional[int], option("--limit", help="Requests (default: what the naive service answers in 8 s).")]
Workers = Annotated[str, typer.Option("--workers", help="Tokenizing workers from prefetch on: a number, or auto.")]
Window = Annotated[int, typer.Option("--window", help="Pending requests that bucketing may look at.")]
TextColumn = Annotated[Optional[str], option("--text-column", help="Name, or number from 1, of the column of texts.")]
PairColumn = Annotated[Optional[str], option("--text-pair-column", help="The same for second texts; '' for none.")]
LabelColumn = Annotated[Optional[str], option("--label-column", help="The same for labels; '' for none.")]
Encoding = Annotated[str, typer.Option("--encoding", help="Of the text file.")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Speed only: the configuration without its weights.")]
DeviceOption = Annotated[Device, typer.Option("--device", help="auto takes CUDA where there is a card.")]


def names(text: str | None, flag: str) -> tuple[str, ...] | None:
    """A comma-separated list; None where the option was not given."""
    if text is None:
        return None
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise UsageError(f"{flag} names nothing")
    return found


def number_or_auto(text: str, flag: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: a number, or auto") from None


def chosen_device(device: Device) -> str:
    """The device to run on; auto asks the driver library, without torch and without a context."""
    if device is not Device.auto:
        return device.value
    from bertopt.environment import has_cuda

    return "cuda" if has_cuda() else "cpu"


def command_line() -> str:
    """What was typed, as one could type it again."""
    return shlex.join(["bertopt", *sys.argv[1:]])

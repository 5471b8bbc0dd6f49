"""The command line: parses, calls, prints; nothing else. Heavy libraries are imported by what is called, never here."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from bertopt import __version__
from bertopt.cli import ladder
from bertopt.errors import BertoptError

app = typer.Typer(
    help="Find out why a BERT service is slow, and fix it in the order of cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ladder.ladder)
app.command()(ladder.report)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"bertopt {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line: one sentence and exit code 2 for a user's mistake, and no traceback."""
    _settle_libraries()
    try:
        code = app(standalone_mode=False)
    except BertoptError as error:
        print(f"bertopt: {error}", file=sys.stderr)
        _leave(error.exit_code)
    except KeyboardInterrupt:
        print("\nbertopt: interrupted; nothing half-written is left", file=sys.stderr)
        _leave(130)
    except OSError as error:
        print(f"bertopt: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        _leave(2)
    except Exception as error:
        if not isinstance(error, _usage_error()):
            raise
        error.show()  # type: ignore[attr-defined]
        _leave(2)
    _leave(code if isinstance(code, int) else 0)


def _usage_error() -> type[BaseException]:
    """The class of wrong options, of the click that typer brings."""
    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _leave(code: int) -> NoReturn:
    """Leave at once: threads that are deep in a library's batch must not hold up the end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _settle_libraries() -> None:
    from bertopt.measure.cores import usable_cores

    warnings.filterwarnings("ignore")  # what matters is said in sentences of our own
    os.environ.setdefault("RAYON_NUM_THREADS", str(usable_cores()))  # the Rust tokenizer counts the host's cores
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

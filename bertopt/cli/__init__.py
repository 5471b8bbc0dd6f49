"""The command line: parses, calls, prints; nothing else. Heavy libraries are imported by what is called, never here."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from bertopt import __version__
from bertopt.cli import calibrate, compare, diagnose, export, gate, ladder, load, plan_host, plans, serve, sweep
from bertopt.cli.stopping import Stopped, leave, stop_on_signals
from bertopt.errors import BertoptError

app = typer.Typer(
    help="Find out why a BERT service is slow, and fix it in the order of cost.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ladder.ladder)
app.command()(ladder.report)
app.command()(diagnose.diagnose)
app.command()(sweep.sweep)
app.command()(compare.compare)
app.command("plan-host")(plan_host.plan_host)
app.command()(calibrate.calibrate)
app.command()(gate.predict)
app.command()(gate.gate)
app.command("build-engine")(plans.build_engine)
app.command()(export.export)
app.command()(serve.serve)
app.command()(load.load)
app.add_typer(plans.plan, name="plan")


@app.callback(invoke_without_command=True)
def _bare(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    if version:
        print(f"bertopt {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def main() -> NoReturn:
    """Run the command line that was typed, and leave with its exit code."""
    _settle_libraries()
    stop_on_signals()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a name that the terminal cannot show ends nothing
    leave(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command. A user's mistake is one sentence on standard error, and no traceback."""
    try:
        code = app(arguments, prog_name="bertopt", standalone_mode=False)
        sys.stdout.flush()
    except BertoptError as error:
        return _say(str(error), error.exit_code)
    except Stopped as stopped:
        return _say("stopped; nothing half-written is left", stopped.exit_code)
    except (BrokenPipeError, SystemExit):  # typer makes the second of the first
        return 141  # nobody reads on, as after SIGPIPE
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "bertopt":
            raise
        return _say(f"{error.name} is missing in this environment: install bertopt together with what it requires", 2)
    except OSError as error:
        return _say(f"{error.filename or 'the system'}: {error.strerror or error}", 2)
    except Exception as error:
        if not isinstance(error, _usage_error()):
            raise
        return _say(error.format_message(), 2)  # type: ignore[attr-defined]
    return code if isinstance(code, int) else 0


def _say(sentence: str, code: int) -> int:
    print(f"bertopt: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _usage_error() -> type[BaseException]:
    """The class of wrong options, of the click that typer brings."""
    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _settle_libraries() -> None:
    from bertopt.measure.cores import usable_cores

    warnings.filterwarnings("ignore")  # what matters is said in sentences of our own
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # the same in processes that are started
    os.environ.setdefault("RAYON_NUM_THREADS", str(usable_cores()))  # the Rust tokenizer counts the host's cores
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

"""The commands that people copy, in the workflow and in the README, are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from bertopt.cli import app

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "int8-gate.yml"
sys.path.insert(0, str(ROOT / "benchmarks"))

from run_workflow import run_job, substituted  # noqa: E402

yaml = pytest.importorskip("yaml")


def workflow() -> dict[str, Any]:
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))


def commands(script: str, env: dict[str, str]) -> list[list[str]]:
    """The arguments of every bertopt command of a script, with its variables put in as bash does."""
    joined = script.replace("\\\n", " ")
    filled = re.sub(r"\$(\w+)", lambda match: env.get(match[1], ""), joined)
    lines = [shlex.split(line.strip().removeprefix("$ "), comments=True) for line in filled.splitlines() if "bertopt" in line]
    return [words[1:] for words in lines if words and words[0].rpartition("/")[2] == "bertopt"]


def parse(arguments: list[str]) -> str:
    """The name of the command that these arguments are for. Raises click's own error where it does not take them."""
    command: Any = typer.main.get_command(app)
    context, name = command.make_context("bertopt", list(arguments)), ""
    while hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", getattr(context, "protected_args", [])), *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return name


def test_workflow_has_the_jobs_that_it_promises() -> None:
    found = workflow()
    assert set(found["jobs"]) == {"cpu", "plan"}
    assert set(found[True]) == {"pull_request", "push", "workflow_dispatch"}, "YAML 1.1 reads the key `on` as true"
    for job in found["jobs"].values():
        assert job["steps"][-1]["if"] == "always()", "a verdict is kept, whatever it is"


@pytest.mark.parametrize("job", ["cpu", "plan"])
@pytest.mark.parametrize("given", [{}, {"DATA": "--data eval.jsonl", "CALIBRATION": "--calibration calibration/x.json"}])
def test_commands_of_the_workflow_are_taken(job: str, given: dict[str, str]) -> None:
    found = workflow()
    env = {**found["env"], **given}
    scripts = [step["run"] for step in found["jobs"][job]["steps"] if "run" in step]
    names = [parse(arguments) for script in scripts for arguments in commands(script, env)]
    assert names == {"cpu": ["build-engine", "gate"], "plan": ["build-engine", "build-engine", "gate", "gate"]}[job]


def test_commands_of_the_readme_are_taken() -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names = [parse(arguments) for block in blocks for arguments in commands(block, {})]
    assert {"ladder", "calibrate", "gate", "predict", "build-engine", "diagnose", "serve"} <= set(names)


def test_an_option_that_there_is_not_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(commands("bertopt gate --reference a --candidate b --max-fall 3", {})[0])


def test_steps_run_in_turn_and_a_failure_ends_the_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = [
        {"uses": "actions/checkout@v4"},
        {"name": "one", "run": 'echo "$MODEL ${{ vars.INDEX }}" > said'},
        {"name": "two", "run": "false\ntrue\n"},
        {"name": "three", "run": "touch reached"},
        {"name": "last", "if": "always()", "run": "cat said"},
    ]
    made = {"env": {"MODEL": "demo"}, "jobs": {"cpu": {"steps": steps}}}
    found = run_job(made, "cpu", tmp_path, variables={"INDEX": "here"}, skip=set(), env={"PATH": "/usr/bin:/bin"})
    assert [outcome for _, outcome, _ in found] == ["left out", "passed", "failed", "not reached", "passed"]
    assert not (tmp_path / "reached").exists()
    assert "demo here" in capfd.readouterr().out


def test_an_unknown_expression_is_refused() -> None:
    with pytest.raises(ValueError, match=r"github\.sha"):
        substituted("echo ${{ github.sha }}", {})

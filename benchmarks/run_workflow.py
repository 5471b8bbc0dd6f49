"""Run the commands of a job of a GitHub Actions workflow here, step by step as the runner's bash would.

    python benchmarks/run_workflow.py .github/workflows/int8-gate.yml cpu [--python .venv] [--var NAME=VALUE]

The tracked files are copied to a temporary folder, with the environment at --python linked as `.venv` in place of the step
that makes one. Steps that use an action are listed and left out. Exits with 1 where a step fails, as the job would.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHELL = ("bash", "-e", "-c")  # the runner's, where a step names none
FAILED = "failed"


def copy_tracked(root: Path, to: Path) -> None:
    """What a checkout has: the tracked files, as they lie in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """The text with `${{ vars.NAME }}` replaced; a variable that is not set is empty, as on GitHub.

    Raises ValueError for any other expression: to guess it would be to run something else.
    """

    def value(match: re.Match[str]) -> str:
        name = re.fullmatch(r"vars\.(\w+)", match[1].strip())
        if name is None:
            raise ValueError(f"the expression {match[0]} is not known here")
        return variables.get(name[1], "")

    return re.sub(r"\$\{\{(.*?)\}\}", value, text)


def run_job(
    workflow: Mapping[str, Any], job: str, folder: Path, *, variables: Mapping[str, str], skip: set[str], env: Mapping[str, str]
) -> list[tuple[str, str, float]]:
    """Every step of the job in `folder`: its name, what became of it, and its seconds. After a failure only `always()` runs."""
    found: list[tuple[str, str, float]] = []
    for step in workflow["jobs"][job]["steps"]:
        name = step.get("name") or step.get("uses") or step["run"].splitlines()[0]
        if "run" not in step or name in skip:
            found.append((name, "left out", 0.0))
            continue
        if any(outcome == FAILED for _, outcome, _ in found) and step.get("if") != "always()":
            found.append((name, "not reached", 0.0))
            continue
        print(f"== {name}", flush=True)
        given = {**env, **workflow.get("env", {}), **workflow["jobs"][job].get("env", {}), **step.get("env", {})}
        start = time.monotonic()
        code = subprocess.run([*SHELL, substituted(step["run"], variables)], cwd=folder, env=given).returncode
        found.append((name, FAILED if code else "passed", time.monotonic() - start))
    return found


def main() -> int:
    import yaml

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", type=Path)
    parser.add_argument("job")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv", help="an environment that has everything installed")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--skip", action="append", help="names of steps (default: Install)")
    options = parser.parse_args()
    workflow = yaml.safe_load(options.workflow.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "checkout")
        copy_tracked(ROOT, folder)
        (folder / ".venv").symlink_to(options.python.resolve(), target_is_directory=True)
        # The linked environment may have another checkout installed: this one goes first
        env = {**os.environ, "PYTHONPATH": str(folder), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
        found = run_job(
            workflow,
            options.job,
            folder,
            variables=dict(each.split("=", 1) for each in options.var),
            skip=set(options.skip or ["Install"]),
            env=env,
        )
        print("\n== job summary")
        print((folder / "summary.md").read_text() if (folder / "summary.md").exists() else "none")
        print("== files: " + ", ".join(sorted(p.name for p in folder.iterdir() if p.suffix in (".xml", ".json"))))
    for name, outcome, seconds in found:
        print(f"{outcome:12} {seconds:6.0f} s  {name}")
    return int(any(outcome == FAILED for _, outcome, _ in found))


if __name__ == "__main__":
    sys.exit(main())

"""The gate's verdict for continuous integration: JUnit XML with a test case for each check, and a Markdown job summary."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from bertopt.gate.text import flips_table, headline, sides_table
from bertopt.gate.verdict import FAILED, INCONCLUSIVE, GateVerdict

SUITE = "bertopt gate"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKS = {"passed": "✅", "failed": "❌", "inconclusive": "❔"}
_ROWS = 20


def junit_xml(verdict: GateVerdict) -> str:
    """A failed check is a failure; an inconclusive one an error, since JUnit has no word for it and it is no success."""
    suite = ElementTree.Element("testsuite", name=SUITE, tests=str(len(verdict.checks)))
    suite.set("failures", str(sum(c.status == FAILED for c in verdict.checks)))
    suite.set("errors", str(sum(c.status == INCONCLUSIVE for c in verdict.checks)))
    for check in verdict.checks:
        case = _case(suite, f"{verdict.candidate.name} ({verdict.candidate.precision})", check.name)
        if check.status in (FAILED, INCONCLUSIVE):
            kind = "failure" if check.status == FAILED else "error"
            ElementTree.SubElement(
                case, kind, type=check.status, message=_clean(f"{check.status}: {check.reason}")
            ).text = _clean(verdict.next)
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(check.reason)
    return _document(suite)


def junit_refusal(sentence: str) -> str:
    """The same file where the gate refused its input (exit code 2), so that no stale or absent report reads as success."""
    suite = ElementTree.Element("testsuite", name=SUITE, tests="1", failures="0", errors="1")
    ElementTree.SubElement(_case(suite, SUITE, "input"), "error", type="refused", message=_clean(sentence))
    return _document(suite)


def summary_markdown(verdict: GateVerdict) -> str:
    """A job summary, for example for $GITHUB_STEP_SUMMARY."""
    checks = [[c.name, f"{_MARKS[c.status]} {c.status}", c.reason] for c in verdict.checks]
    parts = [
        f"### {_MARKS[verdict.verdict]} {_cell(headline(verdict))}",
        "\n".join(f"- {_cell(reason)}" for reason in verdict.reasons) + f"\n- Next: {_cell(verdict.next)}",
        _table(sides_table(verdict)),
        _table([["check", "result", "why"], *checks]),
    ]
    if verdict.flips:
        parts.append(_table([["flip", "rows", ""], *flips_table(verdict)]))
    if verdict.changed:
        rows = [[str(r.row), r.reference, r.candidate, r.label or "", r.text or ""] for r in verdict.changed[:_ROWS]]
        table = _table([["row", "reference", "candidate", "label", "text"], *rows])
        parts.append(f"<details><summary>{verdict.changed_rows} rows changed their label</summary>\n\n{table}\n\n</details>")
    return "\n\n".join([*parts, *(f"> {_cell(note)}" for note in verdict.notes)]) + "\n"


def _case(suite: ElementTree.Element, classname: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_clean(classname), name=_clean(name), time="0")


def _document(suite: ElementTree.Element) -> str:
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """`text` without the characters that XML 1.0 cannot hold: label names come from anywhere."""
    return _NOT_XML.sub("�", text)


def _table(rows: list[list[str]]) -> str:
    head, *body = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def _cell(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`").split())

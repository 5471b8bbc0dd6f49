from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bertopt.gate import GateVerdict, judge, verdict_lines
from bertopt.report.junit import junit_refusal, junit_xml, summary_markdown
from tests.gate_data import flipped, int8, labels, predictions, texts


def verdict(worse: int, better: int, rows: int = 2693, names: list[str] | None = None, **changes: object) -> GateVerdict:
    truth, reference, candidate = flipped(rows, 0.9, worse, better)
    return judge(
        predictions(reference, names=names, throughput_seq_s=100.0),
        int8(candidate, names=names, throughput_seq_s=150.0, **changes),
        labels(truth, names),
        metric="accuracy",
        max_drop=0.5,
        min_speedup=1.2,
        texts=texts(rows),
    )


@pytest.mark.parametrize(("worse", "rows", "word"), [(3, 2693, "PASSED"), (60, 2693, "FAILED"), (1, 60, "INCONCLUSIVE")])
def test_three_lines_of_substance(worse: int, rows: int, word: str) -> None:
    found = verdict(worse, 0, rows)
    lines = verdict_lines(found)
    assert lines[0].startswith(f"Verdict: {word}")
    assert lines[1] == f"Why:     {found.reasons[0]}"
    assert any(line.startswith("Next:    ") for line in lines)
    table = "\n".join(lines)
    assert f"{100 * found.reference.value.value:.2f}" in table
    assert "1.50x" in table
    assert f"{worse} of {rows:,} rows worse" in table
    assert texts(rows)[found.changed[0].row - 1] in table


def test_junit_has_a_case_for_each_check_with_its_reason() -> None:
    suite = ElementTree.fromstring(junit_xml(verdict(60, 0)))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert {"accuracy drop", "label agreement", "more than one answer", "no label collapses", "speed-up"} <= set(cases)
    failure = cases["accuracy drop"].find("failure")
    assert failure is not None
    assert "60 of 2,693 rows worse" in failure.get("message", "")
    assert cases["speed-up"].find("failure") is None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (str(len(cases)), "1", "0")


def test_inconclusive_is_no_success_in_junit() -> None:
    suite = ElementTree.fromstring(junit_xml(verdict(1, 0, 60)))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    error = suite.find(".//error")
    assert error is not None
    assert error.get("type") == "inconclusive"


def test_a_refusal_is_an_error_in_junit() -> None:
    suite = ElementTree.fromstring(junit_refusal("the set <eval> is empty\x00"))
    error = suite.find(".//error")
    assert error is not None
    assert error.get("message") == "the set <eval> is empty\ufffd"


def test_any_label_name_makes_good_xml_and_markdown() -> None:
    found = verdict(60, 0, names=["a|b <i>\x0b", "`c` & d"])
    assert ElementTree.fromstring(junit_xml(found)).get("tests")
    rows = [line for line in summary_markdown(found).splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (4, 6) for line in rows)
    assert "<i>" not in summary_markdown(found)


def test_the_job_summary_says_it_all() -> None:
    found = verdict(60, 0)
    summary = summary_markdown(found)
    assert summary.startswith("### ❌ FAILED")
    assert found.next in summary
    assert f"{found.changed_rows} rows changed their label" in summary
    assert all(check.name in summary for check in found.checks)

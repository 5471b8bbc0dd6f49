"""The page of a run: what it says, that it says it of any record, and that nothing in it can run."""

from __future__ import annotations

import dataclasses
import html.parser
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bertopt import records
from bertopt.errors import UsageError
from bertopt.records import LadderRecord, RungRecord, Span
from bertopt.report import view
from bertopt.report.html import write_report
from bertopt.report.terminal import print_ladder
from tests.made_up import empty_ladder, made_up_ladder, with_every_string

ROOT = Path(__file__).parents[1]


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: elements with attributes, text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.unmatched: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unmatched.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(record: LadderRecord, tmp_path: Path) -> tuple[str, Page]:
    write_report(record, tmp_path / "report.html")
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    return source, Page(source)


Drawn = tuple[str, Page]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    return page(made_up_ladder(), tmp_path_factory.mktemp("drawn"))


def test_the_page_holds_what_the_run_found(drawn: Drawn) -> None:
    source, seen = drawn
    assert seen.unmatched == []
    assert seen.open == []
    for text in (
        "5.3x the naive service: 49 → 262 sequences a second",
        "bertopt ladder --model demo --bs 32 --seq 128",
        "There is no calibration cache for demo, and INT8 is never run uncalibrated",
        "no difference",
        "19,755",
        "88.3 (86.3–90.0)",
        "Bound by the device",
        "longest in batch",
        "SkipLayerNormalization 12",
        "libraries.openvino 2026.4.1",
        "Other work ran on this machine",
        "The row is named fp16",
    ):
        assert text.lower() in seen.text.lower(), text
    for rung in made_up_ladder().rungs:
        assert rung.name in seen.text
    labels = [a["aria-label"] or "" for _, a in seen.elements if a.get("role") == "img"]
    assert "fp16: 262 sequences a second, device's ceiling 270 seq/s" in labels
    assert any(label.startswith("baseline, host: tokenize from 0 to 61.0 ms") for label in labels)
    assert any(label.startswith("Histogram of request lengths: mean 75.4") for label in labels)
    assert "bucketed: 2.70 % at 2,048 requests" in source


def test_the_page_is_one_file_that_needs_no_network_and_no_script(drawn: Drawn) -> None:
    source, seen = drawn
    assert "://" not in source
    assert not {tag for tag, _ in seen.elements} & {"script", "link", "img", "iframe", "object", "base", "form", "image"}
    for _, attributes in seen.elements:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", source))
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source


def test_figures_keep_text_as_text_in_the_pages_font_and_colours(drawn: Drawn) -> None:
    source, seen = drawn
    assert [tag for tag, _ in seen.elements].count("svg") == 2
    assert sum(tag == "text" for tag, _ in seen.elements) > 20
    assert "DejaVu" not in source
    assert not re.search("#0[1-9]0[1-9]0[1-9]", source)
    ids = [a["id"] for _, a in seen.elements if "id" in a]
    assert len(ids) == len(set(ids))
    referenced = set(re.findall(r'(?:href="|url\()#([\w-]+)', source))
    assert referenced <= set(ids)


def test_nothing_that_a_user_names_can_run(tmp_path: Path) -> None:
    attack = """"><img src=x onerror=alert(1)>'><svg onload=alert(1)></style><script>alert(1)</script>{{ 7*7 }}"""
    record = with_every_string(made_up_ladder(), attack)
    assert isinstance(record, LadderRecord)
    source, seen = page(record, tmp_path)
    assert "<script" not in source
    assert {tag for tag, _ in seen.elements} & {"script", "img"} == set()
    assert [key for _, attributes in seen.elements for key in attributes if key.startswith("on")] == []
    assert seen.unmatched == []
    assert attack in " ".join(seen.words)


def test_a_record_in_which_nothing_is_known_still_makes_a_page(tmp_path: Path) -> None:
    for record in (
        empty_ladder(),
        empty_ladder("skipped"),
        empty_ladder("failed"),
        dataclasses.replace(empty_ladder(), rungs=[]),
    ):
        _, seen = page(record, tmp_path)
        assert "No rung was measured" in seen.text
        assert seen.unmatched == []
        assert "None" not in seen.text
        assert "in random weights: speed only" in seen.text


def test_what_a_gpu_alone_has_is_not_zero_on_a_cpu(drawn: Drawn) -> None:
    """BEN-02."""
    _, seen = drawn
    for metric in ("Kernel-busy", "SM active", "Tensor active", "nvidia-smi"):
        assert f"{metric} % – – – – – – – – –" in seen.text


NULLABLE = [f.name for f in dataclasses.fields(RungRecord) if f.default is None]
NULLABLE_OF_RUN = ("best", "verdict", "lengths")


@settings(max_examples=6, deadline=None)
@given(
    lost=st.lists(st.sets(st.sampled_from(NULLABLE)), min_size=9, max_size=9),
    of_run=st.sets(st.sampled_from(NULLABLE_OF_RUN)),
    status=st.sampled_from(["measured", "failed", "skipped"]),
)
def test_whatever_is_missing_the_reports_are_made(
    lost: list[set[str]], of_run: set[str], status: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    record = made_up_ladder()
    rungs = [dataclasses.replace(r, **dict.fromkeys(names)) for r, names in zip(record.rungs, lost, strict=True)]
    rungs[1] = dataclasses.replace(rungs[1], status=status)
    record = dataclasses.replace(record, rungs=rungs, padding=[], **dict.fromkeys(of_run))  # a figure less, for speed
    _, seen = page(record, tmp_path_factory.mktemp("report"))
    assert seen.unmatched == []
    assert not re.search(r"\b(None|nan|inf)\b", seen.text)
    out = io.StringIO()
    print_ladder(record, Console(file=out))
    assert max(map(len, out.getvalue().splitlines())) <= 100


def test_a_report_can_be_made_again_from_its_json(drawn: Drawn, tmp_path: Path) -> None:
    records.save(made_up_ladder(), tmp_path / "ladder.json")
    first, _ = drawn
    again, _ = page(records.load_ladder(tmp_path), tmp_path)
    assert again == first


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write"):
        write_report(made_up_ladder(), tmp_path / "file" / "report.html")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_drawing_is_silent_and_leaves_nothing_where_home_cannot_be_written(tmp_path: Path) -> None:
    """matplotlib's font cache is nothing that a user asked for."""
    home = tmp_path / "file"
    home.write_text("no folder")
    draw = (
        "from bertopt.report import plots; plots.lines([plots.Series('a', [1, 2], [3, 4])], x_label='', y_label='', label='')"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MPL", "XDG"))}
    environment |= {"HOME": str(home / "home"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", draw], env=environment, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout + done.stderr == ""
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_reports_import_nothing_heavy() -> None:
    code = (
        "import sys, bertopt.report.terminal, bertopt.report.html; print({'matplotlib', 'jinja2', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "set()"


def test_rungs_that_would_vanish_on_the_shared_axis_are_drawn_again_closer() -> None:
    record = made_up_ladder()
    assert [len(view.timelines(record)), len(view.phases(record))] == [1, 1]
    quick = dataclasses.replace(
        record.rungs[5], timeline=[Span("device", "compute", 1.0, 5.0)], tokenize_ms=0.1, device_ms=4.0, collate_ms=None
    )
    record = dataclasses.replace(record, rungs=[*record.rungs[:2], quick])
    whole, closer = view.timelines(record)
    assert [s.rung.name for s in whole.strips] == ["baseline", "fast-tokenizer", "fp16"]
    assert [s.rung.name for s in closer.strips] == ["fp16"]
    (segment,) = closer.strips[0].tracks[0].segments
    assert (segment.at, segment.width) == pytest.approx((20.0, 80.0))
    phases = view.phases(record)[1].strips[0]
    assert [s.label for s in phases.tracks[0].segments] == ["tokenize 0.100 ms", "device 4.00 ms", "postprocess 0.200 ms"]
    assert sum(s.width for s in phases.tracks[0].segments) == pytest.approx(100)


def test_bars_share_one_scale_up_to_the_highest_ceiling() -> None:
    bars = {b.rung.name: b for b in view.bars(made_up_ladder())}
    top = bars["fp16"]
    assert top.ceiling == pytest.approx(100)
    assert top.width == pytest.approx(100 / 1.03)
    assert top.kind == "best"
    assert top.width / bars["baseline"].width == pytest.approx(262 / 49.3)  # type: ignore[operator]
    assert (bars["int8"].kind, bars["int8"].width, bars["int8"].ceiling) == ("skipped", None, None)

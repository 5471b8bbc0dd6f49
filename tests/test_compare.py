"""Runs side by side: like with like, no difference inside the spread, and what it costs."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt import compare
from bertopt.cli import run
from bertopt.errors import UsageError
from bertopt.records import from_json, save
from bertopt.records_card import CardReading
from bertopt.records_compare import Comparison, Side
from bertopt.records_diagnosis import Diagnosis, Finding
from bertopt.report import compare as report
from tests.made_up import made_up_ladder, made_up_rung
from tests.test_diagnose_rules import HEALTHY, TRAINING
from tests.test_sweep import made_up_sweep


def with_speed(speed, **more):
    """A ladder of one rung whose repeats lie 1 % around `speed`."""
    repeats = [speed * 0.99, speed, speed * 1.01]
    rung = made_up_rung("only", speed, None, repeats_seq_s=repeats)
    return made_up_ladder(rungs=[rung], best="only", **more)


def diagnosis(observation=HEALTHY, **more):
    ladder = made_up_ladder()
    fields = {
        "created": ladder.created,
        "command": "bertopt diagnose",
        "bertopt_version": "0.1.0",
        "environment": {"gpu": "NVIDIA H200"},
        "device": "cuda",
        "batch_size": 128,
        "sequence_length": 128,
        "observation": observation,
        "findings": [Finding("COMPUTE-BOUND", "because", state=True)],
        "model": ladder.model,
        "data": ladder.data,
    }
    return Diagnosis(**{**fields, **more})


@pytest.fixture
def runs(tmp_path):
    def write(*records, name="ladder.json"):
        folders = []
        for i, record in enumerate(records):
            folder = tmp_path / f"run{i}"
            save(record, folder / name)
            folders.append(folder)
        return folders

    return write


def test_a_faster_run_is_faster_and_what_a_million_costs(runs):
    found = compare.compare(runs(with_speed(100.0), with_speed(200.0)), prices=[3.6])
    first, second = found.sides
    assert (second.against_first, second.ratio_to_first) == ("faster", 2.0)
    assert first.cost_per_million == pytest.approx(10.0), "3.6 an hour is 0.001 a second, and a second is 100 sequences"
    assert second.cost_per_million == pytest.approx(5.0)
    assert first.against_first is None
    assert "2.00x" in compare.headline(found)


def test_an_improvement_inside_the_spread_is_no_difference(runs):
    found = compare.compare(runs(with_speed(100.0), with_speed(101.0)))
    assert found.sides[1].against_first == "no difference"
    assert "No difference" in compare.headline(found)


def test_one_repeat_has_no_spread_to_judge_by(runs):
    single = made_up_ladder(rungs=[made_up_rung("only", 90.0, None, repeats_seq_s=[90.0])], best="only")
    found = compare.compare(runs(with_speed(100.0), single))
    assert "no spread" in found.sides[1].against_first


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"batch_size": 64}, "batch size: 32 and 64"),
        ({"sequence_length": 256}, "sequence length: 128 and 256"),
        ({"data": dataclasses.replace(made_up_ladder().data, fingerprint="sha256:other")}, "texts"),
        ({"model": dataclasses.replace(made_up_ladder().model, fingerprint="sha256:other")}, "model"),
        ({"data": dataclasses.replace(made_up_ladder().data, requests=7)}, "requests: 1184 and 7"),
    ],
)
def test_unlike_work_is_refused_with_what_differs_unless_told_to(runs, changes, names):
    folders = runs(with_speed(100.0), with_speed(200.0, **changes))
    with pytest.raises(UsageError, match=names):
        compare.compare(folders)
    assert len(compare.compare(folders, unlike=True).unlike) == 1


def test_what_differs_in_the_environments_is_listed_and_what_does_not_is_not(runs):
    other = made_up_ladder().environment | {"cores": 8}
    found = compare.compare(runs(with_speed(100.0), with_speed(100.0, environment=other)))
    assert [(d.name, d.values) for d in found.environment] == [("cores", ["2", "8"])]


def test_training_loops_compare_by_their_steps_phases_and_power(runs):
    small = dataclasses.replace(TRAINING, loop_ms={"forward": 4.0, "backward": 6.0})
    large = dataclasses.replace(small, rows=256)
    about = {"rung": "training", "model": "bert-large", "precision": "fp16"}
    records = [diagnosis(o, model=None, data=None, pipeline=about, batch_size=b) for o, b in ((small, 128), (large, 256))]
    folders = runs(*records, name="diagnosis.json")
    with pytest.raises(UsageError, match="batch size: 128 and 256"):
        compare.compare(folders)
    found = compare.compare(folders, unlike=True)
    assert found.sides[1].ratio_to_first == pytest.approx(2.0)
    assert found.sides[0].phases_ms == {"forward": 4.0, "backward": 6.0}
    assert found.sides[0].power_w == 500
    assert found.sides[0].work["model"] == "bert-large"


def test_the_range_beside_a_figure_holds_it_also_in_a_record_whose_mean_ended_after_its_last_step(runs):
    """As an earlier version wrote it: 430 seq/s, with blocks from 434 to 435."""
    late = dataclasses.replace(TRAINING, rows=64, batch_ms=148.73, repeats_ms=[147.19, 147.14, 147.32, 147.23, 147.07])
    found = compare.compare(runs(diagnosis(late), diagnosis(late), name="diagnosis.json"))
    table = dict(compare.rows(found))
    assert table["throughput, seq/s"][0] == "430.3"
    assert table["slowest to fastest repeat"][0] == "430.3 to 435.2"


def test_a_ladders_rung_is_compared_by_its_power_too(runs):
    card = CardReading(1.0, 10, power_w=500.0)
    rung = made_up_rung("only", 100.0, None, card=card)
    first, second = compare.compare(runs(made_up_ladder(rungs=[rung], best="only"), with_speed(100.0))).sides
    assert (first.power_w, first.energy_j_per_1000) == (500.0, 5000.0)
    assert (second.power_w, second.energy_j_per_1000) == (None, None)


@given(st.lists(st.floats(1.0, 1e6), min_size=1), st.floats(1.0, 1e6))
def test_the_range_beside_a_figure_always_holds_it(repeats, figure):
    side = Side("run", "what", "now", "cpu", {}, {}, figure, repeats)
    low, high = side.ends_seq_s
    assert low <= figure <= high
    assert dataclasses.replace(side, repeats_seq_s=[]).ends_seq_s is None


def test_a_service_and_a_training_loop_are_not_alike(runs, tmp_path):
    save(diagnosis(TRAINING), tmp_path / "t" / "diagnosis.json")
    save(diagnosis(), tmp_path / "s" / "diagnosis.json")
    with pytest.raises(UsageError, match="work: training and service"):
        compare.compare([tmp_path / "t", tmp_path / "s"])


def test_a_sweep_stands_for_its_knee(tmp_path):
    save(made_up_sweep(), tmp_path / "a" / "sweep.json")
    side = compare.side_of(tmp_path, made_up_sweep(), None)
    assert side.work["batch size"] == "16"
    assert side.throughput_seq_s == 800


def test_the_command_writes_a_record_and_a_report(runs, tmp_path, capsys):
    folders = runs(with_speed(100.0), with_speed(200.0))
    assert run(["compare", *map(str, folders), "--price-per-hour", "1,2", "--out", str(tmp_path / "c")]) == 0
    assert "faster" in capsys.readouterr().out
    record = from_json(Comparison, (tmp_path / "c" / "compare.json").read_text())
    assert [s.price_per_hour for s in record.sides] == [1, 2]
    assert "Where the time of a batch goes" in (tmp_path / "c" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run0"], "at least two"),
        (["run0", "nowhere"], "no run"),
        (["run0", "run1", "--price-per-hour", "x"], "--price-per-hour x"),
        (["run0", "run1", "--price-per-hour", "1,2,3"], "3 prices for 2 runs"),
        (["run0", "run1", "--rung", "warp"], "warp"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(runs, tmp_path, capsys, monkeypatch, arguments, says):
    runs(with_speed(100.0), with_speed(200.0))
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_report_of_names_that_are_markup_escapes_them(runs, tmp_path):
    found = compare.compare(runs(with_speed(100.0), with_speed(200.0)))
    odd = dataclasses.replace(found, sides=[dataclasses.replace(s, run="<i>&") for s in found.sides])
    report.write_report(odd, tmp_path / "r.html")
    assert "<i>&" not in (tmp_path / "r.html").read_text()

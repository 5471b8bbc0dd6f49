"""`bertopt diagnose` from the command line: card, record, report, plans, and whether an earlier prediction held."""

import dataclasses
import json
import types

import pytest

from bertopt import engines
from bertopt.cli import run
from bertopt.diagnose import card, live
from bertopt.errors import UsageError
from bertopt.measure import activity, ceilings, kernels
from bertopt.prepare import Climb
from bertopt.records import from_json
from bertopt.records_diagnosis import Diagnosis, Finding
from bertopt.report import diagnosis as report
from tests.models import WORDS
from tests.test_compare import diagnosis as made_up
from tests.test_diagnose_rules import HEALTHY, PLANTED


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 0.01)
    monkeypatch.setattr(ceilings, "SIDE", {"cpu": 128})
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"cpu": 1 << 16})


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": " ".join(WORDS[1 + i % 5 : 9 + i % 9])}) for i in range(64)))
    return file


def arguments(tiny, data, out, *more):
    return ["diagnose", "--model", str(tiny), "--data", str(data), "--bs", "4", "--seq", "32", "--limit", "64",
            "--repeats", "2", "--device", "cpu", "--out", str(out), *more]  # fmt: skip


def test_a_card_a_record_and_a_report(tiny, data, tmp_path, capsys):
    code = run(arguments(tiny, data, tmp_path / "run"))
    shown = capsys.readouterr().out
    record = from_json(Diagnosis, (tmp_path / "run" / "diagnosis.json").read_text())
    assert code == (3 if record.first.verdict == "INCONCLUSIVE" else 0)
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("Verdict", "Why", "Next"))][:3] == [
        "Verdict",
        "Why",
        "Next",
    ]
    assert record.pipeline["rung"] == "baseline"
    assert record.first.next in shown
    assert record.observation.tokenize_fast_ms is not None
    assert record.observation.growth[0].rows == 4
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_the_next_command_names_the_same_work_and_runs(tiny, data, tmp_path, capsys):
    first = tmp_path / "first"
    run(arguments(tiny, data, first))
    run(arguments(tiny, data, tmp_path / "second", "--rung", "fast-tokenizer", "--after", str(first)))
    shown = capsys.readouterr().out
    record = from_json(Diagnosis, (tmp_path / "second" / "diagnosis.json").read_text())
    before = from_json(Diagnosis, (first / "diagnosis.json").read_text())
    if before.first.predicted_batch_ms is not None:
        assert record.after.verdict == before.first.verdict
        assert f"After {first}" in shown
    else:
        assert record.after is None


def test_a_plan_is_served_and_one_of_another_model_is_refused(tiny, data, tmp_path, capsys, checkpoint_folder):
    pytest.importorskip("openvino")
    plan = tmp_path / "tiny.plan"
    engines.build_engine(
        engines.Request(out=plan, model=str(tiny), data=data, target="openvino", batch_size=4, sequence_length=32)
    )
    assert run(arguments(tiny, data, tmp_path / "run", "--plan", str(plan))) in (0, 3)
    record = from_json(Diagnosis, (tmp_path / "run" / "diagnosis.json").read_text())
    assert record.pipeline["rung"] == "plan"
    assert record.observation.precision == record.pipeline["precision"]
    capsys.readouterr()
    other = checkpoint_folder("bert", num_labels=3)
    assert run(arguments(other, data, tmp_path / "other", "--plan", str(plan))) == 2
    assert "was built from model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rung", "warp"], "warp"),
        (["--after", "nowhere"], "nowhere is no run"),
        (["--plan", "nowhere.plan"], "nowhere.plan"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_sentence(tiny, data, tmp_path, capsys, more, says):
    assert run(arguments(tiny, data, tmp_path / "run", *more)) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def at(speed, **more):
    """A diagnosis whose batches of 128 come at `speed` sequences a second, 1 % apart."""
    ms = 128e3 / speed
    seen = dataclasses.replace(HEALTHY, batch_ms=ms, repeats_ms=[0.99 * ms, ms, 1.01 * ms])
    return made_up(seen, **more)


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [(2000.0, "held"), (1800.0, "held"), (1500.0, "fell short"), (2500.0, "more than predicted"), (1005.0, "no difference")],
)
def test_whether_a_prediction_held(tmp_path, measured, outcome):
    promise = Finding("PADDING-WASTE", "because", 64.0, 64.0, "do it")
    wanted = live.Wanted(Climb(), after=tmp_path)
    found = live.prediction(at(1000.0, findings=[promise]), at(measured), wanted)
    assert (found.predicted_seq_s, found.outcome) == (pytest.approx(2000.0), outcome)
    assert outcome in found.sentence


def test_a_run_that_promised_nothing_and_one_on_other_texts(tmp_path):
    wanted = live.Wanted(Climb(), after=tmp_path)
    assert live.prediction(at(1000.0), at(2000.0), wanted) is None
    other = dataclasses.replace(made_up().data, fingerprint="sha256:other")
    with pytest.raises(UsageError, match="another texts"):
        live.prediction(at(1000.0), at(2000.0, data=other), wanted)


def test_a_card_says_both_that_the_device_is_busy_and_that_it_computes_padding(tmp_path):
    from bertopt.diagnose import findings

    seen = dataclasses.replace(HEALTHY, **PLANTED["PADDING-WASTE"])
    record = made_up(seen, findings=findings(seen))
    assert "Verdict  PADDING-WASTE, and COMPUTE-BOUND" in card.lines(record)
    report.write_report(record, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "COMPUTE-BOUND" in page
    assert "500 W" in page


def test_a_card_shows_power_energy_and_what_was_not_read():
    seen = dataclasses.replace(HEALTHY, card=dataclasses.replace(HEALTHY.card, reasons=["memory not read: Not Supported"]))
    shown = "\n".join(card.lines(made_up(seen)))
    assert "500 W, 39.8 J per 1,000 sequences, 1900 of 1980 MHz (10 samples)" in shown
    assert "memory not read: Not Supported" in shown


def event(name, start, end, device="DeviceType.CPU"):
    return types.SimpleNamespace(name=name, time_range=types.SimpleNamespace(start=start, end=end), device_type=device)


CUDA = "DeviceType.CUDA"
# Two batches: three kernels of which two overlap, one wait inside a launch and one outside it
SEEN = [
    event("bertopt.launch", 0, 100),
    event("bertopt.launch", 200, 300),
    event("cudaStreamSynchronize", 50, 90),
    event("cudaStreamSynchronize", 120, 190),
    event("gemm", 10, 60, CUDA),
    event("gelu", 50, 80, CUDA),
    event("gemm", 210, 240, CUDA),
    event("Memcpy HtoD", 0, 500, CUDA),
    event("bertopt.launch", 0, 100, CUDA),
]


@pytest.fixture
def profiled(monkeypatch):
    """Make the profiler see these events, in microseconds."""
    import torch

    def see(events):
        class Profile:
            def __init__(self, **settings): ...

            def __enter__(self):
                return self

            def __exit__(self, *exc): ...

            def events(self):
                return events

        monkeypatch.setattr(torch.profiler, "profile", Profile)

    return see


def test_what_the_profiler_saw_is_counted_per_batch(profiled):
    profiled(SEEN)
    session = types.SimpleNamespace(stage=lambda b: b, launch=lambda s: types.SimpleNamespace(result=lambda: None))
    found = activity.activity(session, ["a", "b"])
    assert found.kernels == 1.5
    assert found.kernel_ms == pytest.approx(0.05)  # 70 and 30 us over two batches
    assert found.synchronizations == 0.5
    assert found.wait_ms == pytest.approx(0.02)


@pytest.mark.parametrize(("wall_ms", "busy"), [(0.5, 0.2), (0.1, 1.0), (0.05, 1.0)])
def test_kernel_busy_is_the_kernels_time_over_the_wall_time_of_the_same_batches(profiled, monkeypatch, wall_ms, busy):
    """100 us of kernels in two batches; the 230 us from first to last kernel are the profiler's, which slows launching."""
    profiled(SEEN)
    walls = iter([9.0, 3e-3, wall_ms / 1e3, 5e-3])  # the profiled replay, and three without it
    monkeypatch.setattr(kernels, "replay", lambda *_: next(walls))
    monkeypatch.setattr(activity, "replay", lambda *_: next(walls))
    share, number = kernels.profile(types.SimpleNamespace(), ["a", "b"], 2)
    assert share == pytest.approx(busy)
    assert number == 1


def test_a_profiler_that_saw_no_kernels_says_nothing_of_how_busy_they_were(profiled, monkeypatch):
    profiled([e for e in SEEN if e.device_type != CUDA or e.name.startswith(("Mem", "bertopt."))])
    monkeypatch.setattr(kernels, "replay", lambda *_: 1.0)
    assert kernels.profile(types.SimpleNamespace(), ["a", "b"], 2) == (None, 0)

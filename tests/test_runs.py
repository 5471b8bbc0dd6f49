"""Whichever command made a folder, its record is found; what is none is one sentence."""

import json

import pytest

from bertopt.errors import UsageError
from bertopt.records import LadderRecord, save
from bertopt.records_diagnosis import Diagnosis, Observation
from bertopt.records_sweep import Sweep
from bertopt.runs import open_run, pipeline_of
from tests.made_up import made_up_ladder
from tests.test_compare import diagnosis
from tests.test_sweep import made_up_sweep


@pytest.mark.parametrize(
    ("record", "name", "kind"),
    [
        (made_up_ladder(), "ladder.json", LadderRecord),
        (diagnosis(), "diagnosis.json", Diagnosis),
        (made_up_sweep(), "sweep.json", Sweep),
    ],
)
def test_a_folder_and_a_file_under_any_name(tmp_path, record, name, kind):
    save(record, tmp_path / name)
    save(record, tmp_path / "kept" / "results.json")
    assert isinstance(open_run(tmp_path), kind)
    assert open_run(tmp_path / "kept" / "results.json") == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 99, "rungs": []}', "null"])
def test_a_file_that_is_no_run_is_one_sentence(tmp_path, text):
    file = tmp_path / "ladder.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"ladder\.json"):
        open_run(file)


def test_the_times_of_one_pipeline(tmp_path):
    save(made_up_ladder(), tmp_path / "l" / "ladder.json")
    save(diagnosis(), tmp_path / "d" / "diagnosis.json")
    save(made_up_sweep(), tmp_path / "s" / "sweep.json")
    assert pipeline_of(tmp_path / "l", None).name == "fp16"
    assert pipeline_of(tmp_path / "l", "baseline").name == "baseline"
    assert isinstance(pipeline_of(tmp_path / "d", None), Observation)
    with pytest.raises(UsageError, match="int8"):
        pipeline_of(tmp_path / "l", "int8")
    with pytest.raises(UsageError, match="sweep"):
        pipeline_of(tmp_path / "s", None)


def test_a_record_of_an_older_version_takes_defaults(tmp_path):
    save(diagnosis(), tmp_path / "diagnosis.json")
    data = json.loads((tmp_path / "diagnosis.json").read_text())
    del data["peak_device_mib"]
    data["of_a_newer_one"] = 1
    (tmp_path / "diagnosis.json").write_text(json.dumps(data))
    assert open_run(tmp_path).peak_device_mib is None

"""A method's former name is understood wherever it was written down, and its present one is shown."""

import json

import numpy as np
import pytest
from safetensors.torch import load as load_tensors

from anchorinv import AnchorInvClassifier
from anchorinv.core.registry import METHODS
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.format import read_container, write_container
from anchorinv.report.gather import gather, groups_of
from anchorinv.report.tables import line_of
from anchorinv.study.folder import RunFolder, write_record
from anchorinv.study.loading import load
from tests.models import SETTINGS, fitted, windows
from tests.report.made import made, smoke


def test_present_names_are_in_the_catalogue_and_former_ones_are_not():
    former = {old for spec in METHODS.values() for old in spec.former}
    assert former == {"spread"} and not former & set(METHODS)
    assert METHODS.name_of("spread") == "fecam" and METHODS.name_of("mine") == "mine"


def test_the_estimator_takes_it_with_a_warning_and_saves_the_present_one(tmp_path):
    model = AnchorInvClassifier(**{**SETTINGS, "method": "spread"})
    with pytest.warns(UserWarning, match="method 'spread' is called 'fecam' now") as caught:
        model.fit(*windows())
    assert len(caught) == 1 and caught[0].filename == __file__
    assert model.get_params()["method"] == "spread", "as scikit-learn wants it"
    model.partial_fit(*windows(10, classes=("tongue",), seed=1)).save(tmp_path / "m")
    assert read_facts(tmp_path / "m")[0].method == "fecam"
    X = windows(9, seed=5)[0]
    np.testing.assert_array_equal(model.predict_proba(X), fitted("fecam").predict_proba(X))


@pytest.mark.parametrize("method", ["fecam", "anchorinv-plus"])
def test_model_files_of_former_versions_are_read(method, tmp_path):
    fitted(method).save(tmp_path / "m")
    _, header, payload = read_container(tmp_path / "m")
    facts = json.loads(header)
    assert facts["state"]["head"]["kind"] == "mahalanobis"
    facts["state"]["head"]["kind"] = "spread"
    facts["method"] = {"fecam": "spread"}.get(method, method)
    assert load_tensors(payload)
    write_container(tmp_path / "old", json.dumps(facts).encode(), payload)
    model, X = AnchorInvClassifier.load(tmp_path / "old"), windows(9, seed=5)[0]
    assert model.method == method
    np.testing.assert_array_equal(model.predict_proba(X), fitted(method).predict_proba(X))


def test_configs_take_it():
    study = load("eeg-stress", methods=["protonet", "spread"])
    assert study.variants[""].methods == ("protonet", "fecam")
    with pytest.raises(ValueError, match="not distinct"):
        load("eeg-stress", methods=["fecam", "spread"])


def test_runs_and_records_are_read_and_go_on(tmp_path):
    study = smoke("eeg-stress", trials=2)
    run = RunFolder(made(tmp_path / "run", study))
    before = run.read().results
    record = write_record(run, tmp_path / "run.jsonl").path
    for path in (run.path / "config.json", run.results, record):
        text = path.read_text()
        assert '"fecam"' in text
        path.write_text(text.replace('"fecam"', '"spread"'))
    found = run.read()
    assert not found.damage and [r.method for r in found.results] == [r.method for r in before]
    made(tmp_path / "run", study, skip=lambda part: True)  # taken up under the present name
    (read,) = gather([record])
    (group,) = groups_of(read)
    assert not read.damage and not read.missing and "FeCAM" in group.lines
    assert line_of(read, group, "spread") == line_of(read, group, "fecam") == "FeCAM"

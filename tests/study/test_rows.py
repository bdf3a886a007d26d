"""The rows to compare with, through a study: computed, kept, taken up."""

import numpy as np
import pytest

from anchorinv.study.execute import run_study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import load
from anchorinv.study.scale import scaled

ROWS = ["fecam", "ranpac", "lda", "mdm", "discriminant"]


@pytest.mark.parametrize("config", ["eeg-motor-imagery", "ecg-beats"])
def test_a_study_of_them_is_computed_and_repeats(config, tmp_path):
    study = scaled(load(config, methods=ROWS), "smoke")
    assert study.reference == "discriminant"
    found = []
    for name in ("one", "other"):
        folder = tmp_path / name
        run_study(study, folder)
        run = RunFolder(folder)
        results = run.read().results
        assert {result.method for result in results} == set(ROWS)
        assert len({(r.base_seed, r.method, r.trial) for r in results}) == len(run.parts())
        found.append(results)
        run_study(study, folder)  # nothing is left to do
        assert len(run.read().results) == len(results)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.confusion, other.confusion)
    penalties = [r.facts["penalty"] for r in found[0] if r.method == "ranpac" and r.trial is None]
    assert penalties and all(penalty > 0 for penalty in penalties)

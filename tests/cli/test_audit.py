"""``anchorinv audit`` and ``train --privacy`` as a user runs them."""

import json

import numpy as np
import pytest

from anchorinv.core.privacy import Privacy
from anchorinv.datasets import synthetic
from anchorinv.estimator import AnchorInvClassifier

# Small sets and much noise, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:with this noise")

AUDIT = ("audit", "m.anchorinv", "--members", "members.npz", "--others")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with windows of six people, every other trial in each file, and a model of the first."""
    folder = tmp_path_factory.mktemp("audit")
    data = synthetic.emg(
        n_classes=2, n_subjects=6, n_sessions=1, n_per_class=8, n_chans=3, n_times=120, seed=0
    )
    parts = [np.arange(len(data.labels)) % 2 == start for start in (0, 1)]
    for some, name in zip(parts, ("members", "others"), strict=True):
        columns = {"y": data.labels[some], "subject": data.subjects[some], "sfreq": data.sfreq}
        np.savez(folder / f"{name}.npz", X=data.signals[some], **columns)
    model = AnchorInvClassifier(sfreq=data.sfreq, privacy=Privacy(4), random_state=0)
    model.fit(data.signals[parts[0]], data.labels[parts[0]]).save(folder / "m.anchorinv")
    return folder


@pytest.fixture
def main(run, made, monkeypatch):
    monkeypatch.chdir(made)
    return run


def test_audit_prints_a_table_and_json(main):
    code, table, _ = main(*AUDIT, "others.npz", "--shadows", 4, "-q")
    assert code == 0 and "membership" in table and "top-1 of 6 people" in table
    facts = json.loads(main(*AUDIT, "others.npz", "--shadows", 0, "-q", "--json")[1])
    assert {"attack", "target", "measure", "value", "low", "high", "chance", "n"} == set(facts["figures"][0])


def test_mistakes_end_in_a_sentence(main, made):
    code, _, err = main(*AUDIT, "nowhere.npz")
    assert code == 1 and "there is no nowhere.npz" in err
    code, _, err = main(*AUDIT, "others.npz", "--forget", "walking")
    assert code == 1 and "'walking' is not known; the model knows 0, 1" in err
    code, _, err = main("train", "members.npz", "-o", "n.anchorinv", "--privacy", "much")
    assert code == 1 and "aggregate or an epsilon" in err and not (made / "n.anchorinv").exists()


def test_info_tells_the_privacy(main):
    assert "privacy      epsilon 4, delta 1e-05 for each window" in main("info", "m.anchorinv")[1]


def test_train_takes_an_epsilon(main, made):
    words = ("train", "members.npz", "-o", "t.anchorinv", "--privacy", "4", "--seed", 0, "-q")
    assert main(*words)[0] == 0
    assert "epsilon 4, delta 1e-05 for each window" in main("info", "t.anchorinv")[1]


def test_train_puts_noise_on_anchors(main, made):
    words = ("train", "members.npz", "-o", "n.anchorinv", "--method", "fecam", "--epochs", 1, "--anchors", 1)
    assert main(*words, "--privacy", "8", "--seed", 0, "-q")[0] == 0
    text = " ".join(main("info", "n.anchorinv")[1].split())
    assert "anchors and class means are differentially private (epsilon 8, delta 1e-05" in text
    assert "with an epsilon of 1 for each window and one anchor of each class" in text

"""``anchorinv audit`` and ``train --privacy`` as a user runs them."""

import json

import numpy as np
import pytest

from anchorinv.datasets import synthetic
from tests.models import command


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with windows of six people, every other trial in each file, and a model of the first."""
    folder = tmp_path_factory.mktemp("audit")
    data = synthetic.emg(
        n_classes=2, n_subjects=6, n_sessions=1, n_per_class=8, n_chans=3, n_times=120, seed=0
    )
    for start, name in enumerate(("members", "others")):
        some = np.arange(len(data.labels)) % 2 == start
        columns = {"y": data.labels[some], "subject": data.subjects[some], "sfreq": data.sfreq}
        np.savez(folder / f"{name}.npz", X=data.signals[some], **columns)
    made = command(
        "train", "members.npz", "-o", "m.anchorinv", "--privacy", "4", "--seed", 0, "-q", cwd=folder
    )
    assert made.returncode == 0, made.stderr
    return folder


def test_audit_prints_a_table_and_json(place):
    asked = (
        "audit",
        "m.anchorinv",
        "--members",
        "members.npz",
        "--others",
        "others.npz",
        "--shadows",
        4,
        "-q",
    )
    table = command(*asked, cwd=place)
    assert table.returncode == 0, table.stderr
    assert "membership" in table.stdout and "top-1 of 6 people" in table.stdout
    facts = json.loads(command(*asked, "--json", cwd=place).stdout)
    assert {"attack", "target", "measure", "value", "low", "high", "chance", "n"} == set(facts["figures"][0])


def test_mistakes_end_in_a_sentence(place):
    asked = ("audit", "m.anchorinv", "--members", "members.npz", "--others")
    missing = command(*asked, "nowhere.npz", cwd=place)
    assert missing.returncode == 1 and "there is no nowhere.npz" in missing.stderr
    unknown = command(*asked, "others.npz", "--forget", "walking", cwd=place)
    assert unknown.returncode == 1 and "'walking' is not known; the model knows 0, 1" in unknown.stderr
    odd = command("train", "members.npz", "-o", "n.anchorinv", "--privacy", "much", cwd=place)
    assert odd.returncode == 1 and "aggregate or an epsilon" in odd.stderr
    assert not (place / "n.anchorinv").exists()


def test_info_tells_the_privacy(place):
    shown = command("info", "m.anchorinv", cwd=place).stdout
    assert "privacy      epsilon 4, delta 1e-05 for each window" in shown

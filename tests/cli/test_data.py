"""``anchorinv prepare``, ``download`` and ``data``: what they show, and one sentence for each mistake."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from anchorinv import AnchorInvClassifier, Geometry
from anchorinv.datasets import paper_sets, synthetic
from anchorinv.datasets.dataset import Dataset, draw_trials
from anchorinv.errors import pip_install
from tests.datasets import making
from tests.datasets.serving import serving
from tests.datasets.test_bci2a import LABELS, write_bnci, write_gdf
from tests.datasets.test_grabmyo import record
from tests.datasets.test_nhie import small_set

DOCS = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.fixture
def server():
    with serving() as server:
        yield server


def trials(path, n_sessions=3, **options):
    data = synthetic.emg(
        n_classes=4,
        n_subjects=1,
        n_sessions=n_sessions,
        n_per_class=12,
        n_chans=4,
        n_times=120,
        sfreq=500,
        seed=1,
    )
    split = np.where(data.sessions == data.sessions.max(), "test", "train")
    np.savez(
        path, X=data.signals, y=np.array(["rest", "fist", "open", "point"])[data.labels], sfreq=data.sfreq,
        ch_names=data.ch_names, session=data.sessions, split=split, **options,
    )  # fmt: skip
    return data


def test_own_trials_to_a_folder_to_a_model(run, tmp_path):
    made = trials(tmp_path / "own.npz")
    code, shown, _ = run("prepare", "own", "--npz", tmp_path / "own.npz", "--out", tmp_path / "own")
    assert code == 0 and "144 windows" in shown and "120 samples at 500 Hz" in shown
    data = Dataset.open(tmp_path / "own")
    base = (data.split == "train") & (data.labels < 3)
    names = np.array(data.class_names)[data.labels]
    small = Geometry(data.n_chans, data.n_times, kernel=5, pool=12, pool_stride=6, width=8, heads=2, depth=2)
    model = AnchorInvClassifier(random_state=0, epochs=2, inversion_steps=2, finetune_steps=2, geometry=small)
    model.fit(data.signals(base), names[base])
    new = np.flatnonzero((data.split == "train") & (data.labels == 3))[:10]
    model.partial_fit(data.signals(new), names[new])
    assert set(model.classes_) == set(data.class_names)
    assert (
        model.predict(data.signals(data.split == "test")).shape
        == (made.sessions == made.sessions.max()).sum()
    )


def test_the_three_sets(run, tmp_path):
    write_gdf(tmp_path / "gdf", "A01T")
    write_bnci(tmp_path / "bnci", "A01T")
    small_set(tmp_path / "nhie", seconds=60)
    record(tmp_path / "grabmyo", 3, 7, 4)
    options = ["--allow-missing", "--out"]
    code, shown, _ = run("prepare", "bci2a", "--raw", tmp_path / "gdf", *options, tmp_path / "1")
    assert code == 0 and "bci2a (gdf)" in shown and "51 missing samples, 1 rejected trials" in shown
    assert "A09E is missing" not in shown and "A01E is missing" in shown and "and 7 more" in shown
    conformer = ["--filter", "conformer", *options, tmp_path / "2"]
    code, shown, _ = run("prepare", "bci2a", "--raw", tmp_path / "bnci", *conformer)
    assert code == 0 and "bci2a (bnci)" in shown and "4-40 Hz, Chebyshev II, 60 dB" in shown
    code, shown, _ = run("prepare", "nhie", "--raw", tmp_path / "nhie", "--seed", 3, "--out", tmp_path / "3")
    assert code == 0 and "seed 3" in shown and "F4-C4" in shown
    code, shown, _ = run("prepare", "grabmyo", "--raw", tmp_path / "grabmyo", *options, tmp_path / "4")
    assert code == 0 and "grabmyo (wfdb)" in shown and "missing: session 1: participants 1-43" in shown


def test_the_two_sets_beyond_the_paper(run, tmp_path):
    making.emg_longterm(tmp_path / "emg_longterm.npz")
    making.eeg_stress(tmp_path / "eeg_stress.npz")
    code, shown, _ = run(
        "prepare", "emg-longterm", "--raw", tmp_path, "--out", tmp_path / "1", "--hold-out", "16-20"
    )
    assert code == 0 and "emg-longterm (npz)" in shown and "Apache-2.0" in shown and "20 windows" in shown
    assert "by day: 1-15 train, 16-20 test; held out from the training part, 21-30 left out" in shown
    code, shown, _ = run(
        "prepare", "eeg-stress", "--raw", tmp_path / "eeg_stress.npz", "--out", tmp_path / "2",
        "--filter", "1-40", "--zero-phase",
    )  # fmt: skip
    assert code == 0 and "eeg-stress (npz)" in shown and "research use" in shown and "144 windows" in shown
    assert "1-40 Hz, Butterworth of order 5, zero phase" in shown and "clipped at ±200 µV" in shown
    assert "common average reference" in shown
    code, _, err = run("prepare", "eeg-stress", "--raw", tmp_path, "--out", tmp_path / "3", "--hold-out", "3")
    assert code == 1 and "--hold-out takes a trial of 1-2" in err and not (tmp_path / "3").exists()


def test_heartbeats_and_imagined_movements(run, tmp_path):
    making.ecg_beats(tmp_path / "ecg_beats.npz")
    making.eeg_motor_imagery(tmp_path / "eeg_motor_imagery.npz")
    code, shown, _ = run("prepare", "ecg-beats", "--raw", tmp_path, "--out", tmp_path / "1")
    assert code == 0 and "ecg-beats (npz)" in shown and "ODC-BY 1.0" in shown and "12 windows" in shown
    assert "by sample: 0-433332 train, 433333-649999 test" in shown
    code, shown, _ = run(
        "prepare", "ecg-beats", "--raw", tmp_path, "--out", tmp_path / "2", "--hold-out", "290000-433332"
    )
    assert code == 0 and "0-289999 train, 290000-433332 test" in shown and "6 windows" in shown
    code, shown, _ = run(
        "prepare", "eeg-motor-imagery", "--raw", tmp_path, "--out", tmp_path / "3", "--hold-out", "8,10",
        "--filter", "8-30", "--zero-phase",
    )  # fmt: skip
    assert code == 0 and "eeg-motor-imagery (npz)" in shown and "32 windows" in shown
    assert "8-30 Hz, Butterworth of order 5, zero phase" in shown and "common average reference" in shown
    assert "4, 6 train, 8, 10 test; held out from the training part, 12, 14 left out" in shown
    code, _, err = run(
        "prepare", "eeg-motor-imagery", "--raw", tmp_path, "--out", tmp_path / "4", "--hold-out", "8,12"
    )
    assert code == 1 and "--hold-out takes a run of 4, 6, 8, 10" in err and not (tmp_path / "4").exists()


def test_own_recordings_with_all_options(run, tmp_path):
    lines = []
    for i in range(4):
        values = np.random.default_rng(i).integers(-3000, 3000, size=(3, 3000))
        making.edf(tmp_path / f"{i}.edf", values, ["C3", "Cz", "C4"], sfreq=100)
        lines.append(
            {"path": f"{i}.edf", "label": "ab"[i % 2], "subject": i, "split": ("train", "test")[i // 2]}
        )
    manifest = making.rows(tmp_path / "table.csv", *lines)
    code, shown, err = run(
        "prepare", "own", "--manifest", manifest, "--out", tmp_path / "out", "--channels", "C4, C3",
        "--filter", "1-20", "--filter-order", 3, "--zero-phase", "--resample", 50, "--window", 2,
        "--overlap", 0.5, "--at-least", 20,
    )  # fmt: skip
    assert code == 0, err
    steps = "1-20 Hz, Butterworth of order 3, zero phase, not causal; resampled to 50 Hz"
    assert steps in shown and "C4, C3" in shown
    code, shown, err = run("prepare", "own", "--manifest", manifest, "--out", tmp_path / "out")
    assert code == 1 and "already prepared; pass --replace" in err
    code, shown, err = run("prepare", "own", "--manifest", manifest, "--out", tmp_path / "out", "--replace")
    assert code == 1 and "\nanchorinv: " in err and "--allow few" in err
    assert len(Dataset.open(tmp_path / "out")) == 4 * 29, "what was there stays"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("prepare own --out out", "one of --manifest TABLE.csv, --npz FILE.npz, --recording FILE or"),
        ("prepare own --npz away.npz --out out", "away.npz does not exist"),
        ("prepare own --manifest away.csv --out out", "away.csv does not exist"),
        ("prepare own --npz a.npz --out out --filter loud", "a filter is written 0.5-40"),
        ("prepare bci2a --raw away --out out", "away is not a folder"),
        ("prepare nhie --raw away --out out", "away is not a folder"),
        ("prepare grabmyo --raw away --out out", "away is not a folder"),
        ("prepare emg-longterm --raw away --out out", "away does not exist; pass emg_longterm.npz"),
        ("prepare eeg-stress --raw away --out out", "away does not exist; pass eeg_stress.npz"),
        (
            "prepare eeg-stress --raw away --out out --filter 1-99",
            "is above the Nyquist frequency of a rate of 128 Hz",
        ),
        ("prepare eeg-motor-imagery --raw away --out out", "away does not exist; pass eeg_motor_imagery.npz"),
        ("prepare eeg-motor-imagery --raw away --out out --filter loud", "a filter is written 0.5-40"),
        ("prepare ecg-beats --raw away --out out", "away does not exist; pass ecg_beats.npz"),
        ("download mnist --to out", "known: bci2a, nhie, grabmyo"),
        ("data away", "away is not a prepared data set"),
    ],
)
def test_mistakes_end_in_a_sentence(run, tmp_path, words, message):
    code, _, err = run(*shlex.split(words))
    assert code == 1 and message in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_download_then_prepare(run, server, tmp_path):
    write_bnci(tmp_path / "there", "A01T")
    content = (tmp_path / "there" / "A01T.mat").read_bytes()
    server.files |= {f"A{i:02d}{s}.mat": content for i in range(1, 10) for s in "TE"}
    code, shown, err = run("download", "bci2a", "--to", tmp_path / "raw", "--from", server.url, "--pause", 0)
    assert code == 0, err
    size = f"{18 * len(content) / 1e6:.2f} MB"
    assert f"18 of 18 files to fetch, about {size}" in shown and "CC BY-ND 4.0" in shown
    code, shown, _ = run("prepare", "bci2a", "--raw", tmp_path / "raw", "--out", tmp_path / "out")
    assert code == 0 and "bci2a (bnci)" in shown
    server.files.pop("A05E.mat")
    (tmp_path / "raw" / "A05E.mat").unlink()
    code, _, err = run("download", "bci2a", "--to", tmp_path / "raw", "--from", server.url, "--pause", 0)
    assert code == 1 and "A05E.mat answered 404" in err


def test_data_shows_and_draws(run, tmp_path):
    trials(tmp_path / "own.npz")
    run("prepare", "own", "--npz", tmp_path / "own.npz", "--out", tmp_path / "own")
    code, shown, _ = run("data", tmp_path / "own")
    assert code == 0 and re.search(r"fist\s+│\s+24 │\s+12 │", shown) and "trials.png" in shown
    assert (tmp_path / "own" / "trials.png").read_bytes().startswith(b"\x89PNG")
    code, shown, _ = run("data", tmp_path / "own", "--picture", tmp_path / "p.svg")
    assert code == 0 and (tmp_path / "p.svg").read_text().startswith("<?xml")
    code, shown, _ = run("data", tmp_path / "own", "--no-picture", "--by-subject")
    assert code == 0 and "Picture" not in shown and re.search(r"│ 0\s+│ open\s+│ 24\s+│ 12\s+│", shown)
    code, _, err = run("data", tmp_path / "own", "--picture", tmp_path / "p.doc")
    assert code == 1 and "a picture is a .png, .pdf or .svg file" in err
    code, _, err = run("data", tmp_path / "own", "--picture", tmp_path / "own.npz" / "p.png")
    assert code == 1 and "choose a file with --picture" in err
    assert Dataset.open(tmp_path / "own").fingerprint, "a picture beside the data does not harm it"


@pytest.mark.parametrize(("n", "n_classes"), [(1, 1), (40, 20)])
def test_pictures_of_few_and_of_many(tmp_path, n, n_classes):
    rng = np.random.default_rng(0)
    labels = [f"class {i % n_classes}" for i in range(n)]
    data = Dataset.from_arrays(rng.normal(size=(n, 30, 64)), labels, sfreq=64, split=["train"] * n)
    draw_trials(data, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [("mne", "recordings", "prepare bci2a --raw gdf --out out --allow-missing"),
     ("wfdb", "recordings", "prepare grabmyo --raw grabmyo --out out --allow-missing"),
     ("pooch", "download", "download bci2a --to raw")],
)  # fmt: skip
def test_a_missing_extra_is_one_sentence(run, server, tmp_path, monkeypatch, library, extra, words):
    write_gdf(tmp_path / "gdf", "A01T")
    record(tmp_path / "grabmyo", 3, 7, 4)
    server.files |= {f"A{i:02d}{s}.mat": b"x" for i in range(1, 10) for s in "TE"}
    rng = np.random.default_rng(0)
    Dataset.from_arrays(rng.normal(size=(4, 2, 64)), list("abab"), sfreq=64, split=["train"] * 4).write(
        tmp_path / "own"
    )
    monkeypatch.setenv("ANCHORINV_MIRROR", server.url)
    monkeypatch.setitem(sys.modules, library, None)
    code, _, err = run(*shlex.split(words))
    assert (
        code == 1
        and f"{library} is needed for this and is not installed; {pip_install(f'anchorinv[{extra}]')}" in err
    )


def trials_at(path, *names, n=24):
    """Write a table of trials in turn, as BIDS has it."""
    rows = [f"{2 + 4 * i:g}\t2\t{names[i % len(names)]}" for i in range(n)]
    path.write_text("\n".join(["onset\tduration\ttrial_type", *rows]) + "\n")


def in_turn(values, sfreq):
    """Make every second trial of such a table quiet: two classes that are told apart without a network."""
    quiet = (np.arange(values.shape[1]) / sfreq - 2) // 4 % 2 == 1
    return np.where(quiet, values // 8, values)


def console(page):
    lines = "".join(re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.strip()]


def test_the_commands_of_the_page_run_as_written(run, server, tmp_path):
    names = [f"A{i:02d}{s}" for i in range(1, 10) for s in "TE"]
    for name in names:
        write_gdf(tmp_path / "raw/bci2a", name)
        making.labels(tmp_path / f"raw/bci2a/true_labels/{name}.mat", LABELS)
    small_set(tmp_path / "raw/nhie", seconds=60)
    record(tmp_path / "raw/grabmyo", 1, 1, 1)
    making.emg_longterm(tmp_path / "raw/emg_longterm.npz")
    making.eeg_stress(tmp_path / "raw/eeg_stress.npz")
    making.eeg_motor_imagery(tmp_path / "raw/eeg_motor_imagery.npz")
    making.ecg_beats(tmp_path / "raw/ecg_beats.npz")
    trials(tmp_path / "trials.npz")
    (tmp_path / "table.csv").write_text(re.search(r"```csv\n(.*?)```", DOCS, flags=re.DOTALL)[1])
    for i, name in enumerate(("anna-1", "anna-2", "bob-1")):
        values = in_turn(np.random.default_rng(i).integers(-3000, 3000, size=(3, 120 * 256)), 256)
        making.edf(tmp_path / "recordings" / f"{name}.edf", values, ["C3", "Cz", "C4"], sfreq=256)
        trials_at(tmp_path / "recordings" / f"{name}_events.tsv", "T1", "T2")
    for i in (1, 2):
        folder = tmp_path / f"sets/imagery/sub-{i:02d}/eeg"
        values = in_turn(np.random.default_rng(9 + i).integers(-3000, 3000, size=(3, 120 * 256)), 256)
        making.edf(folder / f"sub-{i:02d}_task-imagery_eeg.edf", values, ["C3", "Cz", "C4"], sfreq=256)
        trials_at(folder / f"sub-{i:02d}_task-imagery_events.tsv", "left", "right")
    ran = []
    for line in console(DOCS):
        words = shlex.split(line)
        assert words[0] == "anchorinv"
        if words[1] == "download":  # the public homes are not asked by tests
            continue
        code, _, err = run(*words[1:])
        assert code == 0, f"{line}: {err}"
        ran.append(words[1])
    assert set(ran) == {"prepare", "data", "events", "train", "evaluate"}


def test_stopping_is_no_accident(tmp_path, run, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    write_gdf(tmp_path / "raw", "A01T")
    monkeypatch.setattr(paper_sets, "plan_bci2a", stop)
    code, _, said = run("prepare", "bci2a", "--raw", "raw", "--out", "out")
    assert code == 130 and "run the same command again" in said


STUDY = """
title = "Own recordings"
methods = ["protonet"]

[data]
name = "mine"

[protocol]
base_classes = ["fist", "open", "point"]
sessions = ["rest"]
shots = 5
trials = 2

[training]
epochs = 1

[geometry]
n_chans = 4
n_times = 120
kernel = 5
pool = 12
pool_stride = 6
width = 8
heads = 2
depth = 2
"""


def test_a_study_runs_from_a_prepared_own_folder(run, tmp_path):
    trials(tmp_path / "own.npz")
    run("prepare", "own", "--npz", tmp_path / "own.npz", "--out", tmp_path / "own")
    (tmp_path / "mine.toml").write_text(STUDY)
    where = ("--data", tmp_path / "own", "--out", tmp_path / "run")
    code, _, err = run("run", tmp_path / "mine.toml", *where, "--threads", 1)
    assert code == 0, err
    lines = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 3, "the base session, and one session in each of two trials"


@pytest.mark.parametrize("words", ["--allow few,flat", "--allow few --allow flat", "--allow 'few, flat'"])
def test_several_problems_are_let_pass(words, tmp_path, run):
    X = np.random.default_rng(0).normal(size=(12, 2, 50))
    X[:, 1] = 3.0
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(12) % 2, sfreq=100)
    asked = ["prepare", "own", "--npz", tmp_path / "a.npz", "--out", tmp_path / "out"]
    code, _, err = run(*asked, "--allow", "few")
    assert code == 1 and "--allow flat" in err
    code, _, err = run(*asked, *shlex.split(words))
    assert code == 0, err
    code, _, err = run(*asked, "--replace", "--allow", "few,flatt")
    assert code == 1 and "--allow takes nan, flat" in err and "got flatt" in err

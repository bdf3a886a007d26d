"""GRABMyo: channels by name with their own gains, sessions on their sides, and what is missing is listed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import signal

from anchorinv.datasets.paper_sets import GRABMYO_CHANNELS, plan_grabmyo
from anchorinv.datasets.prepare import prepare
from anchorinv.errors import Problems
from tests.datasets import making
from tests.datasets.genuine import shared

NAMES = [*(f"F{i}" for i in range(1, 17)), "U1", *(f"W{i}" for i in range(1, 7)), "U2", "U3",
         *(f"W{i}" for i in range(7, 13)), "U4"]  # fmt: skip


def record(folder: Path, session: int, participant: int, gesture: int, trial: int = 1, **change):
    """Write a record; return its samples in mV, by channel name."""
    rng = np.random.default_rng([session, participant, gesture, trial])
    digital = rng.integers(-30000, 30000, size=(32, change.get("n_samples", 10240)))
    gains, baselines = rng.uniform(5e4, 1.2e5, size=32), rng.integers(-5000, 5000, size=32)
    digital[4, 100:110] = -32768  # what WFDB calls missing
    name = f"session{session}_participant{participant}_gesture{gesture}_trial{trial}"
    place = folder / f"Session{session}" / f"session{session}_participant{participant}"
    order = change.get("names", NAMES)
    making.wfdb_record(place, name, digital, order, gains, baselines, sfreq=change.get("sfreq", 2048))
    values = (digital - baselines[:, None]) / gains[:, None]
    return place / name, dict(zip(order, np.where(digital == -32768, 0, values), strict=True))


def test_channels_come_by_name_with_their_gain_and_at_256_hz(tmp_path):
    shuffled = [NAMES[i] for i in np.random.default_rng(1).permutation(32)]
    _, values = record(tmp_path / "raw", 1, 3, 2, names=shuffled)
    data = prepare(plan_grabmyo(tmp_path / "raw", allow_missing=True), tmp_path / "out")
    wanted = signal.resample(np.stack([values[name] for name in GRABMYO_CHANNELS]) * 1000, 1280, axis=1)
    np.testing.assert_allclose(data.signals([0])[0], wanted, atol=1e-2, rtol=1e-4)
    assert (data.n_times, data.sfreq, data.n_chans) == (1280, 256, 28)
    assert shuffled[4] in GRABMYO_CHANNELS and data.meta["counts"] == {"missing samples": 10}


def test_sessions_and_rest(tmp_path):
    for session in (1, 2, 3):
        for gesture in (1, 16, 17):
            record(tmp_path / "raw", session, 43, gesture)
    data = prepare(plan_grabmyo(tmp_path / "raw", allow_missing=True), tmp_path / "out")
    assert len(data) == 6 and [data.class_names[i] for i in np.unique(data.labels)] == [
        "gesture 1",
        "gesture 16",
    ]
    assert dict(zip(data.sessions.tolist(), data.split.tolist(), strict=True)) == {
        "1": "train", "2": "train", "3": "test"
    }  # fmt: skip
    assert set(data.subjects) == {"43"}


def test_what_is_missing_is_listed_and_accepted_when_allowed(tmp_path):
    path, _ = record(tmp_path, 1, 1, 1)
    record(tmp_path, 1, 1, 2)
    path.with_suffix(".dat").unlink()
    with pytest.raises(Problems) as error:
        plan_grabmyo(tmp_path)
    told = str(error.value)
    assert "session 1, participant 1: 111 of 112 records (gesture.trial 1.1, 1.2" in told
    assert " 2.1," not in told and "16.7)" in told
    assert "session 1: participants 2-43" in told and "session 2: participants 1-43" in told
    assert "--allow-missing" in told
    plan = plan_grabmyo(tmp_path, allow_missing=True)
    assert [source.name for source in plan.sources] == ["session1_participant1_gesture2_trial1"]
    assert any("participants 2-43" in sentence for sentence in plan.meta["missing"])


def test_a_record_in_two_folders_is_taken_once(tmp_path):
    record(tmp_path / "a", 1, 1, 1)
    record(tmp_path / "b", 1, 1, 1)
    plan = plan_grabmyo(tmp_path, allow_missing=True)
    assert [source.name for source in plan.sources] == ["session1_participant1_gesture1_trial1"]
    assert {path.suffix for path in plan.sources[0].files} == {".dat", ".hea"}


def test_broken_records_are_named_together(tmp_path):
    paths = [record(tmp_path, 1, 1, gesture)[0] for gesture in (1, 2, 3)]
    record(tmp_path, 1, 1, 4, sfreq=1024)
    record(tmp_path, 1, 1, 5, n_samples=5000)
    samples = bytearray(paths[0].with_suffix(".dat").read_bytes())
    samples[1000] ^= 1
    paths[0].with_suffix(".dat").write_bytes(samples)
    paths[1].with_suffix(".dat").write_bytes(samples[:2000])
    text = paths[2].with_suffix(".hea").read_text()
    paths[2].with_suffix(".hea").write_text(text.replace(" W3\n", " X3\n"))
    with pytest.raises(Problems, match="5 problems") as error:
        prepare(plan_grabmyo(tmp_path, allow_missing=True), tmp_path / "out")
    told = str(error.value)
    assert "do not fit the checksum" in told and "is it damaged or cut short?" in told
    assert (
        "lacks 1 of 28 channels: W3" in told
        and "1024.0 Hz, expected 2048" in told
        and "2.4 s, expected 5 s" in told
    )


def test_mistakes_are_told(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        plan_grabmyo(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="anchorinv download grabmyo"):
        plan_grabmyo(tmp_path)


def test_genuine_records(tmp_path):
    folder = shared("grabmyo_sample")
    data = prepare(plan_grabmyo(folder, allow_missing=True), tmp_path / "out")
    assert len(data) == 10 and data.n_times == 1280 and data.ch_names == GRABMYO_CHANNELS
    windows = data.signals(np.arange(10))
    assert np.isfinite(windows).all() and 1 < windows.std() < 1000  # µV
    assert (windows.std(axis=2) > 0).all()
    assert data.meta["counts"] == {"missing samples": 0}
    # A record by hand, from its header and its bytes.
    path = folder / "Session1/session1_participant1/session1_participant1_gesture10_trial1.dat"
    raw = np.fromfile(path, "<i2").reshape(10240, 32)
    first = (raw[:, 0] - 4352.0) / 109223.81106521016 * 1000
    gesture = int(np.flatnonzero(data.recordings == path.stem)[0])
    np.testing.assert_allclose(windows[gesture, 0], signal.resample(first, 1280), atol=1e-3)


def test_a_genuine_record_cut_short_is_named(tmp_path):
    shutil.copytree(shared("grabmyo_sample"), tmp_path / "raw", copy_function=shutil.copyfile)
    victim = next((tmp_path / "raw").rglob("*gesture12_trial1.dat"))
    victim.write_bytes(victim.read_bytes()[:-100])
    with pytest.raises(ValueError, match="gesture12_trial1"):
        prepare(plan_grabmyo(tmp_path / "raw", allow_missing=True), tmp_path / "out")

"""NHIE: either form and either rate give the same windows; a baby is never on both sides."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal
from sklearn.model_selection import StratifiedGroupKFold

from anchorinv.datasets.paper_sets import NHIE_PAIRS, plan_nhie
from anchorinv.datasets.prepare import grouped_split, prepare
from anchorinv.errors import Problems
from tests.datasets import making

NAMES = ["F3", "F4", "C3", "C4", "Cz", "T3", "T4", "O1", "O2"]


def grades(folder: Path, entries, *, name="metadata.csv") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_ID", "baby_ID", "grade", "sampling_freq", "reference"])
        table.writerows([[*entry, "average"] for entry in entries])


def digital(seconds=150, sfreq=256, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-3000, 3000, size=(9, seconds * sfreq))


def small_set(folder: Path, *, n_babies=5, seconds=150, sfreqs=(256, 200)) -> None:
    entries = []
    for baby in range(1, n_babies + 1):
        sfreq = sfreqs[baby % len(sfreqs)]
        name = f"ID{baby:02d}_epoch1"
        making.edf(
            folder / "EDF_format" / f"{name}.edf", digital(seconds, sfreq, seed=baby), NAMES, sfreq=sfreq
        )
        entries.append((name, f"ID{baby:02d}", 1 + baby % 2, sfreq))
    grades(folder, entries)


def test_windows_are_pairs_filtered_and_resampled_as_scipy_does(tmp_path):
    small_set(tmp_path / "raw")
    data = prepare(plan_nhie(tmp_path / "raw"), tmp_path / "out")
    assert (data.n_times, data.sfreq, data.ch_names) == (3840, 64, NHIE_PAIRS)
    assert data.class_names == ("grade 1", "grade 2", "grade 3", "grade 4")
    assert len(data) == 5 * 4  # 150 s: windows at 0, 30, 60 and 90 s
    for baby, sfreq in ((1, 200), (2, 256)):
        values = making.edf_values(digital(sfreq=sfreq, seed=baby))
        place = {name: i for i, name in enumerate(NAMES)}
        pairs = np.stack([values[place[a]] - values[place[b]] for a, b in (p.split("-") for p in NHIE_PAIRS)])
        sections = signal.butter(5, [0.5, 30], "bandpass", fs=sfreq, output="sos")
        wanted = signal.resample(signal.sosfilt(sections, pairs), 150 * 64, axis=1)
        mine = np.flatnonzero(data.subjects == f"ID{baby:02d}")
        for k, window in enumerate(data.signals(mine)):
            np.testing.assert_allclose(window, wanted[:, k * 1920 : k * 1920 + 3840], atol=2e-3)


def test_csv_and_edf_forms_agree(tmp_path):
    small_set(tmp_path / "edf", n_babies=3, seconds=60)
    for path in (tmp_path / "edf" / "EDF_format").glob("*.edf"):
        baby = int(path.name[2:4])
        sfreq = (256, 200)[baby % 2]
        values = making.edf_values(digital(60, sfreq, seed=baby))
        making.table_xz(tmp_path / "csv" / "CSV_format" / f"{path.stem}.csv.xz", values, NAMES, sfreq)
    (tmp_path / "csv" / "eeg_grades.csv").write_text((tmp_path / "edf" / "metadata.csv").read_text())
    one = prepare(plan_nhie(tmp_path / "edf"), tmp_path / "one")
    other = prepare(plan_nhie(tmp_path / "csv"), tmp_path / "other")
    np.testing.assert_allclose(
        one.signals(np.arange(len(one))), other.signals(np.arange(len(one))), atol=0.05, rtol=1e-3
    )
    assert one.split.tolist() == other.split.tolist() and one.labels.tolist() == other.labels.tolist()
    assert (one.meta["form"], other.meta["form"]) == ("edf", "csv")


def test_electrodes_are_found_under_their_usual_names(tmp_path):
    names = [f"EEG {name.upper()}-Ref" for name in NAMES]
    for baby in (1, 2):
        making.edf(tmp_path / f"ID0{baby}_epoch1.edf", digital(60, seed=baby), names, sfreq=256)
    grades(tmp_path, [("ID01_epoch1", "1", 1, 256), ("ID02_epoch1", "2", 1, 256)])
    assert len(prepare(plan_nhie(tmp_path), tmp_path / "out")) == 2


def test_the_published_fold_and_a_seed(tmp_path):
    rng = np.random.default_rng(0)
    babies = [f"ID{b:02d}" for b in range(53) for _ in range(1 + b % 4)]
    given_grades = [str(g) for g in rng.choice([1, 2, 3, 4], size=len(babies), p=[0.6, 0.2, 0.12, 0.08])]
    wanted = next(StratifiedGroupKFold(5).split(babies, given_grades, babies))[1]
    assert np.flatnonzero(grouped_split(given_grades, babies) == "test").tolist() == wanted.tolist()
    assert 0.1 < len(wanted) / len(babies) < 0.3
    seeded = grouped_split(given_grades, babies, seed=3)
    assert (seeded == grouped_split(given_grades, babies, seed=3)).all()
    assert (seeded != grouped_split(given_grades, babies)).any()


#: The pairs as the paper's text lists them.
TEXT = ("F3-C3", "T3-C3", "O1-C3", "C3-Cz", "Cz-C4", "F4-C4", "T4-C4", "O2-C4")


def test_pairs_are_those_of_the_text_in_another_order_and_five_with_another_sign():
    turned = [pair for pair in NHIE_PAIRS if pair not in TEXT]
    assert turned == ["C4-O2", "C3-O1", "C4-Cz", "Cz-C3", "C3-T3"]
    back = {"-".join(reversed(pair.split("-"))) if pair in turned else pair for pair in NHIE_PAIRS}
    assert back == set(TEXT) and len(NHIE_PAIRS) == 8
    method = (Path(__file__).parents[2] / "docs" / "method.md").read_text()
    assert ", ".join(NHIE_PAIRS) in method and ", ".join(TEXT) in method


def sides(folder: Path, written) -> list[str]:
    """The side of each recording of 53 babies, whose names are written so."""
    rng = np.random.default_rng(4)
    babies = [b for b in range(1, 54) for _ in range(rng.integers(1, 6))]
    epochs = [babies[:i].count(b) + 1 for i, b in enumerate(babies)]
    table = [
        (f"{written(b)}_epoch{e}", written(b), rng.choice([1, 2, 3, 4], p=[0.6, 0.2, 0.12, 0.08]), 256)
        for b, e in zip(babies, epochs, strict=True)
    ]
    grades(folder, rng.permutation(np.array(table, dtype=object)).tolist())
    for name, *_ in table:
        (folder / f"{name}.edf").write_bytes(b"")
    found = {source.name: source.read.args[2] for source in plan_nhie(folder).sources}
    assert list(found) == [name for name, *_ in table], "in the order of their numbers"
    given = [str(grade) for _, _, grade, _ in table]
    wanted = next(StratifiedGroupKFold(5).split(babies, given, babies))[1]
    assert [i for i, side in enumerate(found.values()) if side == "test"] == wanted.tolist()
    return list(found.values())


def test_babies_are_split_in_the_order_of_their_numbers_however_they_are_written(tmp_path):
    ways = [str, "ID{:02d}".format, "ID{}".format, "ID{:030d}".format]
    found = [sides(tmp_path / str(i), written) for i, written in enumerate(ways)]
    assert found[1:] == found[:-1]


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=6, max_size=40).filter(
        lambda rows: len({baby for _, baby in rows}) > 1 and len({grade for grade, _ in rows}) < len(rows)
    ),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_a_baby_is_never_on_both_sides(recordings, seed):
    babies = [f"ID{baby}" for _, baby in recordings]
    split = grouped_split([str(grade) for grade, _ in recordings], babies, seed=seed)
    train = {baby for baby, side in zip(babies, split, strict=True) if side == "train"}
    test = {baby for baby, side in zip(babies, split, strict=True) if side == "test"}
    assert train and test and not train & test


def test_one_baby_cannot_be_split():
    with pytest.raises(ValueError, match=r"two groups or more .*, got 1"):
        grouped_split(["1", "2"], ["a", "a"])


def test_what_is_missing_is_listed(tmp_path):
    small_set(tmp_path)
    (tmp_path / "EDF_format" / "ID02_epoch1.edf").rename(tmp_path / "EDF_format" / "ID99_epoch1.edf")
    with pytest.raises(Problems) as error:
        plan_nhie(tmp_path)
    assert "ID02_epoch1 is in metadata.csv but not in the folder" in str(error.value)
    assert "ID99_epoch1.edf has no grade" in str(error.value)
    assert len(plan_nhie(tmp_path, allow_missing=True).sources) == 4


def test_a_partial_download_tests_on_the_same_babies(tmp_path):
    lines = [(f"ID{i:02d}_epoch1", str(i), 1 + i % 4, 256) for i in range(1, 21)]
    grades(tmp_path, lines)
    for name, *_ in lines:
        (tmp_path / f"{name}.edf").write_bytes(b"")

    def tested(plan):
        return {source.name for source in plan.sources if source.read.args[2] == "test"}

    whole = tested(plan_nhie(tmp_path))
    (tmp_path / "ID01_epoch1.edf").unlink()
    assert tested(plan_nhie(tmp_path, allow_missing=True)) == whole - {"ID01_epoch1"}


def test_mistakes_are_told(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        plan_nhie(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"metadata\.csv or eeg_grades\.csv"):
        plan_nhie(tmp_path)
    (tmp_path / "metadata.csv").write_text("file,baby_ID,grade\nx,1,1\n")
    with pytest.raises(ValueError, match="has no column file_ID"):
        plan_nhie(tmp_path)
    grades(tmp_path, [("ID01_epoch1", "1", 7, 256), ("ID02_epoch1", "", 1, 256)])
    with pytest.raises(Problems, match="2 problems") as error:
        plan_nhie(tmp_path)
    assert "grade '7'" in str(error.value) and "no baby_ID" in str(error.value)


def test_a_cell_without_end_is_a_sentence(tmp_path):
    (tmp_path / "metadata.csv").write_text(f'file_ID,baby_ID,grade\nID01_epoch1,"{"1" * 200_000}",1\n')
    with pytest.raises(ValueError, match=r"metadata\.csv is not a table \(field larger than"):
        plan_nhie(tmp_path)


def test_problems_of_several_recordings_are_told_together(tmp_path):
    small_set(tmp_path / "raw")
    folder = tmp_path / "raw" / "EDF_format"
    (folder / "ID01_epoch1.edf").write_bytes((folder / "ID01_epoch1.edf").read_bytes()[:9000])
    making.edf(folder / "ID03_epoch1.edf", digital(40, 200), NAMES, sfreq=200)
    making.edf(folder / "ID04_epoch1.edf", digital(60, 256)[:8], NAMES[:8], sfreq=256)
    making.edf(folder / "ID05_epoch1.edf", digital(60, 100), NAMES, sfreq=100)
    with pytest.raises(Problems) as error:
        prepare(plan_nhie(tmp_path / "raw"), tmp_path / "out")
    told = str(error.value)
    assert "4 problems" in told and "cut short: its header declares" in told and "a window takes 60 s" in told
    assert "lacks 1 of 9 channels: O2" in told and "100.0 Hz, the table says 200.0" in told
    assert not (tmp_path / "out").exists()

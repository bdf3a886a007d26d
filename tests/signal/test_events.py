"""Labels from the recording itself: every place that events stand in, and the stretches that they mean."""

import random
import re
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.signal import events, headers
from anchorinv.signal.events import (
    Event,
    Segment,
    events_beside,
    find_events,
    labelled_parts,
    parse_events,
    read_event_table,
    read_events,
    segments_of,
)
from tests.campaigns.damage import damaged
from tests.datasets import making
from tests.datasets.genuine import shared
from tests.datasets.notes import edf_plus
from tests.recording_files import write_edf, write_wfdb

mne = pytest.importorskip("mne")
wfdb = pytest.importorskip("wfdb")
NOISE = 1e-5 * np.random.default_rng(0).normal(size=(4, 128 * 10))
NAMES = ["C3", "C4", "Cz", "Pz"]


def note(onset, label, duration=None):
    lasting = b"" if duration is None else f"\x15{duration}".encode()
    return f"{onset:+g}".encode() + lasting + b"\x14" + label.encode() + b"\x14\x00"


def notes(*events, n_records=10, first=0.0):
    """What stands in each record of a second: its time, and in the first one all events."""
    times = [f"{first + i:+g}".encode() + b"\x14\x14\x00" for i in range(n_records)]
    return [times[0] + b"".join(note(*event) for event in events), *times[1:]]


def as_tuples(events):
    return [(event.onset, event.duration, event.label) for event in events]


class TestGenuine:
    def test_edf_plus(self):
        folder = shared("eegmmidb_sample")
        read = find_events(folder / "S001R04.edf")
        assert read.source == "annotations" and len(read.events) == 30
        assert Counter(event.label for event in read.events) == {"T0": 15, "T1": 8, "T2": 7}
        assert as_tuples(read.events[:3]) == [(0.0, 4.2, "T0"), (4.2, 4.1, "T2"), (8.3, 4.2, "T0")]
        second = Counter(event.label for event in read_events(folder / "S001R06.edf"))
        assert second == {"T0": 15, "T1": 7, "T2": 8}

    def test_stretches_of_edf_plus(self):
        events = read_events(shared("eegmmidb_sample") / "S001R04.edf")
        wanted = parse_events("T1=left,T2=right")
        parts, n_outside = labelled_parts(events, wanted, 0, 3, name="S001R04.edf", length=125.0)
        assert Counter(part.label for part in parts) == {"left": 8, "right": 7} and n_outside == 0
        assert parts[0] == Segment(4.2, 7.2, "right")
        # The last one, of rest, goes on to 124.6 s as its own duration says.
        rest, _ = labelled_parts(events, {"T0": "rest"}, name="S001R04.edf", length=125.0)
        assert {round(part.stop - part.start, 6) for part in rest} == {4.2}

    @pytest.mark.parametrize("name", ["100", "100.hea", "100.dat", "100.atr"])
    def test_wfdb(self, name):
        read = find_events(shared("mitdb_sample") / name)
        assert read.source == "100.atr" and len(read.events) == 2274
        assert Counter(event.label for event in read.events) == {"N": 2239, "A": 33, "V": 1, "(N": 1}
        assert read.events[1] == Event(77 / 360, 0.0, "N")

    def test_another_record(self):
        counts = Counter(event.label for event in read_events(shared("mitdb_sample") / "119.hea"))
        assert counts["V"] == 444 and counts["(B"] == 37 and counts["+"] == 0


class TestAnnotations:
    def test_edf_plus_by_onset_and_stripped(self, tmp_path):
        path = edf_plus(tmp_path / "r.edf", notes((5, " T2 ", 1.5), (2, "T1"), (3, "  ")))
        assert as_tuples(read_events(path)) == [(2.0, 0.0, "T1"), (5.0, 1.5, "T2")]

    def test_a_recording_that_starts_within_a_second(self, tmp_path):
        path = edf_plus(tmp_path / "r.edf", notes((2.25, "T1"), first=0.25))
        assert as_tuples(read_events(path)) == [(2.0, 0.0, "T1")]

    @pytest.mark.parametrize("dated", [False, True])
    def test_fif_counts_from_its_first_sample(self, tmp_path, dated):
        info = mne.create_info(NAMES, 128.0, "eeg")
        raw = mne.io.RawArray(NOISE, info, first_samp=640, verbose="error")
        if dated:
            raw.set_meas_date(1_600_000_000)
        raw.set_annotations(mne.Annotations([1.0, 3.5], [0.5, 0.0], ["go", "stop"]))
        raw.save(tmp_path / "r_raw.fif", verbose="error")
        assert as_tuples(read_events(tmp_path / "r_raw.fif")) == [(1.0, 0.5, "go"), (3.5, 0.0, "stop")]

    @pytest.mark.parametrize("version", ["1.25", "2.20"])
    def test_gdf(self, tmp_path, version):
        path = tmp_path / "r.gdf"
        making.gdf(path, np.zeros((4, 1000), int), [(250, 768), (500, 769)], sfreq=250, version=version)
        assert as_tuples(read_events(path)) == [(1.0, 0.0, "768"), (2.0, 0.0, "769")]

    def test_brainvision(self, tmp_path):
        path = tmp_path / "r.vhdr"
        making.brainvision(path, 1e6 * NOISE, NAMES)
        with path.with_suffix(".vmrk").open("a") as file:
            file.write("Mk2=Stimulus,S  1,257,1,0\nMk3=Response,R  2,513,1,0\n")
        markers = [event for event in read_events(path) if "Segment" not in event.label]
        assert {event.duration for event in markers} == {0.0}
        assert [(event.onset, event.label) for event in markers] == [
            (2.0, "Stimulus/S  1"),
            (4.0, "Response/R  2"),
        ]

    def test_too_many(self, tmp_path, monkeypatch):
        path = edf_plus(tmp_path / "r.edf", notes((1, "a"), (2, "b"), (3, "c")))
        raw = mne.io.RawArray(NOISE, mne.create_info(NAMES, 128.0, "eeg"), verbose="error")
        raw.set_annotations(mne.Annotations([1.0, 2.0, 3.0], 0.5, "go"))
        raw.save(tmp_path / "r_raw.fif", verbose="error")
        monkeypatch.setattr(headers, "MAX_EVENTS", 2)
        with pytest.raises(ValueError, match=r"r.edf has a damaged header \(.* too many"):
            read_events(path)
        with pytest.raises(ValueError, match=r"r_raw.fif has more than 2 annotations"):
            read_events(tmp_path / "r_raw.fif")

    def test_without_events(self, tmp_path):
        read = find_events(write_edf(tmp_path / "r.edf", NOISE, NAMES, 128))
        assert read == events.Events("", ())

    @pytest.mark.parametrize("name", ["r.csv", "r.csv.gz", "r.npy", "r.npz"])
    def test_formats_without_events(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ValueError, match=r"a format without events; list them in r_events.tsv"):
            read_events(tmp_path / name)
        (tmp_path / "r_events.tsv").write_text("onset\ttrial_type\n1\tgo\n")
        assert as_tuples(read_events(tmp_path / name)) == [(1.0, 0.0, "go")]

    def test_another_format(self, tmp_path):
        (tmp_path / "notes.txt").write_text("T1 at 4 s")
        with pytest.raises(ValueError, match=r"notes\.txt has an unknown format; known formats: .*EDF"):
            find_events(tmp_path / "notes.txt")

    def test_no_file(self, tmp_path):
        for name in ("r.edf", "r", "r.atr"):
            with pytest.raises(FileNotFoundError, match="there is no recording"):
                read_events(tmp_path / name)


class TestWfdb:
    def record(self, folder, **annotators):
        path = write_wfdb(folder / "r", NOISE, NAMES, 128)
        for extension, options in annotators.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wfdb.wrann("r", extension, write_dir=str(folder), **options)
        return path

    def test_the_annotators_own_rate_counts(self, tmp_path):
        beats = {"sample": np.array([256, 512]), "symbol": ["N", "V"]}
        path = self.record(tmp_path, atr=beats | {"fs": 256})
        assert as_tuples(read_events(path)) == [(1.0, 0.0, "N"), (2.0, 0.0, "V")]
        path = self.record(tmp_path, atr=beats)
        assert [event.onset for event in read_events(path)] == [2.0, 4.0]

    def test_texts_say_more_than_their_symbols(self, tmp_path):
        notes_ = {"sample": np.array([1, 2, 3, 4]), "symbol": ["+", '"', "+", "N"]}
        path = self.record(tmp_path, atr=notes_ | {"aux_note": ["(AFIB\0", "sleep 2", "", "loud"]})
        assert [event.label for event in read_events(path)] == ["(AFIB", "sleep 2", "+", "N"]

    def test_the_reference_the_only_one_or_the_one_asked_for(self, tmp_path):
        beats = {"sample": np.array([1]), "symbol": ["N"]}
        path = self.record(tmp_path, qrs=beats)
        assert find_events(path).source == "r.qrs"
        self.record(tmp_path, ecg=beats)
        with pytest.raises(ValueError, match=r"several files of annotations, r.ecg, r.qrs; name one"):
            find_events(path)
        assert find_events(tmp_path / "r.ecg").source == "r.ecg"
        self.record(tmp_path, atr=beats)
        assert find_events(path).source == "r.atr"

    def test_none(self, tmp_path):
        assert read_events(self.record(tmp_path)) == []

    def test_codes_without_a_symbol(self, tmp_path):
        path = self.record(tmp_path)
        path.with_suffix(".atr").write_bytes(bytes([5, 45 << 2, 9, 1 << 2, 0, 0]))
        assert [event.label for event in read_events(path)] == ["45", "N"]

    def test_too_much(self, tmp_path, monkeypatch):
        path = self.record(tmp_path, atr={"sample": np.arange(1, 9), "symbol": ["N"] * 8})
        monkeypatch.setattr(headers, "MAX_BEATS", 7)
        with pytest.raises(ValueError, match=r"r.hea has more than 7 events"):
            read_events(path)
        monkeypatch.setattr(events, "_MAX_WFDB_BYTES", 10)
        with pytest.raises(ValueError, match=r"r.atr has \d+ bytes, and at most 10 are read"):
            read_events(path)


def codes(n=1280):
    """Pulses, levels that change without a pause, and one at the very end."""
    channel = np.zeros(n, dtype=np.int64)
    channel[:5], channel[100:110], channel[300:500], channel[500:700], channel[900], channel[-1] = (
        9,
        1,
        3,
        2,
        7,
        4,
    )
    return channel


def oracle(path, reader, **options):
    raw = reader(path, verbose="error")
    codes = mne.find_events(raw, consecutive=True, shortest_event=1, verbose="error", **options)
    return [((sample - raw.first_samp) / raw.info["sfreq"], str(code)) for sample, _, code in codes]


@pytest.mark.filterwarnings("ignore")
class TestStimulus:
    @pytest.mark.parametrize("piece", [1 << 22, 1000, 5])
    def test_bdf_status_as_mne_finds_it(self, tmp_path, monkeypatch, piece):
        monkeypatch.setattr(events, "PIECE", piece)
        status = codes() + (1 << 16) * (np.arange(1280) // 400 % 2)  # the amplifier's bits change too
        digital = np.vstack([np.random.default_rng(0).integers(-999, 999, (3, 1280)), status])
        path = tmp_path / "r.bdf"
        making.edf(path, digital, ["A1", "A2", "A3", "Status"], sfreq=128, bdf=True)
        read = find_events(path)
        expected = oracle(path, mne.io.read_raw_bdf, mask=0xFFFF, mask_type="and")
        assert [(event.onset, event.label) for event in read.events] == expected
        assert read.source == "stimulus channel Status" and len(expected) == 5
        assert {event.duration for event in read.events} == {0.0}

    def test_edf_channel_by_its_name(self, tmp_path):
        path = tmp_path / "r.edf"
        digital = np.vstack([np.random.default_rng(0).integers(-999, 999, (2, 1280)), codes()])
        making.edf(path, digital, ["C3", "C4", "STI 014"], sfreq=128, limit=32768.0)
        # As recorders write it: a digital step is one in the unit.
        path.write_bytes(path.read_bytes().replace(b"32768.0 ", b"32767   "))
        assert [event.label for event in read_events(path)] == ["1", "3", "2", "7", "4"]
        assert find_events(path).source == "stimulus channel STI 014"

    def test_fif_takes_the_composite_channel(self, tmp_path):
        kinds = ["eeg", "stim", "stim"]
        info = mne.create_info(["C3", "STI 001", "STI 014"], 128.0, kinds)
        values = np.vstack([NOISE[0], 5 * (codes() > 0), codes()])
        mne.io.RawArray(values, info, first_samp=77, verbose="error").save(tmp_path / "r_raw.fif")
        pairs = [(event.onset, event.label) for event in read_events(tmp_path / "r_raw.fif")]
        assert pairs == oracle(tmp_path / "r_raw.fif", mne.io.read_raw_fif, stim_channel="STI 014")

    def test_annotations_come_first(self, tmp_path):
        info = mne.create_info(["C3", "STI 014"], 128.0, ["eeg", "stim"])
        raw = mne.io.RawArray(np.vstack([NOISE[0], codes()]), info, verbose="error")
        raw.set_annotations(mne.Annotations([1.0], [0.0], ["go"]))
        raw.save(tmp_path / "r_raw.fif")
        assert find_events(tmp_path / "r_raw.fif").source == "annotations"

    def test_a_channel_that_is_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr(headers, "MAX_EVENTS", 100)
        write_edf(tmp_path / "r.edf", NOISE, ["C3", "C4", "Cz", "Trigger 1"], 128)
        with pytest.raises(ValueError, match=r"r.edf has more than 100 events"):
            read_events(tmp_path / "r.edf")


class TestTables:
    @pytest.mark.parametrize(
        ("name", "table"),
        [
            ("sub-01_task-rest_eeg.edf", "sub-01_task-rest_events.tsv"),
            ("sub-01_task-rest_emg.bdf", "sub-01_task-rest_events.tsv"),
            ("anna.2.edf", "anna.2_events.tsv"),
            ("x_raw.fif.gz", "x_events.tsv"),
            ("100", "100_events.tsv"),
        ],
    )
    def test_belongs_by_its_name(self, tmp_path, name, table):
        assert events_beside(tmp_path / name) is None
        (tmp_path / table).touch()
        assert events_beside(tmp_path / name) == tmp_path / table

    def test_not_that_of_another(self, tmp_path):
        (tmp_path / "day_events.tsv").touch()
        assert events_beside(tmp_path / "day_2.edf") is None

    def test_goes_before_annotations_unless_it_is_empty(self, tmp_path):
        path = edf_plus(tmp_path / "a_eeg.edf", notes((2, "T1")))
        table = tmp_path / "a_events.tsv"
        table.write_text("onset\tduration\ttrial_type\n")
        assert find_events(path).source == "annotations"
        table.write_text("onset\tduration\ttrial_type\n5\t1\tright\n1.5\tn/a\tleft\n")
        read = find_events(path)
        assert read.source == "a_events.tsv"
        assert as_tuples(read.events) == [(1.5, 0.0, "left"), (5.0, 1.0, "right")]

    @pytest.mark.parametrize(
        ("text", "labels"),
        [
            ("onset\tvalue\n1\t7\n2\t8\n", ["7", "8"]),
            ("onset\ttrial_type\tvalue\n1\tn/a\t7\n2\tn/a\t8\n", ["7", "8"]),
            ("onset\ttrial_type\tvalue\n1\tgo\t7\n2\tn/a\t8\n", ["go"]),
            ("Onset\tTrial_Type\r\n-1\t go \r\n", ["go"]),
            ("onset\tvalue\n", []),
        ],
    )
    def test_names_of_events(self, tmp_path, text, labels):
        (tmp_path / "a_events.tsv").write_text(text)
        assert [event.label for event in read_event_table(tmp_path / "a_events.tsv")] == labels

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("onset,trial_type\n1,go\n", "has no column onset; its first line names onset,trial_type"),
            ("onset\tduration\n1\t2\n", "has neither a column trial_type nor value"),
            ("onset\ttrial_type\n1\tgo\nsoon\tgo\n", "line 3: onset is a number of seconds, got 'soon'"),
            ("onset\tduration\tvalue\n1\tlong\tgo\n", "line 2: duration is a number of seconds"),
            ("onset\tvalue\nnan\tgo\n", "at nan s"),
            ("onset\tduration\tvalue\n1\t-2\tgo\n", "for -2.0 s"),
            ("onset\tvalue\n1e300\tgo\n", "is impossible"),
        ],
    )
    def test_what_is_wrong(self, tmp_path, text, words):
        (tmp_path / "a_events.tsv").write_text(text)
        with pytest.raises(ValueError, match=r"a_events.tsv") as error:
            read_event_table(tmp_path / "a_events.tsv")
        assert words in str(error.value) and "\n" not in str(error.value)

    def test_too_many(self, tmp_path, monkeypatch):
        monkeypatch.setattr(headers, "MAX_BEATS", 2)
        (tmp_path / "a_events.tsv").write_text("onset\tvalue\n" + "1\tgo\n" * 3)
        with pytest.raises(ValueError, match="more than 2 events"):
            read_event_table(tmp_path / "a_events.tsv")


class TestParse:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("T1=left,T2=right", {"T1": "left", "T2": "right"}),
            (" T1 , T2 = right ", {"T1": "T1", "T2": "right"}),
            ("N=normal,L=normal", {"N": "normal", "L": "normal"}),
            (r"a\,b=x,c\=d,e\\", {"a,b": "x", "c=d": "c=d", "e\\": "e\\"}),
            ("Stimulus/S  1=go", {"Stimulus/S  1": "go"}),
            ("a\\", {"a\\": "a\\"}),
        ],
    )
    def test_sound(self, text, wanted):
        assert parse_events(text) == wanted

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no name may be empty"),
            ("T1,,T2", "no name may be empty"),
            ("T1=", "no name may be empty"),
            ("=left", "no name may be empty"),
            ("T1=a=b", r"part of a name is \="),
            ("T1=a,T1=b", "names 'T1' twice"),
        ],
    )
    def test_mistakes(self, text, words):
        with pytest.raises(ValueError, match="--events") as error:
            parse_events(text)
        assert words in str(error.value)

    @given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), min_size=1, max_size=4))
    def test_any_name_can_be_written(self, wanted):
        wanted = {
            key.strip(): value.strip() for key, value in wanted.items() if key.strip() and value.strip()
        }
        escaped = [[re.sub(r"([\\,=])", r"\\\1", name) for name in pair] for pair in wanted.items()]
        if wanted:
            assert parse_events(",".join(map("=".join, escaped))) == wanted


class TestStretches:
    EVENTS = (Event(-0.5, 0, "early"), Event(1, 4, "T1"), Event(6, 2, "T2"), Event(9, 4, "T1"))

    def parts(self, wanted, *args, length=10.0, **options):
        return labelled_parts(self.EVENTS, wanted, *args, name="a.edf", length=length, **options)

    def test_from_and_to_count_from_the_onset(self):
        parts, n_outside = self.parts({"T1": "left", "T2": "right"}, -0.5, 1.0)
        assert parts == [Segment(0.5, 2, "left"), Segment(5.5, 7, "right"), Segment(8.5, 10, "left")]
        assert n_outside == 0

    def test_without_an_end_the_event_ends_by_itself(self):
        assert self.parts({"T1": "a"}, 1.0) == ([Segment(2, 5, "a")], 1)

    def test_what_reaches_beyond_is_left_out_and_counted(self):
        assert self.parts({"T1": "a", "early": "b"}, 0, 2) == ([Segment(1, 3, "a")], 2)
        with pytest.raises(
            ValueError, match=r"a.edf is 10 s long, and all 2 segments from 0 s to 20 s of an"
        ):
            self.parts({"T1": "a"}, 0, 20)

    def test_a_rounding_error_is_not_beyond(self):
        assert self.parts({"T2": "a"}, 0, 4 + 1e-9) == ([Segment(6, 10, "a")], 0)

    def test_no_duration(self):
        with pytest.raises(ValueError, match=r"event 'early' at -0.5 s has no duration.* say with --to"):
            self.parts({"early": "a"})
        with pytest.raises(ValueError, match="event 'T2' at 6 s lasts 2 s, and segments start 3 s after"):
            self.parts({"T1": "a", "T2": "b"}, 3)

    def test_events_that_are_not_there(self):
        with pytest.raises(ValueError) as error:
            self.parts({"T3": "a", "T1": "b"}, 0, 1)
        wanted = "a.edf has no event T3 (did you mean T2?); it has T1 (2), early (1), T2 (1)"
        assert str(error.value) == wanted
        with pytest.raises(ValueError, match=r"a.edf has no events; T1, T2 asked"):
            labelled_parts([], {"T1": "a", "T2": "b"}, name="a.edf", length=1)
        # One file of many may lack an event.
        assert segments_of(self.EVENTS, {"T3": "a"}, 0, 1, name="a.edf", length=10) == ([], 0)

    @pytest.mark.parametrize(
        "times", [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), (float("inf"), None)]
    )
    def test_no_stretch(self, times):
        with pytest.raises(ValueError, match="from --from to --to"):
            self.parts({"T1": "a"}, *times)


FORMATS = {
    "edf": lambda folder: edf_plus(folder / "r.edf", notes((1, "a", 1), (2, "b"), n_records=3)),
    "gdf": lambda folder: making.gdf(folder / "r.gdf", np.zeros((2, 500), int), [(9, 768), (99, 769)]),
    "atr": lambda folder: TestWfdb().record(
        folder, atr={"sample": np.arange(1, 40) * 30, "symbol": ["N"] * 39}
    ),
    "tsv": lambda folder: (folder / "r_events.tsv").write_text(
        "onset\tduration\tvalue\n" + "1\t2\tgo\n" * 30
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_ends_in_a_sentence(tmp_path, kind):
    FORMATS[kind](tmp_path)
    target = next(tmp_path.glob(f"*.{kind}"))
    sound, rng = target.read_bytes(), random.Random(kind)
    for _ in range(40):
        target.write_bytes(damaged(sound, rng))
        try:
            read_event_table(target) if kind == "tsv" else read_events(target)
        except ValueError as error:
            assert str(error).startswith(str(target)) and "\n" not in str(error)

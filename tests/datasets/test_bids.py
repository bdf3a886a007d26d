"""BIDS folders: which recordings there are, what the files beside them say, and the rows that events make."""

import json
import shutil
import sys
from collections import Counter

import pytest

from anchorinv.datasets.own import (
    BidsRecording,
    Labelling,
    event_rows,
    find_recordings,
    plan_manifest,
    read_sidecars,
)
from anchorinv.datasets.own_files import OwnOptions
from anchorinv.datasets.prepare import prepare
from anchorinv.errors import MissingExtra, Problems
from anchorinv.signal.events import read_events
from tests.datasets import making
from tests.datasets.genuine import shared
from tests.datasets.notes import edf_plus

mne_bids = pytest.importorskip("mne_bids")
WANTED = {"left": "left", "right": "right"}
EVENTS = "onset\tduration\ttrial_type\n1\t2\tleft\n4\t2\tright\n"


def recording(root, name, *, kind="eeg", events=EVENTS):
    """Noise of ten seconds at 128 Hz, where its name says it lies."""
    session = [part for part in name.split("_") if part.startswith("ses-")]
    folder = root.joinpath(name.split("_")[0], *session, kind)
    folder.mkdir(parents=True, exist_ok=True)
    if events is not None:
        (folder / f"{name}_events.tsv").write_text(events)
    times = [f"+{i}\x14\x14\x00".encode() for i in range(10)]
    times[0] += b"+7\x14inside\x14\x00"
    return edf_plus(folder / f"{name}_{kind}.edf", times)


@pytest.fixture
def root(tmp_path):
    """Two people, two sessions of one of them, two tasks, eeg and emg."""
    root = tmp_path / "set"
    root.mkdir()
    (root / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.11.0"}')
    recording(root, "sub-01_ses-a_task-move_run-1")
    recording(root, "sub-01_ses-b_task-move_run-1")
    recording(root, "sub-02_task-move")
    recording(root, "sub-02_task-rest")
    recording(root, "sub-02_task-move", kind="emg")
    recording(root / "derivatives" / "clean", "sub-02_task-move")
    return root


def names(found):
    return [recording.path.name for recording in found]


class TestFind:
    def test_everything_as_mne_bids_finds_it(self, root):
        found = find_recordings(root)
        formats = [".edf", ".bdf", ".vhdr", ".set"]
        theirs = mne_bids.find_matching_paths(
            root, datatypes=["eeg", "emg"], suffixes=["eeg", "emg"], extensions=formats, ignore_nosub=True
        )
        assert sorted(recording.path for recording in found) == sorted(path.fpath for path in theirs)
        path = root / "sub-01/ses-a/eeg/sub-01_ses-a_task-move_run-1_eeg.edf"
        assert found[0] == BidsRecording(path, "01", "a", "move", "1", "eeg")
        assert len(found) == 5

    @pytest.mark.parametrize(
        ("options", "n"),
        [
            ({"task": "rest"}, 1),
            ({"task": "task-rest"}, 1),
            ({"subjects": ["02"]}, 3),
            ({"subjects": ["sub-01", "02"], "datatype": "eeg"}, 4),
            ({"sessions": ["b"]}, 1),
            ({"datatype": "emg"}, 1),
        ],
    )
    def test_a_part_of_it(self, root, options, n):
        assert len(find_recordings(root, **options)) == n

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"task": "moves"}, r"has no task moves \(did you mean move\?\); there is move, rest"),
            ({"subjects": ["03", "01"]}, r"has no subject 03 .*; there is 01, 02"),
            ({"sessions": ["z"]}, "has no session z; there is a, b"),
            ({"datatype": "meg"}, r"datatype \(='meg'\) must be one of eeg, emg, ieeg"),
            ({"datatype": "ieeg"}, "has no datatype ieeg"),
        ],
    )
    def test_what_is_not_there(self, root, options, words):
        with pytest.raises(ValueError, match=words):
            find_recordings(root, **options)

    def test_no_bids_folder(self, tmp_path):
        with pytest.raises(ValueError, match="is not a BIDS folder"):
            find_recordings(tmp_path)
        (tmp_path / "sub-01").mkdir()
        with pytest.raises(ValueError, match="has no recordings of eeg, emg, ieeg"):
            find_recordings(tmp_path)

    def test_without_mne_bids(self, root, monkeypatch):
        for name in [name for name in sys.modules if name.partition(".")[0] == "mne_bids"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "mne_bids", None)
        with pytest.raises(
            MissingExtra, match=r"mne_bids is needed .* pip install 'anchorinv\[recordings\]'"
        ):
            find_recordings(root)

    def test_names_that_are_none(self, root):
        good = root / "sub-02/eeg/sub-02_task-move_eeg.edf"
        shutil.copy(good, good.with_name("sub-02_mood-good_eeg.edf"))
        shutil.copy(good, good.with_name("sub-03_task-move_eeg.edf"))
        with pytest.raises(Problems, match="2 problems") as error:
            find_recordings(root)
        assert 'Unexpected entity "mood"' in error.value.problems[0]
        assert "it is in the folder of another subject" in error.value.problems[1]

    def test_links_out_of_the_folder(self, root, tmp_path):
        away = recording(tmp_path / "away", "sub-09_task-move")
        (root / "sub-09").symlink_to(away.parents[1])
        with pytest.raises(ValueError, match="sub-09/eeg is a link to elsewhere"):
            find_recordings(root)
        (root / "sub-09").unlink()
        (root / "sub-02/eeg/sub-02_task-more_eeg.edf").symlink_to(away)
        with pytest.raises(Problems, match=r"sub-02_task-more_eeg.edf is a link to a file elsewhere"):
            find_recordings(root)

    def test_links_within_the_folder(self, root):
        """As git-annex keeps files; what it did not fetch is told."""
        path = root / "sub-02/eeg/sub-02_task-rest_eeg.edf"
        store = root / ".git" / "annex"
        store.mkdir(parents=True)
        path.rename(store / "key")
        path.symlink_to(store / "key")
        rows, problems = event_rows(root, Labelling(WANTED), task="rest")
        assert len(rows) == 2 and not problems
        (store / "key").unlink()
        _, problems = event_rows(root, Labelling(WANTED), task="rest")
        assert len(problems) == 1 and "fetch it first (datalad get)" in problems[0]


class TestSidecars:
    def told(self, root, name="sub-02_task-move"):
        return read_sidecars(root, root / f"sub-02/eeg/{name}_eeg.edf", "eeg")

    def test_channels(self, root):
        (root / "sub-02/eeg/sub-02_task-move_channels.tsv").write_text(
            "name\ttype\tunits\tstatus\nC3\tEEG\tuV\tgood\nC4\tEEG\tµV\tbad\nCz\tEOG\tn/a\tn/a\n"
        )
        found = self.told(root)
        assert found.bad == ("C4",)

    def test_from_above(self, root):
        assert self.told(root).sfreq is None
        (root / "task-move_eeg.json").write_text('{"SamplingFrequency": 128}')
        (root / "task-rest_eeg.json").write_text('{"SamplingFrequency": 64}')
        assert self.told(root).sfreq == 128 and self.told(root, "sub-02_task-rest").sfreq == 64
        # A nearer file counts for what it says.
        near = root / "sub-02/eeg/sub-02_task-move_eeg.json"
        near.write_text('{"PowerLineFrequency": 50}')
        assert self.told(root).sfreq == 128
        near.write_text('{"SamplingFrequency": 256}')
        assert self.told(root).sfreq == 256

    def test_the_nearest_events(self, root):
        own = root / "sub-02/eeg/sub-02_task-move_events.tsv"
        above = root / "task-move_events.tsv"
        above.write_text(EVENTS)
        assert self.told(root).events == own
        theirs = mne_bids.get_bids_path_from_fname(root / "sub-02/eeg/sub-02_task-move_eeg.edf")
        assert theirs.find_matching_sidecar(suffix="events", extension=".tsv") == own
        own.unlink()
        assert self.told(root).events == above

    def test_not_those_of_another_run(self, root):
        folder = root / "sub-02" / "eeg"
        (folder / "sub-02_task-move_events.tsv").rename(folder / "sub-02_task-move_run-2_events.tsv")
        assert self.told(root).events is None

    def test_two_that_say_as_much(self, root):
        (root / "sub-02_eeg.json").write_text("{}")
        (root / "task-move_eeg.json").write_text("{}")
        with pytest.raises(ValueError, match=r"several files of the kind eeg.json"):
            self.told(root)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[]", "is not a JSON object"),
            ("{", "cannot be read"),
            ("[" * 100_000, "cannot be read"),
            ('{"SamplingFrequency": "fast"}', "says a SamplingFrequency of 'fast'"),
            ('{"SamplingFrequency": -1}', "says a rate of -1 Hz"),
            ('{"SamplingFrequency": NaN}', "says a rate of nan Hz"),
        ],
    )
    def test_damaged(self, root, text, words):
        (root / "eeg.json").write_text(text)
        with pytest.raises(ValueError, match=f"eeg.json {words}"):
            self.told(root)

    def test_links_out_of_the_folder(self, root, tmp_path):
        (tmp_path / "secret").write_text(EVENTS)
        table = root / "sub-02/eeg/sub-02_task-move_events.tsv"
        table.unlink()
        table.symlink_to(tmp_path / "secret")
        assert self.told(root).events is None


class TestEntries:
    def test_rows(self, root):
        rows, problems = event_rows(root, Labelling(WANTED, 0, 2), datatype="eeg", task="move")
        assert not problems and [row.line for row in rows] == [1, 1, 2, 2, 3, 3]
        first = rows[0]
        assert (first.name, first.path) == (f"sub-01/ses-a/eeg/{first.path.name}", root / first.name)
        assert (first.subject, first.session, first.label, first.split) == ("01", "a", "left", "")
        assert (first.start, first.stop) == (1.0, 3.0)
        assert [(row.subject, row.session, row.label) for row in rows[4:]] == [
            ("02", "", "left"),
            ("02", "", "right"),
        ]

    def test_events_of_the_file_where_no_table_has_any(self, root):
        for table in root.glob("sub-02/eeg/*_events.tsv"):
            table.unlink()
        rows, problems = event_rows(root, Labelling({"inside": "x"}, 0, 1), subjects=["02"], datatype="eeg")
        assert [(row.start, row.label) for row in rows] == [(7.0, "x")] * 2 and not problems

    def test_an_event_need_not_be_in_every_recording(self, root):
        (root / "sub-02/eeg/sub-02_task-move_events.tsv").write_text("onset\ttrial_type\n1\tleft\n")
        rows, _ = event_rows(root, Labelling(WANTED, 0, 2), datatype="eeg", subjects=["02"])
        assert Counter(row.label for row in rows) == {"left": 2, "right": 1}
        with pytest.raises(ValueError, match=r"has no event up; it has left \(2\), right \(1\)"):
            event_rows(root, Labelling({"up": "up"}, 0, 2), datatype="eeg", subjects=["02"])

    def test_two_kinds_of_signals(self, root):
        with pytest.raises(
            ValueError, match="has recordings of eeg, emg; choose one of them with --datatype"
        ):
            event_rows(root, Labelling(WANTED))

    def test_rates_that_differ(self, root):
        (root / "task-move_eeg.json").write_text(json.dumps({"SamplingFrequency": 500}))
        rows, problems = event_rows(root, Labelling(WANTED), datatype="eeg")
        assert len(rows) == 2 and len(problems) == 3
        assert "has 128 Hz, and its JSON sidecar says 500 Hz" in problems[0]

    def test_formats_that_are_not_read(self, root):
        (root / "sub-02/eeg/sub-02_task-other_eeg.set").write_bytes(b"x")
        (root / "sub-02/eeg/sub-02_task-rest_eeg.edf").write_bytes(b"x")
        _, problems = event_rows(root, Labelling(WANTED), datatype="eeg")
        assert len(problems) == 2
        assert "has an unsupported format; export it" in problems[0] and "is cut short" in problems[1]

    def test_what_reaches_beyond_is_told(self, root):
        with pytest.warns(UserWarning, match="1 of 2 segments reach beyond their recording"):
            rows, _ = event_rows(root, Labelling(WANTED, 0, 8), task="rest")
        assert len(rows) == 1
        _, problems = event_rows(root, Labelling(WANTED, 0, 80), task="rest")
        assert problems == ["all 2 segments reach beyond their recording; choose --from and --to"]

    def test_bad_channels_are_told(self, root):
        (root / "task-move_channels.tsv").write_text("name\tstatus\nC3\tbad\nC4\tgood\n")
        with pytest.warns(UserWarning, match=r"bad in some of 3 recordings: C3 \(3\); --channels leaves"):
            event_rows(root, Labelling(WANTED), datatype="eeg", task="move")

    def test_no_stretch(self, root):
        with pytest.raises(ValueError, match="from --from to --to"):
            event_rows(root, Labelling(WANTED, 3, 1))


def test_genuine_recordings_from_a_bids_folder_to_a_prepared_one(tmp_path):
    """Imagined movements as laboratories share them; mne-bids reads the same events from the folder."""
    source, root = shared("eegmmidb_sample"), tmp_path / "set"
    folder = root / "sub-001" / "eeg"
    folder.mkdir(parents=True)
    (root / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.11.0"}')
    for run in ("04", "06"):
        name = f"sub-001_task-imagery_run-{run}"
        shutil.copy(source / f"S001R{run}.edf", folder / f"{name}_eeg.edf")
        rows = [f"{e.onset}\t{e.duration}\t{e.label}\n" for e in read_events(source / f"S001R{run}.edf")]
        (folder / f"{name}_events.tsv").write_text("onset\tduration\ttrial_type\n" + "".join(rows))
        (folder / f"{name}_eeg.json").write_text('{"SamplingFrequency": 160}')
    found, problems = event_rows(root, Labelling({"T1": "fist 1", "T2": "fist 2"}, 0, 3), task="imagery")
    assert not problems and Counter(row.label for row in found) == {"fist 1": 15, "fist 2": 15}
    place = mne_bids.get_bids_path_from_fname(folder / "sub-001_task-imagery_run-04_eeg.edf")
    theirs = mne_bids.read_raw_bids(place, verbose="error").annotations
    ours = [row.start for row in found if "run-04" in row.name]
    assert ours == pytest.approx(
        [o for o, d in zip(theirs.onset, theirs.description, strict=True) if d != "T0"]
    )

    lines = [
        {"path": row.name, "label": row.label, "start": row.start, "stop": row.stop, "subject": row.subject}
        for row in found
    ]
    table = making.rows(root / "table.csv", *lines)
    options = OwnOptions(
        channels=("C3..", "Cz..", "C4.."), at_least=1, allow=frozenset(["shared-recordings"])
    )
    data = prepare(plan_manifest(table, options), tmp_path / "out")
    assert len(data) == 30 and data.n_times == 480

"""Headers that lie: a reader asks for no more than the file holds, and for no other file."""

import struct
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from anchorinv.signal.headers import check_header
from anchorinv.signal.readers import open_recording
from tests.datasets import making
from tests.datasets.notes import edf_plus
from tests.reading_whole import read_recording
from tests.recording_files import write_edf, write_fif, write_gdf, write_wfdb

NAMES = ["C3", "C4", "Cz", "Pz"]
NOISE = 1e-5 * np.random.default_rng(0).normal(size=(4, 512))


@contextmanager
def within(n_bytes=64 << 20):
    """Less memory than that is asked for, at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()


def refused(path, match):
    """Both ways to open a recording end in a sentence."""
    for read in (read_recording, open_recording):
        with within(), pytest.raises(ValueError, match=match) as error:
            read(path)
        assert str(path.stem) in str(error.value)


def put(path, at, form, *values):
    whole = bytearray(path.read_bytes())
    struct.pack_into(form, whole, at, *values)
    path.write_bytes(whole)


GDF = {  # of version 1 and 2: where a number stands, its form, and what it is not to be
    "records": (236, "<q", (-1, 2**31, 2**62)),
    "record's length": (248, "<I", (0, 2**32 - 1)),
    "channels": (252, "<H", (0, 65535)),
}


@pytest.mark.parametrize("version", ["1.25", "2.20"])
@pytest.mark.parametrize("what", GDF)
def test_numbers_of_a_gdf_header(tmp_path, version, what):
    at, form, values = GDF[what]
    for value in values:
        making.gdf(tmp_path / "r.gdf", np.zeros((4, 512), int), [(3, 768)], sfreq=128, version=version)
        put(tmp_path / "r.gdf", at, form, value)
        refused(tmp_path / "r.gdf", "damaged header|cut short")


@pytest.mark.parametrize("field", ["samples", "types"])
@pytest.mark.parametrize("value", [0, -1, 999, 2**31 - 1])
def test_numbers_of_a_gdf_channel(tmp_path, field, value):
    write_gdf(tmp_path / "r.gdf", NOISE, NAMES, 128)
    put(tmp_path / "r.gdf", 256 + 4 * (216 if field == "samples" else 220), "<i", value)
    refused(tmp_path / "r.gdf", "damaged header|cut short")


@pytest.mark.parametrize("version", ["0.00", "9.99", " nan", "-inf", "abcd"])
def test_gdf_of_versions_that_are_none(tmp_path, version):
    write_gdf(tmp_path / "r.gdf", NOISE, NAMES, 128)
    put(tmp_path / "r.gdf", 4, "4s", version.encode())
    refused(tmp_path / "r.gdf", "damaged header")


@pytest.mark.parametrize(
    ("version", "mode"), [("1.25", 1), ("1.25", 3), ("1.93", 1), ("2.20", 1), ("2.20", 3)]
)
def test_gdf_events_that_are_not_there(tmp_path, version, mode):
    """A table of events of 17 GB, of a few more than there are, and one cut within its size."""
    path = tmp_path / "r.gdf"
    making.gdf(path, np.zeros((4, 512), int), [(3, 768)], sfreq=128, version=version)
    whole = path.read_bytes()
    table = len(whole) - 6 - 8
    for claimed in (2**24 - 1, 40):
        count = claimed.to_bytes(3, "little")
        events = bytes([mode]) + (bytes(3) + count + bytes(1) if version < "1.94" else count + bytes(4))
        path.write_bytes(whole[:table] + events + whole[-6:])
        refused(path, "events|cut short")
    path.write_bytes(whole[: table + 4])
    refused(path, "a table of events without its size")


def test_gdf_durations_of_zero_are_read(tmp_path):
    path = tmp_path / "r.gdf"
    making.gdf(path, np.zeros((4, 512), int), [(3, 768)], sfreq=128)
    path.write_bytes(path.read_bytes()[:-14] + b"\x03\x80\x00\x00\x01\x00\x00\x00" + bytes(12))
    assert read_recording(path).signals.shape == (4, 512)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e-300", "1e300"])
def test_edf_records_of_no_length(tmp_path, value):
    write_edf(tmp_path / "r.edf", NOISE, NAMES, 128)
    put(tmp_path / "r.edf", 244, "8s", value.ljust(8).encode())
    refused(tmp_path / "r.edf", "damaged header")


@pytest.mark.parametrize(
    "notes",
    [
        b"+" + b"1" * 100_000,
        b"+1\x14" * 30_000 + b"x" * 10,
        b"+1\x14" * 30_000 + b"\n+1\x14x\x14\x00",
        b"+1\x14x\x14\x00" * 20_002,
    ],
)
def test_annotations_that_would_take_for_ever(tmp_path, notes):
    """The pattern that finds them in mne takes the square of their length."""
    edf_plus(tmp_path / "r.edf", [notes], width=len(notes) // 2 + 1)
    refused(tmp_path / "r.edf", "annotations")


def test_sound_annotations_are_read(tmp_path):
    notes = [b"+0\x14\x14\x00+0.5\x151\x14eyes\x14\x00", b"+1\x14\x14\x00" + bytes(30)]
    assert read_recording(edf_plus(tmp_path / "r.edf", notes)).ch_names == tuple(NAMES)


def test_a_night_of_records_that_only_tell_their_time(tmp_path):
    """EDF+ has such an annotation in each of its records, of which a night has tens of thousands."""
    night = edf_plus(tmp_path / "r.edf", [b"+%d\x14\x14\x00" % i for i in range(20_500)])
    check_header(night)


def test_only_the_annotations_of_a_large_file_are_read(tmp_path):
    path = edf_plus(tmp_path / "r.edf", [b"+0\x14\x14\x00"])
    with path.open("r+b") as file:
        file.seek(236)
        file.write(b"-1      ")  # not closed: readers go by the size of the file
        file.truncate(256 << 20)
    with within(16 << 20):
        check_header(path)


def fif_tag(kind, form, data):
    return struct.pack(">iiii", kind, form, len(data), 0) + data


def test_a_fif_file_that_goes_on_in_others(tmp_path):
    """In itself, which a reader would follow for ever, or in any other file of the machine."""
    path = write_fif(tmp_path / "r_raw.fif", NOISE, NAMES, 128)
    whole = path.read_bytes()
    first = 16 + 20  # after the file's id
    for name in (b"r_raw.fif", b"/etc/passwd"):
        path.write_bytes(whole[:first] + fif_tag(118, 10, name) + whole[first:])
        refused(path, "continues in another file")
    for name in (b"r_raw.fif", b"/etc/passwd", b"../r_raw.fif"):  # by the role of a part that follows
        role = fif_tag(115, 3, (2).to_bytes(4, "big"))
        path.write_bytes(whole[:first] + role + fif_tag(118, 10, name) + whole[first:])
        refused(path, "continues in another file|is not in its folder")
    # A directory may speak of tags that a walk through the file does not meet.
    at = len(whole)
    entries = struct.pack(">iiii", 118, 10, 4, 0)
    hidden = bytearray(whole + struct.pack(">iiii", 102, 32, len(entries), -1) + entries)
    struct.pack_into(">i", hidden, first + 16, at)
    path.write_bytes(hidden)
    refused(path, "continues in another file")


def test_a_fif_file_that_skips_more_than_it_holds(tmp_path):
    path = write_fif(tmp_path / "r_raw.fif", NOISE, NAMES, 128)
    whole = path.read_bytes()
    at, kinds = 0, {}
    while at < len(whole):
        kind, _, size, following = struct.unpack_from(">iiii", whole, at)
        kinds.setdefault(kind, at)
        if following == -1:
            break
        at += 16 + size
    first = kinds[300]  # the first buffer of samples
    end = first + 16 + struct.unpack_from(">i", whole, first + 8)[0]
    skip = fif_tag(301, 3, struct.pack(">i", 2**30))
    path.write_bytes(whole[:end] + skip + whole[first:])
    refused(path, "declares .* samples in 4 channels, which .* bytes cannot hold")


def test_a_little_fif_that_unpacks_to_much(tmp_path):
    import gzip

    (tmp_path / "r_raw.fif.gz").write_bytes(gzip.compress(bytes(64 << 20)))
    refused(tmp_path / "r_raw.fif.gz", "unpacks to more than 200 times its size")


HEADERS = {
    "a hundred million signals": ("r 100000000 128 512\n" + "r.dat 16 100/mV\n" * 4, "100000000 signals"),
    "signals without a line": ("r 4 128 512\n", "4 signals and describes 0"),
    "samples without end": ("r 1 128 999999999999\nr.dat 16 100(0)/mV 16 0 0 0 0 C3\n", "cannot hold"),
    "samples per frame": ("r 1 128 512\nr.dat 16x999999999 100(0)/mV 16 0 0 0 0 C3\n", "cannot hold"),
    "skew": ("r 1 128 512\nr.dat 16:99999999 100(0)/mV 16 0 0 0 0 C3\n", "more than their length"),
    "elsewhere": ("r 1 128 512\n../r.dat 16 100(0)/mV 16 0 0 0 0 C3\n", "is not in its folder"),
    "absolute": ("r 1 128 512\n/etc/passwd 16 100(0)/mV 16 0 0 0 0 C3\n", "is not in its folder"),
    "url": ("r 1 128 512\nhttps://a/r.dat 16 100(0)/mV 16 0 0 0 0 C3\n", "is not in its folder"),
    "not there": ("r 1 128 512\ns.dat 16 100(0)/mV 16 0 0 0 0 C3\n", "is not next to it"),
    "segments": ("r/2 1 128 512\nr1 256\nr2 256\n", "several segments"),
    "a long line": ("r 1 128 512\n" + "a" * 100_000 + "\n", "more than 2000 characters"),
    "nothing": ("", "not a WFDB header"),
}  # fmt: skip


@pytest.mark.parametrize("claim", HEADERS)
def test_wfdb_headers_that_lie(tmp_path, claim):
    path = write_wfdb(tmp_path / "r", NOISE, NAMES, 128)
    text, match = HEADERS[claim]
    path.write_text(text)
    refused(path, match)


def test_a_wfdb_rate_of_nothing(tmp_path):
    path = write_wfdb(tmp_path / "r", NOISE, NAMES, 128)
    path.write_text(path.read_text().replace(" 128 ", " 0 "))
    refused(path, "a rate of 0(.0)? Hz")


BRAINVISION = {
    "DataFile=r.eeg": (
        ("DataFile=../r.eeg", "is not in its folder"),
        ("DataFile=/etc/passwd", "is not in its folder"),
        ("datafile : ..\\r.eeg", "is not in its folder"),
        ("DataFile=%(other)s\nother=/etc/passwd", "is not in its folder"),
        ("DataFile=s.eeg", "is not next to it"),
        ("", "names 0 files of samples"),
    ),
    "MarkerFile=r.vmrk": (("MarkerFile=../../etc/passwd", "is not in its folder"),),
    "NumberOfChannels=4": (
        ("NumberOfChannels=1000000000", "NumberOfChannels"),
        ("NumberOfChannels=1_000_000_000", "NumberOfChannels"),
        ("NumberOfChannels=-4", "NumberOfChannels"),
        ("NumberOfChannels=3", "3 channels and describes 4"),
    ),
    "DataFormat=BINARY": (("DataFormat=ASCII\n[ASCII Infos]\nSkipLines=1000000000000", "SkipLines"),),
    "Codepage=UTF-8": (("Codepage=punycode", "not a known encoding"),),
    "SamplingInterval=7812.5": (
        ("SamplingInterval=0", "cannot be read"),
        ("SamplingInterval=-1", "rate|cannot be read"),
        ("SamplingInterval=nan", "rate|cannot be read"),
        ("SamplingInterval=1e300", "rate|cannot be read"),
    ),
}


@pytest.mark.parametrize("line", BRAINVISION)
def test_brainvision_headers_that_lie(tmp_path, line):
    for claim, match in BRAINVISION[line]:
        making.brainvision(tmp_path / "r.vhdr", 1e6 * NOISE, NAMES)
        text = (tmp_path / "r.vhdr").read_text(encoding="utf-8")
        assert line in text
        (tmp_path / "r.vhdr").write_text(text.replace(line, claim), encoding="utf-8")
        refused(tmp_path / "r.vhdr", match)


def test_brainvision_markers_without_measure(tmp_path):
    for markers, match in (
        ("Mk1=Stimulus,S1,1,1,0\n" * 20_001, "more than 20000 markers"),
        ("Mk1=" + "1," * 2000, "more than 2000 characters"),
        ("Codepage=punycode\n", "not a known encoding"),
    ):
        making.brainvision(tmp_path / "r.vhdr", 1e6 * NOISE, NAMES)
        with (tmp_path / "r.vmrk").open("a") as file:
            file.write(markers)
        with within(), pytest.raises(ValueError, match=match):
            read_recording(tmp_path / "r.vhdr")


def test_a_fif_recording_in_parts_is_one(tmp_path):
    """mne writes several files where one would be too large."""
    import mne

    long = 1e-5 * np.random.default_rng(0).normal(size=(4, 200_000))
    raw = mne.io.RawArray(long, mne.create_info(NAMES, 128, "eeg"), verbose="error")
    raw.save(tmp_path / "r_raw.fif", split_size="2MB", verbose="error")
    assert (tmp_path / "r_raw-1.fif").is_file()
    assert read_recording(tmp_path / "r_raw.fif").signals.shape == long.shape
    (tmp_path / "r_raw-1.fif").unlink()
    refused(tmp_path / "r_raw.fif", "keep all parts of a recording in one folder")


def test_brainvision_names_of_any_language_and_comments(tmp_path):
    for stem in ("Größe", "左手"):
        path = tmp_path / f"{stem}.vhdr"
        making.brainvision(path, 1e6 * NOISE, NAMES)
        with path.open("a", encoding="utf-8") as file:
            file.write("\n[Comment]\nDataFile=elsewhere.eeg\nNumberOfChannels=7\n")
        assert read_recording(path).ch_names == tuple(NAMES)

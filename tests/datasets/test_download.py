"""The downloader against a server of our own: cut, slow, wrong, gone and hostile."""

import hashlib
import io
import json
import stat
import zipfile
from types import SimpleNamespace

import pytest

from anchorinv.datasets.download import (
    REMOTES,
    HttpClient,
    RemoteFile,
    check_space,
    count_missing,
    download,
    remote_files,
    unpack,
)
from anchorinv.errors import Problems
from anchorinv.progress import listening
from tests.datasets.serving import CUT, ENDLESS, serving

CONTENT = bytes(range(256)) * 4000  # 1 MB
SHA = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serving() as found:
        yield found


def client(**options):
    return HttpClient(**{"pause": 0.0, "tries": 3, "timeout": 300.0} | options)


def remote(server, name="a.bin", content=CONTENT, checksum=SHA):
    server.files[name] = content
    return RemoteFile(name, f"{server.url}/{name}", len(content), checksum)


def test_files_come_whole_once_and_with_progress(server, tmp_path):
    files = [remote(server, f"deep/{i}.bin") for i in range(5)]
    ticks = []
    with listening(ticks.append):
        assert download(files, tmp_path, client()) == []
    assert all((tmp_path / f.name).read_bytes() == CONTENT for f in files)
    assert ticks[-1].done == ticks[-1].total > 0
    assert server.most_busy <= 2
    assert count_missing(files, tmp_path) == (0, 0, 0)
    asked = len(server.asked)
    download(files, tmp_path, client())
    assert len(server.asked) == asked, "what is there is not asked for again"
    assert not list(tmp_path.rglob("*.part*"))


def test_a_cut_connection_is_resumed_from_where_it_broke(server, tmp_path):
    file = remote(server)
    server.trouble["a.bin"] = ["cut", "cut"]
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [asked for _, _, asked in server.asked] == ["", f"bytes={CUT}-", f"bytes={2 * CUT}-"]


def test_a_later_run_goes_on_from_an_earlier_one(server, tmp_path):
    file = remote(server)
    server.trouble["a.bin"] = ["cut"]
    with pytest.raises(Problems, match=r"in 1 tries .* run the same command again to continue"):
        download([file], tmp_path, client(tries=1))
    assert not (tmp_path / "a.bin").exists() and (tmp_path / "a.bin.part").stat().st_size == CUT
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT and server.asked[-1][2] == f"bytes={CUT}-"


def test_a_file_that_changed_meanwhile_is_not_glued_together(server, tmp_path):
    file = remote(server, checksum=None)
    server.trouble["a.bin"] = ["cut"]
    with pytest.raises(Problems):
        download([file], tmp_path, client(tries=1))
    server.files["a.bin"] = CONTENT[::-1]
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT[::-1]


def test_without_tags_a_part_is_not_trusted(server, tmp_path):
    server.tags = False
    file = remote(server)
    server.trouble["a.bin"] = ["cut"]
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT and {asked for _, _, asked in server.asked} == {""}


def test_halves_of_different_files_are_fetched_anew(server, tmp_path):
    file = remote(server)
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    tag = '"' + hashlib.md5(CONTENT).hexdigest() + '"'
    (tmp_path / "a.bin.part.json").write_text(json.dumps({"mark": tag}))
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [asked for _, _, asked in server.asked] == ["bytes=1000-", ""]


def test_a_wrong_checksum_is_named_and_the_file_never_used(server, tmp_path):
    good, bad = remote(server), remote(server, "bad.bin", CONTENT[:-1])
    with pytest.raises(Problems, match=r"bad\.bin: its checksum is not the published one"):
        download([good, bad], tmp_path, client())
    assert (tmp_path / "a.bin").is_file() and not list(tmp_path.glob("*bad*"))


def test_a_broken_copy_is_replaced_and_named(server, tmp_path):
    with_sum, without = remote(server), remote(server, "plain.bin", checksum=None)
    download([with_sum, without], tmp_path, client())
    for name in ("a.bin", "plain.bin"):
        (tmp_path / name).write_bytes(b"tampered")
    notes = download([with_sum, without], tmp_path, client())
    assert sorted(notes) == [
        f"{name} was broken or changed, and was fetched again" for name in ("a.bin", "plain.bin")
    ]
    assert (tmp_path / "plain.bin").read_bytes() == CONTENT


def test_a_file_that_is_gone_is_told_at_once_with_all_others(server, tmp_path):
    files = [
        remote(server),
        RemoteFile("b.bin", f"{server.url}/b.bin"),
        RemoteFile("c.bin", f"{server.url}/c.bin"),
    ]
    with pytest.raises(Problems, match="2 problems") as error:
        download(files, tmp_path, client())
    assert "b.bin answered 404" in str(error.value) and "c.bin answered 404" in str(error.value)
    assert [path for _, path, _ in server.asked].count("b.bin") == 1, "404 is not asked again"
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server, tmp_path):
    file = remote(server)
    server.trouble["a.bin"] = ["busy", "busy"]
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_rate_limit_is_waited_for_and_named_when_it_stays(server, tmp_path):
    file = remote(server)
    server.trouble["a.bin"] = ["limited", "limited"]
    download([file], tmp_path, client())
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    (tmp_path / "a.bin").unlink()
    server.trouble["a.bin"] = ["limited"] * 3
    with pytest.raises(Problems, match=r"in 3 tries \(429 .*Too Many Requests"):
        download([file], tmp_path, client())
    assert not (tmp_path / "a.bin").exists()


def test_a_server_that_stalls_counts_as_broken_and_is_resumed(server, tmp_path):
    file = remote(server)
    # It stalls each time, and a machine so busy that an answer takes longer than that only costs more tries.
    server.trouble["a.bin"] = ["slow"] * 50
    download([file], tmp_path, client(timeout=0.3, tries=100))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert server.asked[-1][2].startswith("bytes=")


def test_a_file_that_is_far_longer_than_listed_is_stopped(server, tmp_path):
    """Listed as 100 bytes; the server says no length and sends 600 MB."""
    server.files["a.bin"] = b""
    server.trouble["a.bin"] = ["endless"] * 3
    with pytest.raises(Problems, match="sends more than the expected 1048676 bytes; stopped"):
        download([RemoteFile("a.bin", f"{server.url}/a.bin", 100)], tmp_path, client())
    # What was on its way in buffers is little beside all of it.
    assert server.sent < ENDLESS // 4 and len(server.asked) == 1
    assert not (tmp_path / "a.bin").exists() and (tmp_path / "a.bin.part").stat().st_size == 0


def test_a_listing_without_end_is_stopped(server, monkeypatch):
    monkeypatch.setattr("anchorinv.datasets.download.MAX_TEXT", 1 << 20)
    server.files["list"] = b""
    server.trouble["list"] = ["endless"]
    with pytest.raises(ValueError, match="sent more than 1 MB"):
        client().text(f"{server.url}/list")
    assert server.sent < ENDLESS // 4


@pytest.mark.parametrize(
    "listing", ["[]", '{"files": 5}', '{"files": [{"key": "a", "size": "x"}]}', "[" * 99_999]
)
def test_listings_that_are_none(listing):
    with pytest.raises(ValueError, match="did not return a list of files"):
        remote_files("nhie", SimpleNamespace(text=lambda url: listing))


def test_a_ledger_that_is_none(server, tmp_path):
    for text in ("[]", '{"a.bin": 5}'):
        (tmp_path / ".checksums.json").write_text(text)
        with pytest.raises(ValueError, match="not a list of checksums; delete it"):
            download([remote(server)], tmp_path, client())


def test_nobody_there(tmp_path):
    with pytest.raises(Problems, match="could not be fetched in 2 tries"):
        download([RemoteFile("a", "http://127.0.0.1:9/a")], tmp_path, client(tries=2, timeout=1))


@pytest.mark.parametrize("name", ["../a.bin", "/etc/a.bin", "x/../../a.bin", "..\\a.bin", "C:a.bin"])
def test_names_that_lead_out_of_the_folder_are_refused(server, tmp_path, name):
    (tmp_path / "to").mkdir()
    with pytest.raises(ValueError, match="would be outside"):
        download([RemoteFile(name, f"{server.url}/a.bin")], tmp_path / "to", client())
    assert not server.asked and sorted(path.name for path in tmp_path.rglob("*")) == ["to"]


def test_links_that_lead_out_of_the_folder_are_refused(server, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="through a link"):
        download([RemoteFile("link/a.bin", f"{server.url}/a.bin")], tmp_path / "to", client())


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def test_archives_are_unpacked(server, tmp_path):
    content = archive(**{"EDF_format/ID01_epoch1.edf": b"1", "EDF_format/ID02_epoch1.edf": b"22"})
    download([remote(server, "EDF_format.zip", content, checksum=None)], tmp_path, client())
    assert (tmp_path / "EDF_format" / "ID02_epoch1.edf").read_bytes() == b"22"
    (tmp_path / "EDF_format" / "ID02_epoch1.edf").unlink()
    download([remote(server, "EDF_format.zip", content, checksum=None)], tmp_path, client())
    assert (tmp_path / "EDF_format" / "ID02_epoch1.edf").read_bytes() == b"22"


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-absolute", "a/../../evil", "a\\..\\..\\evil"])
def test_archives_cannot_write_outside(tmp_path, name):
    (tmp_path / "to").mkdir()
    info = zipfile.ZipInfo()
    info.filename = name
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("good", b"g")
        file.writestr(info, b"evil")
    with pytest.raises(ValueError, match=r"would be outside .* nothing was unpacked"):
        unpack(tmp_path / "a.zip", tmp_path / "to")
    assert not list((tmp_path / "to").iterdir()) and not (tmp_path / "evil").exists()


def test_archives_cannot_bring_links(tmp_path):
    (tmp_path / "to").mkdir()
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(info, "/etc")
    with pytest.raises(ValueError, match="is a link"):
        unpack(tmp_path / "a.zip", tmp_path / "to")


def test_damaged_archives_are_named(tmp_path):
    whole = archive(a=bytes(5000))
    for i, content in enumerate((b"no archive", whole[:60], whole[:50] + b"\0\0\0\0" + whole[54:])):
        (tmp_path / f"{i}.zip").write_bytes(content)
        with pytest.raises(ValueError, match=rf"{i}\.zip is a damaged archive"):
            unpack(tmp_path / f"{i}.zip", tmp_path)


def test_archives_larger_than_the_disk_are_not_unpacked(tmp_path, monkeypatch):
    (tmp_path / "a.zip").write_bytes(archive(a=bytes(5000), b=bytes(5000)))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=9999))
    with pytest.raises(ValueError, match=r"unpacks to 0.00 GB and 0.00 GB are free"):
        unpack(tmp_path / "a.zip", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_the_disk_is_asked_first(tmp_path):
    check_space(tmp_path / "not" / "yet", 1000)
    with pytest.raises(ValueError, match=r"GB needed in .* choose another disk"):
        check_space(tmp_path, 10**18)


def test_what_the_homes_list(server):
    ask = client()
    sums = "\n".join(
        f"{i:064x} Session1/session1_participant1/session1_participant1_gesture{g}_trial1.{e}"
        for i, (g, e) in enumerate([(1, "hea"), (1, "dat"), (16, "dat"), (17, "dat")])
    )
    server.files["SHA256SUMS.txt"] = (sums + f"\n{9:064x} README.txt\n").encode()
    found = remote_files("grabmyo", ask, mirror=f"{server.url}/")
    assert [f.name.rpartition("_")[0][-9:] for f in found] == ["_gesture1", "_gesture1", "gesture16"]
    assert found[0].checksum == f"sha256:{0:064x}" and found[1].size == 655_360
    assert found[1].url == f"{server.url}/{found[1].name}"
    assert len(remote_files("grabmyo", ask, mirror=server.url, only="*.hea")) == 1
    record = {
        "files": [
            {"key": "EDF_format.zip", "size": 5, "checksum": "md5:00"},
            {"key": "CSV_format.zip", "size": 7, "checksum": "md5:11"},
            {"key": "eeg_grades.csv", "size": 1, "checksum": "md5:22"},
        ]
    }
    server.files["records/1"] = json.dumps(record).encode()
    found = remote_files("nhie", ask, mirror=f"{server.url}/records/1")
    assert [(f.name, f.size, f.checksum) for f in found] == [
        ("EDF_format.zip", 5, "md5:00"), ("eeg_grades.csv", 1, "md5:22")
    ]  # fmt: skip
    assert found[0].url == f"{server.url}/records/1/files/EDF_format.zip/content"
    with pytest.raises(ValueError, match="not a known data set; known: bci2a, nhie, grabmyo"):
        remote_files("mnist", ask)
    with pytest.raises(ValueError, match="did not return a list"):
        remote_files("nhie", ask, mirror=f"{server.url}/SHA256SUMS.txt")
    with pytest.raises(ValueError, match="has no files of grabmyo that match"):
        remote_files("grabmyo", ask, mirror=server.url, only="*.zip")


def test_the_public_homes_are_where_they_should_be():
    assert REMOTES["bci2a"].address == "https://bnci-horizon-2020.eu/database/data-sets/001-2014"
    assert REMOTES["nhie"].address == "https://zenodo.org/api/records/6587973"
    assert REMOTES["grabmyo"].address == "https://physionet.org/files/grabmyo/1.1.0"
    asked = []
    found = remote_files("bci2a", SimpleNamespace(size=asked.append))
    assert (
        len(found) == 18
        and asked[0] == REMOTES["bci2a"].address + "/A01T.mat"
        and found[-1].name == "A09E.mat"
    )

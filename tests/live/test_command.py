"""``anchorinv live`` as a user starts it."""

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import anchorinv
from anchorinv import AnchorInvClassifier
from anchorinv.cli.live import load_rejecting
from anchorinv.live.lessons import EventLog
from anchorinv.live.sources import Iterated
from anchorinv.serving.streaming import StreamingPredictor
from tests.live.test_session import model, samples
from tests.models import CHANNELS, RATE, windows

pytest.importorskip("uvicorn", reason="needs the extra live")


@pytest.fixture
def hand(tmp_path):
    model().save(tmp_path / "hand.anchorinv")
    np.save(tmp_path / "day.npy", samples(n=20).astype("float32"))
    return tmp_path


def test_a_killed_session_loses_nothing_that_was_saved(hand):
    from websockets.sync.client import connect

    from anchorinv.live.server import SEEN

    words = ["live", "hand.anchorinv", "--replay", "day.npy", "--sfreq", "128", "--loop", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "anchorinv", *words],
        cwd=hand,
        env={**os.environ, "PYTHONPATH": str(Path(anchorinv.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        host, token = re.search(r"http://(\S+)/\?token=(\S+)", process.stdout.readline()).groups()
        with connect(f"ws://{host}/socket?token={token}", origin=f"http://{host}") as socket:
            socket.send(json.dumps({"order": "save"}))
            kinds = set()
            while "answer" not in kinds or "predictions" not in kinds:
                message = socket.recv()
                kinds |= {json.loads(message)["kind"]} if isinstance(message, str) else {"signal"}
                if kinds & {"frame", "signal"}:
                    socket.send(SEEN)
                    kinds -= {"frame", "signal"}
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    (saved,), (log,) = hand.glob("hand-1-*.anchorinv"), hand.glob("hand-*.jsonl")
    assert AnchorInvClassifier.load(saved).classes_.tolist() == ["left", "right"]
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events[0] == "begin" and "saved" in events and "prediction" in events


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "choose one source"),
        (["--replay", "day.npy", "--board", "synthetic"], "choose one source"),
        (["--replay", "day.npy"], "--sfreq"),
        (["--replay", "nowhere.npy"], "there is no nowhere.npy"),
        (["--replay", "day.npy", "--sfreq", "128", "--folder", "nowhere"], "no folder nowhere"),
        (["--replay", "day.npy", "--sfreq", "128", "--reject", "7"], "a share between 0 and 1"),
        (["--replay", "day.npy", "--sfreq", "128", "--listen", "0.0.0.0"], "means all addresses"),
        (
            ["--replay", "day.npy", "--sfreq", "128", "--listen", "203.0.113.7"],
            "not an address of this machine",
        ),
    ],
)
def test_mistakes_end_in_a_sentence(run, hand, monkeypatch, words, sentence):
    monkeypatch.chdir(hand)
    code, _, errors = run("live", "hand.anchorinv", *words)
    assert code == 1 and sentence in errors and "Traceback" not in errors


def test_a_port_in_use_is_told_and_no_log_begun(run, hand, monkeypatch):
    monkeypatch.chdir(hand)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, errors = run(
            "live", "hand.anchorinv", "--replay", "day.npy", "--sfreq", "128", "--port", port
        )
    assert code == 1 and f"port {port} is in use; choose another --port" in errors
    assert not list(hand.glob("*.jsonl"))


def test_a_folder_that_cannot_be_written_is_named(hand, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(OSError, match=r"nothing can be written in .* \(Permission denied\); choose another"):
        EventLog(hand, "hand")


def test_predictions_of_a_stream_are_rows_of_csv_or_json(run, tmp_path, monkeypatch):
    X, y = windows()
    named = AnchorInvClassifier(sfreq=RATE, network="never", reject=0.05, random_state=0)
    named.fit(X, ["=left, slowly" if label == "left" else label for label in y]).save(
        tmp_path / "m.anchorinv"
    )
    whole = samples(n=20)
    source = partial(Iterated, [whole], sfreq=RATE, ch_names=CHANNELS)
    monkeypatch.setattr("anchorinv.live.sources.LslSource", lambda name: source(name=name))
    monkeypatch.chdir(tmp_path)
    words = ("predict", "m.anchorinv", "--lsl", "armband", "--step", "0.25")
    code, out, errors = run(*words)
    rows = list(csv.reader(out.splitlines()))
    wanted = StreamingPredictor(named, step=round(0.25 * RATE)).feed(whole)
    assert code == 0 and "Traceback" not in errors and {"'=left, slowly"} <= {row[1] for row in rows}
    assert [float(row[0]) for row in rows] == [round((each.start + 64) / RATE, 3) for each in wanted]
    code, out, _ = run(*words, "--json")
    facts = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [each["class"] for each in facts] == [str(each.label) for each in wanted]


def test_a_stream_is_rejected_at_the_models_share_or_at_a_twentieth(hand):
    path = hand / "hand.anchorinv"
    assert AnchorInvClassifier.load(path).reject is None
    assert load_rejecting(path, allow_recordings=False).reject == 0.05
    assert load_rejecting(path, allow_recordings=False, reject=0.2).reject == 0.2
    AnchorInvClassifier.load(path).set_params(reject=0.1).save(path)
    assert load_rejecting(path, allow_recordings=False).reject == 0.1


def test_predict_asks_for_files_or_a_stream(run, hand, monkeypatch):
    monkeypatch.chdir(hand)
    both = ["day.npy", "--lsl", "x"], ["--lsl", "x", "--csv", "rows.csv"]
    for words in ([], ["day.npy", "--json"], ["day.npy", "--out-lsl", "x"], *both):
        code, _, errors = run("predict", "hand.anchorinv", *words)
        assert code == 2 and "--lsl" in errors

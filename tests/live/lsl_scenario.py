"""Streams of Lab Streaming Layer, seen by nobody else: run by test_lsl.py in a network of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pylsl

from anchorinv.live.sources import Chunk, LslSource, MarkerOutlet

NAMES = ("C3", "C4", "Cz", "Pz")


def outlet(name, *, n=4, rate=128.0, units=("microvolts",) * 4, labels=NAMES):
    info = pylsl.StreamInfo(name, "EEG", n, rate, pylsl.cf_float32, f"id-{name}")
    channels = info.desc().append_child("channels")
    for label, unit in zip(labels, units, strict=True):
        channel = channels.append_child("channel")
        channel.append_child_value("label", label)
        channel.append_child_value("unit", unit)
    return pylsl.StreamOutlet(info)


class Sender(threading.Thread):
    """Push samples that count, a chunk every 50 ms, until it is stopped."""

    def __init__(self, out, rate=128.0, values=None, skip=()):
        super().__init__(daemon=True)
        self._out, self._rate, self._ended, self._values, self._skip = (
            out,
            rate,
            threading.Event(),
            values,
            skip,
        )

    def run(self):
        start, sent, each = pylsl.local_clock(), 0, max(1, round(self._rate / 20))
        while not self._ended.wait(max(0.0, start + sent / self._rate - pylsl.local_clock())):
            numbers = np.arange(sent, sent + each)
            if self._values is None:
                rows = np.repeat(numbers[:, None], 4, axis=1) + np.arange(4) / 10
            else:
                rows = self._values[:, numbers % self._values.shape[1]].T
            sent += each
            if not (self._skip and self._skip[0] <= sent < self._skip[1]):
                self._out.push_chunk(rows.astype(np.float32).tolist(), start + (sent - 1) / self._rate)

    def stop(self):
        self._ended.set()
        self.join()


def taken(source, enough):
    """Chunks of a source until there are enough."""
    stopped, chunks = threading.Event(), []
    for chunk in source.chunks(stopped):
        chunks.append(chunk)
        if enough(chunks):
            stopped.set()
    return chunks


def length(chunks: list[Chunk]) -> int:
    return sum(chunk.samples.shape[1] for chunk in chunks)


def values_names_and_units():
    sender = Sender(outlet("plain", units=("microvolts", "uV", "mV", "degrees")))
    sender.start()
    source = LslSource("plain")
    assert source.ch_names == NAMES and source.units == ("V", "V", "V", "degrees"), source.units
    samples = np.concatenate([c.samples for c in taken(source, lambda c: length(c) > 60)], axis=1)
    sender.stop()
    steps = np.diff(samples, axis=1)
    assert np.allclose(steps, np.array([[1e-6], [1e-6], [1e-3], [1.0]]), rtol=1e-3), (
        "samples follow each other"
    )


def lost_samples_are_marked():
    sender = Sender(outlet("gappy"), skip=(60, 160))
    sender.start()
    chunks = taken(LslSource("gappy"), lambda c: length(c) > 250)
    sender.stop()
    missing = sum(int(np.isnan(c.samples[0]).sum()) for c in chunks)
    assert 90 <= missing <= 110, missing


def a_stream_that_is_lost_is_found_again():
    first = outlet("again")
    sender = Sender(first)
    sender.start()
    source, stopped, before, after = LslSource("again"), threading.Event(), [], []
    for chunk in source.chunks(stopped):
        (before if sender is not None else after).append(chunk)
        if sender is not None and length(before) > 30:
            sender.stop()
            del first
            sender._out = None
            sender = None
            other = Sender(outlet("again"))
            other.start()
        elif length(after) > 30:
            stopped.set()
    other.stop()
    assert length(after) > 30


def a_silent_sender_is_looked_for_again():
    first = outlet("silent")
    sender = Sender(first)
    sender.start()
    source, stopped, chunks = LslSource("silent", wait=1.0), threading.Event(), []
    for chunk in source.chunks(stopped):
        chunks.append(chunk)
        if sender.is_alive() and length(chunks) > 30:
            sender.stop()  # the connection stays, as if its machine had frozen
            threading.Timer(3.0, Sender(first).start).start()
        elif length(chunks) > 700:  # those of the silence are marked as missing
            stopped.set()
    assert any(np.isnan(chunk.samples).all() for chunk in chunks)


def other_channels_are_refused_by_name():
    first = outlet("swap")
    sender = Sender(first)
    sender.start()
    try:
        for _ in LslSource("swap").chunks(threading.Event()):
            if sender is not None:
                sender.stop()
                del first
                sender._out = sender = None
                other = outlet("swap", labels=NAMES[::-1])  # noqa: F841 (it is there while it is held)
    except ValueError as error:
        assert "came back with other channels: Pz, Cz, C4, C3" in str(error), error
    else:
        raise AssertionError("other channels were read")


def what_cannot_be_read_is_said():
    kept = outlet("present")  # noqa: F841 (it is there while it is held)
    markers = MarkerOutlet("events")  # noqa: F841
    for name, words in (("absent", "there is events, present"), ("events", "markers or events")):
        try:
            LslSource(name, wait=1.0)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(name)


def predictions_as_markers(model):
    sender = Sender(outlet("hand"), values=np.load(Path(model).with_suffix(".npy")))
    sender.start()
    command = [sys.executable, "-m", "anchorinv", "predict", model, "--lsl", "hand", "--out-lsl", "decisions"]
    client = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = pylsl.resolve_byprop("name", "decisions", timeout=60)
    assert found, client.stderr.read() if client.poll() is not None else "no stream of markers"
    inlet = pylsl.StreamInlet(found[0])
    marker, stamp = inlet.pull_sample(timeout=30)
    late = pylsl.local_clock() - stamp
    lines = [json.loads(client.stdout.readline()) for _ in range(5)]
    client.send_signal(signal.SIGINT)
    _, errors = client.communicate(timeout=30)
    sender.stop()
    assert marker[0] in ("left", "right", "unknown") and 0 < late < 20, (marker, late)
    assert all(line["class"] in ("left", "right", "unknown") for line in lines), lines
    assert client.returncode == 0 and "Traceback" not in errors, errors


def a_page_on_a_stream(model):
    """The whole way: a stream, the command, a browser; a class is taught by clicking, and saved."""
    from playwright.sync_api import sync_playwright

    from tests.report.looking import CHROMIUM, FLAGS

    folder = Path(model).parent
    sender = Sender(outlet("armband", units=("",) * 4), values=np.load(folder / "hand.npy"))
    sender.start()
    command = [sys.executable, "-m", "anchorinv", "live", model, "--lsl", "armband", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    link = server.stdout.readline().split()
    assert link, server.stderr.read()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(link[-1])
        page.wait_for_selector("#label >> text=left")
        sender._values = np.load(folder / "tongue.npy")
        page.fill("#name", "tongue")
        page.click("#teach")
        page.click("#learn")
        page.wait_for_selector("text=“tongue” is learned and in use")
        page.wait_for_selector("#label >> text=tongue")
        page.click("#save")
        page.wait_for_selector("text=Saved as")
        browser.close()
    server.send_signal(signal.SIGINT)
    _, errors = server.communicate(timeout=60)
    sender.stop()
    assert server.returncode == 0 and "Traceback" not in errors, errors


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.argv[2:] == ["page"]:
        a_page_on_a_stream(sys.argv[1])
        sys.exit()
    for scenario in (
        values_names_and_units,
        lost_samples_are_marked,
        a_stream_that_is_lost_is_found_again,
        a_silent_sender_is_looked_for_again,
        other_channels_are_refused_by_name,
        what_cannot_be_read_is_said,
    ):
        scenario()
        print(scenario.__name__, flush=True)
    predictions_as_markers(sys.argv[1])
    print("predictions_as_markers", flush=True)

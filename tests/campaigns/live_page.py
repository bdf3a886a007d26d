"""How late a page is, how long a lesson takes, how much memory a stream needs: what a session is held to.

``python -m tests.campaigns.live_page`` on quiet cores: an hour of 64 channels at 1,000 Hz, fifty times
as fast, then a page in Chromium on 8 channels at 200 Hz, and on 64 at 1,000 Hz; with ``page`` the page on 8
channels alone.

A decision that computes for much less time than it takes has waited: for a core where it was preempted or had
to yield, for a lock or another thread of the process where it blocked.
"""

import gc
import resource
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from anchorinv import AnchorInvClassifier
from anchorinv.live.session import LiveSession
from anchorinv.live.sources import Chunk
from anchorinv.live.stream import undisturbed


class Noise:
    """A source of noise at a rate, so many times as fast; classes are loud on different channels."""

    units: tuple[str, ...]

    def __init__(self, n_chans: int, sfreq: float, speed: float = 1.0) -> None:
        self.name, self.sfreq, self._speed = "noise", sfreq, speed
        self.ch_names, self.units = tuple(f"ch{i}" for i in range(1, n_chans + 1)), ("",) * n_chans
        self.loud, self.seconds = 0, 0.0

    def chunks(self, stopped):
        rng, due = np.random.default_rng(0), time.monotonic()
        n = round(0.02 * self.sfreq * max(1.0, self._speed / 2))
        while not stopped.wait(max(0.0, due - time.monotonic())):
            due += n / self.sfreq / self._speed
            samples = rng.normal(size=(len(self.ch_names), n))
            samples[self.loud] *= 3
            self.seconds += n / self.sfreq
            yield Chunk(samples, time.time())


def model(n_chans: int, n_times: int, sfreq: float) -> AnchorInvClassifier:
    rng, labels = np.random.default_rng(1), np.repeat([f"class {i}" for i in range(4)], 60)
    signals = rng.normal(size=(240, n_chans, n_times))
    for i in range(4):
        signals[labels == f"class {i}", i] *= 3
    return AnchorInvClassifier(sfreq=sfreq, network="never", reject=0.05, random_state=0).fit(signals, labels)


def resident() -> float:
    """Memory in MB that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


class Decisions:
    """What decisions of a session take: computing, preempted and blocked, and what goes before them."""

    def __init__(self, session: LiveSession) -> None:
        self._session, self._take, self.rows = session, session.stream.take, []
        session.stream.take = self.take

    def take(self, chunk: Chunk) -> None:
        n, began, before = self._session.n_predictions, time.thread_time(), self._usage()
        self._take(chunk)
        if self._session.n_predictions > n:
            (last,), after = list(self._session.predictions)[-1:], self._usage()
            took, computing = last.decided - last.taken, time.thread_time() - began
            self.rows.append((1000 * took, 1000 * computing, *np.subtract(after, before)))

    @staticmethod
    def _usage() -> tuple[int, int]:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return usage.ru_nivcsw, usage.ru_nvcsw

    def __str__(self) -> str:
        rows, shares = np.array(self.rows), [5, 50, 90, 95, 99]
        took, computing, preempted, blocked = (np.percentile(row, shares).round(1) for row in rows.T)
        waits = f"preempted {preempted} times, blocked {blocked} times"
        return f"decision alone: {took} ms (5, 50, 90, 95, 99 %), computing for {computing} ms, {waits}"


def page(n_chans: int = 8, sfreq: float = 200.0, seconds: float = 30.0) -> None:
    """Print latency in a page and of a decision, and from the click to the model in use."""
    from playwright.sync_api import sync_playwright

    from anchorinv.live.server import LiveServer
    from tests.report.looking import CHROMIUM, FLAGS

    source = Noise(n_chans, sfreq)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver, undisturbed():
        session = LiveSession(
            model(n_chans, 300 if n_chans < 32 else 500, sfreq), source, folder=Path(folder)
        )
        door = socket.create_server(("127.0.0.1", 0))
        host = f"127.0.0.1:{door.getsockname()[1]}"
        live = LiveServer(session, [host])
        server, decisions = live.serving(), Decisions(session)
        threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True).start()
        session.start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        shown = browser.new_page(viewport={"width": 1280, "height": 900})
        shown.goto(f"http://{host}/?token={live.token}")
        shown.wait_for_timeout(3000)
        shown.evaluate("live.latencies.length = 0; live.frames = 0")
        decisions.rows.clear()
        shown.wait_for_timeout(1000 * seconds)
        late = np.array(shown.evaluate("live.latencies"))
        alone, frames = str(decisions), shown.evaluate("live.frames") / seconds
        source.loud = 5
        session.teach("new", 10, countdown=0.0)
        while session.lesson is None or session.lesson.phase != "review":
            shown.wait_for_timeout(50)
        shown.wait_for_selector("#learn")
        began, number = time.perf_counter(), session.versions.now.number
        shown.click("#learn")
        while session.versions.now.number == number or session.predictions[-1].model == number:
            shown.wait_for_timeout(10)
        taught = time.perf_counter() - began
        print(f"{n_chans} channels at {sfreq:g} Hz:")
        print(
            f"to the page: {np.percentile(late, [50, 95, 99]).round(1)} ms (50, 95, 99 %), {len(late)} labels"
        )
        print(alone)
        print(f"from learn to a prediction by the new model: {taught:.2f} s; {frames:.0f} frames a second")
        browser.close()
        server.should_exit = True
        session.stop()


def memory(minutes: tuple[int, ...] = (1, 10, 60), speed: float = 50.0) -> None:
    """Print the memory of a session after some minutes of its stream.

    What looks new is dismissed at once, so that it is looked for again: the most that a session does alone.
    """
    source = Noise(64, 1000.0, speed)
    session = LiveSession(model(64, 500, 1000.0), source, step=1.0)
    session.start()
    marks, dismissed = [], 0
    for at in minutes:
        while source.seconds < 60 * at and session.stream.status != "failed":
            time.sleep(0.05)
            if session.watch.suggestion is not None:
                session.dismiss()
                dismissed += 1
        marks.append(resident())
        print(f"memory after {at} min: {marks[-1]:.0f} MB ({100 * (marks[-1] / marks[0] - 1):+.1f} %)")
    session.stop()
    unknown = f"{session.watch._n_seen} rejected, {dismissed} times taken for a new class"
    print(f"{session.n_predictions} windows, {unknown}; the stream has {session.stream.status}")


if __name__ == "__main__":
    alone = "page" in sys.argv[1:]
    if not alone:
        memory()  # first: what a browser and other models leave behind is not the session's
    page()
    if not alone:
        page(64, 1000.0)

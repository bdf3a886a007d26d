"""The page in a real browser, on real EMG: a person does gestures, and somebody clicks."""

import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.metrics import f1_score

from anchorinv import AnchorInvClassifier
from anchorinv.live.session import LiveSession
from anchorinv.live.sources import Chunk
from tests.datasets.genuine import shared
from tests.report.looking import CHROMIUM, FLAGS, PATIENCE

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra live")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
BASE, NEW = ("rest", "fist", "open", "pinch", "point"), ("up", "down", "turn")
SPEED = 8


class Person:
    """A source: one person's windows of a gesture, day after day, until another gesture is done."""

    name, sfreq, units = "armband", 200.0, ("",) * 8
    ch_names = tuple(f"ch{i}" for i in range(1, 9))

    def __init__(self, signals, labels, days):
        order = np.argsort(days, kind="stable")
        self._of = {
            name: np.concatenate(list(signals[order][labels[order] == name]), axis=1) for name in set(labels)
        }
        self.does, self._at = "rest", dict.fromkeys(self._of, 0)

    def chunks(self, stopped):
        n, due = round(0.02 * self.sfreq * SPEED), time.monotonic()
        while not stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic() - 0.1) + 0.02
            samples, at = self._of[self.does], self._at[self.does]
            self._at[self.does] = at + n
            yield Chunk(np.take(samples, np.arange(at, at + n), axis=1, mode="wrap"), time.time())


@pytest.fixture(scope="module")
def emg():
    with np.load(shared("emg_longterm.npz")) as file:
        one = (file["subject"] == file["subject"][0]) & (file["y"] < len(BASE + NEW))
        signals = (file["X"][one] * file["scale"]).astype("float32")
        return signals, np.array(BASE + NEW)[file["y"][one]], file["day"][one]


@pytest.fixture(scope="module")
def model(emg):
    signals, labels, days = emg
    base = (days <= 8) & np.isin(labels, BASE)
    return AnchorInvClassifier(sfreq=200, network="never", reject=0.05, random_state=0).fit(
        signals[base], labels[base]
    )


@contextmanager
def served(session):
    """The address of a page on a session."""
    from anchorinv.live.server import LiveServer

    door = socket.create_server(("127.0.0.1", 0))
    host = f"127.0.0.1:{door.getsockname()[1]}"
    page = LiveServer(session, [host])
    server = uvicorn.Server(uvicorn.Config(page.app, log_level="error", ws_max_size=1 << 16))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
    session.start()
    thread.start()
    try:
        yield f"http://{host}/?token={page.token}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        session.stop()
        door.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def person(emg):
    signals, labels, days = emg
    later = (days > 8) & (days <= 20)
    return Person(signals[later], labels[later], days[later])


def score(model, emg):
    """Macro-F1 over all eight gestures, on days that nobody has shown the model."""
    signals, labels, days = emg
    test = days > 20
    predicted = (
        AnchorInvClassifier.from_bundle(model.to_bundle()).set_params(reject=None).predict(signals[test])
    )
    return f1_score(labels[test], predicted, average="macro", labels=BASE + NEW, zero_division=0)


def until(page, expression):
    """Wait for something on the page; its policy lets no text be run there, so it is asked from outside."""
    while not page.evaluate(expression):
        page.wait_for_timeout(50)


def opened(browser, address, problems, *, width=1280, **options):
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    until(page, "live.ribbon.length > 0")
    return page


def test_three_gestures_are_taught_by_clicking(browser, model, person, emg, tmp_path):
    before, problems = score(model, emg), []
    session = LiveSession(model, person, folder=tmp_path, name="hand")
    with served(session) as address:
        page = opened(browser, address, problems)
        for gesture in NEW:
            person.does = gesture
            page.fill("#name", gesture)
            page.click("#teach")
            page.wait_for_selector("#shots li >> nth=9")
            if gesture == NEW[0]:  # a window that went wrong
                page.click("#shots li >> nth=0 >> text=Remove")
                until(page, "document.querySelectorAll('#shots li').length === 9")
            page.click("#learn")
            page.wait_for_selector(f"text=What the lesson on {gesture} did")
        assert "→" in page.inner_text("#report") and page.inner_text("#problem") == ""
        until(page, f"live.ribbon.slice(-5).some(p => p.label === '{NEW[-1]}')")
        other = opened(browser, address, problems, width=390)  # a second page sees the same
        assert other.inner_text("#classes") == page.inner_text("#classes")
        assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.click("#save")
        page.wait_for_selector("text=Saved as")
        page.click("#undo")
        until(page, f"!document.getElementById('classes').innerText.includes('{NEW[-1]}')")
    (saved,) = tmp_path.glob("*.anchorinv")
    taught = AnchorInvClassifier.load(saved)
    assert set(taught.classes_) == {*BASE, *NEW} and taught.counts_.sum() == model.counts_.sum() + 29
    assert score(taught, emg) > before + 0.1 and not problems


def test_hands_free_and_by_keyboard(browser, model, person, tmp_path):
    problems: list[str] = []
    with served(LiveSession(model, person, folder=tmp_path)) as address:
        page = opened(browser, address, problems, reduced_motion="reduce", color_scheme="dark")
        person.does = "up"
        page.check("#handsfree")
        page.focus("#name")
        page.keyboard.type("up")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=What the lesson on up did")
        unnamed = page.eval_on_selector_all(
            "button, input, a[href], canvas",
            "all => all.filter(e => !(e.labels?.length || e.innerText?.trim() || e.ariaLabel"
            " || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)",
        )
        assert unnamed == [] and "Learned up" in page.inner_text("#spoken")
    assert not problems

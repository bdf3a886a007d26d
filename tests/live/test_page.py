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

    def __init__(self, signals, labels, days, speed=SPEED):
        order = np.argsort(days, kind="stable")
        self._of = {
            name: np.concatenate(list(signals[order][labels[order] == name]), axis=1) for name in set(labels)
        }
        self.does, self._at, self._speed = "rest", dict.fromkeys(self._of, 0), speed

    def chunks(self, stopped):
        n, due = round(0.02 * self.sfreq * self._speed), time.monotonic()
        while not stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic() - 0.1) + 0.02
            if self.does is None:  # the cable is out
                continue
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
    server = page.serving()
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
            page.wait_for_selector(f"text=“{gesture}” is learned and in use")
        assert "→" in page.inner_text("#report") and page.inner_text("#problem") == ""
        until(page, f"live.ribbon.slice(-5).some(p => p.label === '{NEW[-1]}')")
        other = opened(browser, address, problems, width=390)  # a second page sees the same
        assert other.inner_text("#classes") == page.inner_text("#classes")
        swatches = "[...document.querySelectorAll('#classes .swatch')].map(e => e.style.background)"
        assert other.evaluate(swatches) == page.evaluate(swatches)
        assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.click("#save")
        page.wait_for_selector("text=Saved as")
        page.click("#undo")
        until(page, f"!document.getElementById('classes').innerText.includes('{NEW[-1]}')")
        page.wait_for_selector(f"#report >> text=Undone: taught {NEW[-1]}.")
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
        page.wait_for_selector("text=“up” is learned and in use")
        assert "Learned “up”" in page.inner_text("#spoken") and page.input_value("#name") == ""
        page.uncheck("#handsfree")
        page.focus("#name")
        page.keyboard.type("up")
        page.keyboard.press("Enter")
        page.wait_for_selector("#shots li >> nth=9")
        focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
        assert page.evaluate(focused) == "Learn “up” from 10 windows"
        page.focus("[aria-label='Remove window 3']")
        page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('#shots li').length === 9")
        assert page.evaluate(focused) == "Remove window 4"  # the next one, and not the top of the page
        page.focus("#learn")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=9 more examples, 19 in all")
        assert "“up” is learned" in page.evaluate(focused) and not problems
    page.wait_for_selector("text=No connection")  # and no class that would be taken for the present one
    assert page.inner_text("#label") == "…"


def test_practice_problems_and_a_stream_that_is_lost(browser, model, person, tmp_path):
    problems: list[str] = []
    session = LiveSession(model, person, folder=tmp_path)
    with served(session) as address:
        page = opened(browser, address, problems)
        page.fill("#name", "Fist")
        page.click("#teach")
        page.wait_for_selector("#banner >> text=looks like the known class 'fist'")
        page.fill("#rounds", "1")
        page.click("#practise")  # something else was asked for, so the complaint is over
        stop = page.wait_for_selector("#practice >> text=Stop")
        assert not page.is_visible("#banner")
        while not session.practice.counts.sum() > 3:
            page.wait_for_timeout(50)
        assert stop.evaluate("button => button.isConnected")  # a press that takes its time is one
        while session.practice.phase != "done":
            person.does = session.practice.prompts[session.practice.place]
            page.wait_for_timeout(50)
        page.wait_for_selector("text=windows were classified correctly")
        assert page.locator("#practice tr").count() == 1 + len(BASE)
        session.problem = "odd"
        session._changed()
        page.wait_for_selector("#banner >> text=odd")
        session._changed()
        page.click("#banner-close")
        assert page.evaluate(HUES) <= 2 + len(BASE)  # the ground, the line of unknown ones: no seams
        page.evaluate(COUNT_FILLS)
        until(page, "window.fills > 0")
        person.does = None
        page.wait_for_selector("text=Waiting for samples of armband")
        assert page.inner_text("#label") == "…" and not page.is_visible("#banner")
        fills, frames = page.evaluate("[window.fills, live.frames]")
        until(page, f"live.frames > {frames + 20}")
        assert page.evaluate("window.fills") == fills  # what has not changed is not drawn again
        person.does = "fist"
        until(page, "document.getElementById('label').innerText !== '…'")
    assert not problems


# Colours along the ribbon, and how often something is drawn there.
HUES = """() => {
  const ribbon = document.getElementById("ribbon");
  const row = ribbon.getContext("2d").getImageData(0, Math.floor(ribbon.height / 2), ribbon.width, 1).data;
  return new Set(Array.from({ length: ribbon.width }, (_, i) => row.slice(4 * i, 4 * i + 4).join())).size;
}"""
COUNT_FILLS = """() => {
  const g = document.getElementById("ribbon").getContext("2d"), fill = g.fillRect.bind(g);
  window.fills = 0;
  g.fillRect = (...box) => { window.fills++; fill(...box); };
}"""

# Text that is too faint, text that is too small, buttons that no finger hits, cards over each other.
FLAWS = """() => {
  const flaws = [], rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => rgb(text).slice(0, 3).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const ground = getComputedStyle(node).backgroundColor;
      if ((rgb(ground)[3] ?? 1) > 0) return ground;
    }
  };
  for (const node of document.querySelectorAll("body *")) {
    const style = getComputedStyle(node), box = node.getBoundingClientRect();
    if (!node.checkVisibility() || node.closest(".quiet, script") || node.disabled) continue;
    if ([...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) {
      const [a, b] = [light(style.color), light(behind(node))].sort((x, y) => y - x);
      if ((a + .05) / (b + .05) < 4.5) flaws.push(`faint: ${node.outerHTML.slice(0, 80)}`);
      if (parseFloat(style.fontSize) < 13) flaws.push(`small: ${node.outerHTML.slice(0, 80)}`);
    }
    if (node.matches("button, a") && Math.min(box.height, box.width) < 36) flaws.push(`tiny: ${node.id}`);
    if (node.matches("button, input, a[href], canvas") && !(node.labels?.length || node.innerText?.trim()
      || node.ariaLabel || node.getAttribute("aria-labelledby"))) flaws.push(`unnamed: ${node.outerHTML}`);
  }
  const cards = [...document.querySelectorAll("section, header")].filter(each => each.checkVisibility())
    .map(each => each.getBoundingClientRect());
  cards.forEach((a, i) => cards.slice(i + 1).forEach(b => {
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
      flaws.push(`overlap: ${a.top} ${b.top}`);
  }));
  if (document.documentElement.scrollWidth > innerWidth) flaws.push("wider than the screen");
  return flaws;
}"""


def test_it_is_legible_at_every_width_in_both_schemes(browser, model, person):
    problems: list[str] = []
    session = LiveSession(model, person)
    with served(session) as address:
        person.does = "up"
        page = opened(browser, address, problems)
        page.fill("#name", "up")
        page.click("#teach")
        page.wait_for_selector("#shots li >> nth=9")
        for phase in ("review", "report"):
            if phase == "report":
                page.click("#learn")
                page.wait_for_selector("text=“up” is learned and in use")
                session.watch.suggest(np.zeros((10, 8, 300)), "up")
                session.warning = session.problem = "Something went wrong with a long sentence to be read."
                session.stream.contact = ["mains hum", "saturated", *[""] * 6]
                session._changed()
                page.wait_for_selector("#s-suggestion")
            for width in (390, 1280, 1920):
                for scheme in ("light", "dark"):
                    page.set_viewport_size({"width": width, "height": 900})
                    page.emulate_media(color_scheme=scheme)
                    assert page.evaluate(FLAWS) == [], (phase, width, scheme)
    assert not problems

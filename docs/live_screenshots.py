"""The pictures of docs/live.md: a page on one person's EMG in which a gesture was just taught.

``python docs/live_screenshots.py EMG_LONGTERM.npz`` needs Chromium; the same lesson is shown wide and narrow.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchorinv import AnchorInvClassifier
from anchorinv.live.session import LiveSession
from tests.live.test_page import BASE, NEW, Person, served
from tests.report.looking import CHROMIUM, FLAGS

HERE = Path(__file__).parent


def main() -> None:
    """Teach a gesture, and take the pictures."""
    with np.load(sys.argv[1]) as file:
        one = (file["subject"] == file["subject"][0]) & (file["y"] < len(BASE + NEW))
        signals, days = (file["X"][one] * file["scale"]).astype("float32"), file["day"][one]
        labels = np.array(BASE + NEW)[file["y"][one]]
    base = (days <= 8) & np.isin(labels, BASE)
    model = AnchorInvClassifier(sfreq=200, network="never", reject=0.05, random_state=0)
    model.fit(signals[base], labels[base])
    person = Person(signals[days > 8], labels[days > 8], days[days > 8], speed=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(LiveSession(model, person, folder=Path(folder), name="hand")) as address,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        for gesture in ("fist", "open", "point"):
            person.does = gesture
            page.wait_for_timeout(5000)
        person.does = "up"
        page.fill("#name", "up")
        page.click("#teach")
        page.wait_for_selector("#learn")
        page.screenshot(path=HERE / "live-lesson-1280.png", full_page=True)
        page.click("#learn")
        page.wait_for_selector("text=“up” is learned and in use")
        page.wait_for_timeout(6000)
        page.screenshot(path=HERE / "live-1280.png", full_page=True)
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(7000)
        page.screenshot(path=HERE / "live-390.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()

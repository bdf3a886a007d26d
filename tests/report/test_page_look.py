"""The page in a real Chromium, at a desk and on a phone; skipped where there is none."""

from pathlib import Path

import pytest

from anchorinv.report import formats
from anchorinv.report.page import make_report
from tests.report import looking
from tests.report.made import alone, made, smoke

# A page of each kind: methods beside the paper, figures of signals and features, then the ablations.
KINDS = ["drawn", "with_features", "bci2a-anchors", "bci2a-base-pairs", "anchor-selection",
         "grabmyo-reduced-base", "people", "together"]  # fmt: skip


@pytest.fixture(scope="module")
def context():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    if not looking.CHROMIUM:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=looking.CHROMIUM, args=looking.FLAGS, timeout=looking.PATIENCE
        )
        yield started.new_context()
        started.close()


@pytest.fixture
def report(request, context, tmp_path, monkeypatch) -> Path:
    if request.param in ("drawn", "with_features"):
        return request.getfixturevalue(request.param)
    monkeypatch.setattr(formats, "FORMATS", {"svg": {"Date": None}})  # the page shows no other
    if request.param == "together":
        runs = [made(tmp_path / name, smoke(name)) for name in ("bci2a", "nhie")]
    elif request.param == "people":
        runs = [made(tmp_path / "run", alone(smoke("bci2a")), people=("anna", "bob", "cleo"))]
    else:
        runs = [made(tmp_path / "run", smoke(request.param))]
    return make_report(runs, tmp_path / "report").parent


@pytest.mark.parametrize("report", KINDS, indirect=True)
def test_the_page(context, report):
    with looking.opened(context, report, looking.WIDTHS[0]) as page:
        for check in looking.ONCE:
            check(page)
        for width in looking.WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for check in looking.AT_EVERY_WIDTH:
                check(page)
            red = page.evaluate("getComputedStyle(document.querySelector('.warning')).color")
            assert red == "rgb(168, 0, 0)", "a small run says so in red"
            assert page.evaluate("document.querySelector('.warning').offsetTop") < 200
        looking.nothing_is_wrong_or_fetched(page)  # nor by what was pressed


@pytest.mark.parametrize("report", ["drawn"], indirect=True)
def test_the_keyboard_is_enough(context, report):
    with looking.opened(context, report, 1280) as page:
        looking.the_keyboard_reaches_everything(page)
        heads = page.locator("section.table").first.locator("thead tr:last-child th")
        heads.nth(0).locator("button").focus()
        page.keyboard.press("Enter")
        assert heads.nth(0).get_attribute("aria-sort") == "ascending"
        page.keyboard.press("Enter")
        assert heads.nth(0).get_attribute("aria-sort") == "descending"


def test_six_sessions_fit_a_desk(context, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", {"svg": {"Date": None}})
    monkeypatch.setattr("anchorinv.report.page.score_figures.score_figures", lambda run: [])
    run = made(tmp_path / "run", smoke("grabmyo", trials=8))
    with looking.opened(context, make_report([run], tmp_path / "report").parent, 1280) as page:
        looking.tables_fit_a_desk(page)
        heads = page.locator("section.table").first.locator("thead tr:last-child th button")
        assert (
            heads.nth(2).inner_text().strip() == "1"
            and heads.nth(2).get_attribute("aria-label") == "Session 1"
        )

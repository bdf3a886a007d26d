"""The page in a real Chromium, at a desk and on a phone; skipped where there is none."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    if not CHROMIUM:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module", params=["drawn", "portrayed"])
def report(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", params=WIDTHS, ids=[f"{width}px" for width in WIDTHS])
def page(request, browser, report):
    """The page opened from disk; everything it says or asks for is kept."""
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    opened.heard, opened.asked = [], []
    opened.on("console", lambda message: opened.heard.append(message.text))
    opened.on("pageerror", lambda error: opened.heard.append(str(error)))
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto((report / "report.html").as_uri())
    yield opened
    opened.close()


def test_nothing_is_wrong_and_nothing_is_fetched(page, report):
    assert page.heard == []
    outside = [url for url in page.asked if not url.startswith(("data:", report.as_uri()))]
    assert outside == []


def test_all_figures_are_visible(page):
    sizes = page.evaluate(
        "Array.from(document.images).map(i => [i.complete && i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    assert len(sizes) >= 4
    for natural, width, height in sizes:
        assert natural > 0 and width >= 300 and height >= 60
    assert page.evaluate("Array.from(document.images).every(image => image.alt.length > 40)")


def test_the_page_is_as_wide_as_the_screen(page):
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16


def test_links_within_the_page_lead_somewhere(page):
    for link in page.query_selector_all('a[href^="#"]:not(.skip)'):
        target = link.get_attribute("href")
        link.click()
        assert page.evaluate("location.hash") == target
        assert page.evaluate("id => document.getElementById(id) !== null", target[1:]), target


def test_tables_sort_by_mouse_and_by_keyboard(page):
    table = page.locator("#table-bci2a-scores")
    heads = table.locator("thead tr:last-child th")

    def column(place: int) -> list[str]:
        return table.locator("tbody tr").evaluate_all(
            "(rows, place) => rows.map(row => row.cells[place].dataset.value)", place
        )

    heads.nth(3).locator("button").click()
    values = [float(value) for value in column(3)]
    assert values == sorted(values, reverse=True) and heads.nth(3).get_attribute("aria-sort") == "descending"
    heads.nth(3).locator("button").click()
    assert [float(value) for value in column(3)] == sorted(values)
    heads.nth(0).locator("button").focus()
    page.keyboard.press("Enter")
    assert column(0) == sorted(column(0), key=str.lower)
    assert heads.nth(3).get_attribute("aria-sort") == "none"


def test_headings_and_tables_are_real(page):
    levels = page.evaluate(
        "Array.from(document.querySelectorAll('h1,h2,h3,h4')).map(h => Number(h.tagName[1]))"
    )
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    tables = page.locator("table")
    assert tables.count() >= 4
    assert tables.evaluate_all("all => all.every(t => t.caption && t.querySelector('th[scope=col]'))")
    red = page.evaluate("getComputedStyle(document.querySelector('.warning')).color")
    assert red == "rgb(168, 0, 0)"
    assert page.evaluate("document.querySelector('.warning').getBoundingClientRect().top + scrollY < 200")

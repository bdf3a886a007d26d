"""What must hold of any report's page in a browser: each function looks at one thing and asserts."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

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
PATIENCE = 600_000  # ms: nothing is asserted about it; a browser that hangs ends the tests some time
UPRIGHT, ACROSS = 17.6 / 2.54 * 96, 26.3 / 2.54 * 96  # CSS pixels between the margins of an A4 page

Opened = Any  # a page of playwright, which need not be there


@contextmanager
def opened(context: Any, report: Path, width: int) -> Iterator[Opened]:
    """The page opened from disk; everything it says or asks for is kept."""
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.heard, page.asked = [], []
    page.on("console", lambda message: page.heard.append(message.text))
    page.on("pageerror", lambda error: page.heard.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto((report / "report.html").as_uri())
    yield page
    page.close()


def nothing_is_wrong_or_fetched(page: Opened) -> None:
    assert page.heard == []
    here = page.url.split("#")[0]
    assert [url for url in page.asked if not url.startswith(("data:", here))] == []


def figures_are_visible(page: Opened) -> None:
    sizes = page.evaluate(
        "Array.from(document.images).map(i => [i.complete && i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    assert sizes
    for natural, width, height in sizes:
        assert natural > 0 and width >= 300 and height >= 60
    assert page.evaluate("Array.from(document.images).every(image => image.alt.length > 40)")


def it_is_as_wide_as_the_screen(page: Opened) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16


def tables_fit_a_desk(page: Opened) -> None:
    wide = page.evaluate(
        """() => Array.from(document.querySelectorAll(".table .scroll"))
          .filter(box => box.scrollWidth > box.clientWidth).map(box => box.parentElement.id)"""
    )
    assert wide == [], wide


def links_lead_somewhere(page: Opened) -> None:
    lost = page.evaluate(
        """() => Array.from(document.querySelectorAll('a[href^="#"]')).filter(link => {
          link.click();
          return location.hash !== link.getAttribute("href") || !document.querySelector(":target");
        }).map(link => link.getAttribute("href"))"""
    )
    assert lost == [], lost
    ids = page.evaluate("Array.from(document.querySelectorAll('[id]')).map(e => e.id)")
    assert len(ids) == len(set(ids))


def every_column_sorts(page: Opened) -> None:
    wrong = page.evaluate(
        """() => {
          const wrong = [];
          for (const button of document.querySelectorAll("th button")) {
            const head = button.parentElement, table = head.closest("table");
            const place = Array.from(head.parentElement.cells).indexOf(head);
            for (const turn of [0, 1]) {
              button.click();
              const down = head.getAttribute("aria-sort") === "descending";
              const cells = Array.from(table.tBodies[0].rows).map(row => row.cells[place].dataset.value);
              const full = cells.filter(value => value !== "");
              const numeric = full.every(value => !Number.isNaN(Number(value)));
              const order = (a, b) => (down ? -1 : 1) * (numeric ? a - b : a.localeCompare(b));
              const there = [...full].sort(order).concat(cells.filter(value => value === ""));
              const marked = table.querySelectorAll("th[aria-sort=ascending], th[aria-sort=descending]");
              if (cells.join("\\n") !== there.join("\\n") || marked.length !== 1) {
                wrong.push(`${table.caption.innerText}: ${button.innerText}`);
              }
            }
          }
          return wrong;
        }"""
    )
    assert wrong == [], wrong


def headings_and_tables_are_real(page: Opened) -> None:
    levels = page.evaluate(
        "Array.from(document.querySelectorAll('h1,h2,h3,h4')).map(h => Number(h.tagName[1]))"
    )
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    tables = page.locator("table")
    assert tables.count() >= 2
    assert tables.evaluate_all("all => all.every(t => t.caption && t.querySelector('th[scope=col]'))")
    assert tables.evaluate_all("all => all.every(t => t.querySelector('tbody th[scope=row]'))")


def a_screen_reader_finds_its_way(page: Opened) -> None:
    assert page.evaluate("document.documentElement.lang") == "en" and page.title()
    tree = page.locator("body").aria_snapshot()
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert f"- {role}" in tree, role
    assert "- img\n" not in tree, "a picture without words"
    assert "- button:" not in tree and "- link:" not in tree, "something to press without a name"
    # A region that scrolls is reached by keyboard, so it has a name.
    assert "- region:\n" not in tree


def the_keyboard_reaches_everything(page: Opened) -> None:
    page.evaluate("document.activeElement.blur(); history.replaceState(null, '', location.pathname)")
    page.reload()
    wanted = page.evaluate("document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]').length")
    page.evaluate(
        """() => {
          const all = Array.from(document.querySelectorAll('a[href], button, summary, [tabindex="0"]'));
          window.reached = [];
          document.addEventListener("focusin", event => {
            const style = getComputedStyle(event.target);
            const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
            window.reached.push([all.indexOf(event.target), outlined]);
          });
        }"""
    )
    for _ in range(wanted):
        page.keyboard.press("Tab")
    reached = page.evaluate("window.reached")
    assert {place for place, _ in reached} == set(range(wanted))
    assert all(outlined for _, outlined in reached)


def it_prints_without_cuts(page: Opened) -> None:
    page.emulate_media(media="print")
    before = page.viewport_size
    cut = []
    for width, which in ((UPRIGHT, "not(.broad *)"), (ACROSS, "is(.broad *)")):
        page.set_viewport_size({"width": int(width), "height": 900})
        cut += page.evaluate(
            """([width, which]) => Array.from(document.querySelectorAll(`:is(table, img, pre, p):${which}`))
              .filter(each => each.getBoundingClientRect().right > width + 1)
              .map(each => each.getBoundingClientRect().right + each.outerHTML.slice(0, 90))""",
            [width, which],
        )
    page.set_viewport_size(before)
    page.emulate_media(media="screen")
    assert cut == [], cut


# What depends on the width of the screen, and what does not: addresses, the order of cells, headings, paper.
AT_EVERY_WIDTH = (figures_are_visible, it_is_as_wide_as_the_screen, a_screen_reader_finds_its_way)
ONCE = (
    links_lead_somewhere,
    every_column_sorts,
    headings_and_tables_are_real,
    it_prints_without_cuts,
)

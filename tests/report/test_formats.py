"""Drawings made short show the same; methods have their own colours and markers, other lines free ones."""

import re
from xml.etree import ElementTree as ET

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.core.registry import METHODS, MethodSpec
from anchorinv.report.formats import (
    COLOURS,
    MARKERS,
    canvas,
    colours,
    figure_style,
    markers,
    render_figure,
    shorten_svg,
)
from anchorinv.report.page import address

TITLES = [spec.title for spec in METHODS.values()]


def test_text_keeps_its_digits_and_coordinates_lose_some():
    found = shorten_svg('<svg ><path d="M 1.23456 2.0"/><text x="3.14159">x="0.0183"</text></svg>')
    assert 'd="M1.23 2"' in found and 'x="3.14"' in found
    assert shorten_svg('<svg ><text y="1.0">MAE 0.0183,  M 1.23456</text></svg>').endswith(
        'y="1">MAE 0.0183,  M 1.23456</text></svg>'
    )


@given(st.integers(0, 2**32 - 1), st.integers(2, 200))
def test_a_trace_stays_where_it_was(seed, length):
    trace = np.random.default_rng(seed).uniform(-500, 2000, (length, 2))
    svg = f'<path d="M {" ".join(f"L {x:f} {y:f}" for x, y in trace)[2:]} "/>'
    numbers = np.array(re.findall(r"-?[\d.]+", shorten_svg(svg)), dtype=float).reshape(-1, 2)
    assert np.abs(numbers - trace).max() < 0.0501


def test_a_drawing_is_whole_and_asks_for_one_font():
    with figure_style():
        drawing = canvas(3.5, 2)
        ax = drawing.subplots()
        ax.plot([1, 2, 4], marker="o", label='it\'s "a" <line>')
        ax.legend()
        figure = render_figure(drawing, "slug", "title", "alt", "caption")
    root = ET.fromstring(figure.svg)
    assert 'it\'s "a" <line>' in [text.strip() for text in root.itertext()]
    assert figure.svg.count("font-family") == 1 and root.get("font-family", "").startswith("DejaVu Sans")
    assert not figure.wide and figure.png.startswith(b"\x89PNG") and figure.pdf.startswith(b"%PDF")


def test_an_address_ends_nowhere_but_at_its_end():
    found = address('<svg a="b"><text>100 % &amp; #1 "é"</text></svg>')
    assert found.startswith("data:image/svg+xml,<svg a=%22b%22>") and not set(found) & set('"#&é')
    assert "100 %25 %26amp; %231" in found


def test_every_method_has_its_colour_and_marker_wherever_it_stands():
    for lines in (TITLES, TITLES[::-1], ["mine", TITLES[3], "other"]):
        own = {s.title: (s.colour, s.marker) for s in METHODS.values() if s.title in lines}
        shades, signs = colours(lines), markers(lines)
        assert {line: (shades[line], signs[line]) for line in own} == own
        assert len(set(shades.values())) == len(set(signs.values())) == len(lines)


def test_a_method_from_elsewhere_brings_its_colour_or_gets_a_free_one():
    for colour in ("#123456", ""):
        spec = MethodSpec(name="mine", title="Mine", citation="", build=lambda base: None, look=(colour, ""))
        METHODS.register("mine", spec)
        try:
            shade = colours([*TITLES[:3], "Mine"])["Mine"]
        finally:
            METHODS.unregister("mine")
        assert shade == colour or (not colour and shade in COLOURS)
    assert len(COLOURS) == len(MARKERS)


def test_more_lines_than_colours_are_a_scale():
    lines = [f"{n} shots" for n in range(25)]
    assert len(set(colours(lines).values())) == 25 and set(markers(lines).values()) == set(MARKERS)
    assert colours(lines[:2], ordered=True)[lines[0]] == "#440154"

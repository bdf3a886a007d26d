"""Drawings made short show the same."""

import re
from xml.etree import ElementTree as ET

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.report.svg import _path, address, compact

SPACE = 'xmlns="http://www.w3.org/2000/svg"'


def test_text_keeps_its_digits_and_coordinates_lose_some():
    found = compact(f'<svg {SPACE}><path d="M 1.23456 2.0"/><text x="3.14159">MAE 0.0183</text></svg>')
    assert 'd="M 1.23 2.0"' in found and 'x="3.14"' in found and ">MAE 0.0183<" in found


def test_styles_are_named_once_and_stay_with_their_elements():
    looks = ["fill: none; stroke: #d55e00", "fill: #000000", "fill: none; stroke: #d55e00"]
    paths = "".join(f'<g id="g{i}"><path d="M 0 0" style="{look}"/></g>' for i, look in enumerate(looks))
    root = ET.fromstring(compact(f"<svg {SPACE}>{paths}</svg>"))
    rules = dict(re.findall(r"\.(\w+)\{(.*?)\}", root[0].text or ""))
    assert [rules[each.attrib["class"]] for each in root[1:]] == [
        s.replace(": ", ":").replace("; ", ";") for s in looks
    ]


def test_what_is_linked_to_keeps_its_name():
    svg = (
        f'<svg {SPACE} xmlns:xlink="http://www.w3.org/1999/xlink"><defs><path id="m1" d="M 0 0"/></defs>'
        '<g clip-path="url(#c1)"><use xlink:href="#m1" x="1"/></g><g clip-path="url(#c1)">'
        '<use xlink:href="#m1" x="2"/></g><clipPath id="c1"/></svg>'
    )
    short = compact(svg)
    assert 'id="m1"' in short and 'id="c1"' in short and short.count("<use") == 2
    assert short.count("url(#c1)") == 1, "neighbours that say the same are one group"


@given(st.integers(0, 2**32 - 1), st.integers(41, 200))
def test_a_trace_in_steps_ends_where_it_did(seed, length):
    trace = np.random.default_rng(seed).uniform(-500, 2000, (length, 2))
    text = "M " + " \nL ".join(f"{x:f} {y:f}" for x, y in trace) + " \n"
    start, steps = _path(text).removeprefix("M").split("l")
    number = r"[ -]?(?:\d*\.\d+|\d+)"
    moves = np.array([float(n) for n in re.findall(number, steps)]).reshape(-1, 2)
    there = np.cumsum([[float(n) for n in start.split()], *moves], axis=0)
    assert np.abs(there - trace).max() < 0.0501


def test_an_address_ends_nowhere_but_at_its_end():
    found = address('<svg a="b"><text>100 % &amp; #1 "é"</text></svg>')
    assert found.startswith("data:image/svg+xml,<svg a='b'>") and not set(found) & set('"#&é')
    assert "100 %25 %26amp; %231" in found

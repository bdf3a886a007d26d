"""Drawings made short: the same picture, a third of the bytes, so that a page of many stays small."""

import re
from string import ascii_lowercase
from urllib.parse import quote
from xml.etree import ElementTree as ET

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ET.register_namespace("", _SVG)
ET.register_namespace("xlink", _LINK)

# A picture cannot bring its font to the page; these are about as wide.
_FONT = "text{font-family:'DejaVu Sans',Verdana,Geneva,Arial,sans-serif}"
_LONG = 40  # points from which on a line is a trace, drawn by its steps
_COORDINATES = ("d", "x", "y", "transform")


def compact(svg: str) -> str:
    """Return an SVG without what nobody sees: styles and fonts named once, coordinates rounded."""
    root = ET.fromstring(svg)  # noqa: S314  (matplotlib has just written it)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    linked = set(re.findall(r"#(\w+)", svg))
    styles: dict[str, str] = {}
    for element in root.iter():
        _shorten(element, linked, styles)
    _flatten(root)
    rules = "".join(f".{name}{{{style}}}" for style, name in styles.items())
    style = ET.Element(f"{{{_SVG}}}style")
    style.text = _FONT + rules
    root.insert(0, style)
    return ET.tostring(root, encoding="unicode")


def address(svg: str) -> str:
    """Return an SVG as an address that holds it, to stand between double quotes in a page."""
    # As text, a quarter shorter than base64; what would end an attribute or an address becomes %XX.
    return "data:image/svg+xml," + quote(svg.replace('"', "'"), safe="<>/:;,=()- !*'@+$?[]{}|~")


def _shorten(element: ET.Element, linked: set[str], styles: dict[str, str]) -> None:
    if element.get("id") not in linked:
        element.attrib.pop("id", None)
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    for key in _COORDINATES:
        if key in element.attrib:
            element.set(key, _path(element.attrib[key]))
    style = element.attrib.pop("style", "")
    style = re.sub(r"font-family:[^;]*;?", "", style)
    style = re.sub(r"\s*([:;])\s*", r"\1", style).strip("; ")
    if style:
        element.set("class", styles.setdefault(style, _name(len(styles))))
    if not element.tag.endswith(("text", "tspan", "style")):
        element.text = None
    element.tail = None


def _flatten(parent: ET.Element) -> None:
    """Dissolve groups that say nothing, and join neighbours that say the same."""
    children: list[ET.Element] = []
    for child in list(parent):
        _flatten(child)
        group = child.tag == f"{{{_SVG}}}g"
        if group and not child.attrib:
            children += list(child)
        elif group and children and children[-1].tag == child.tag and children[-1].attrib == child.attrib:
            children[-1].extend(list(child))
        else:
            children.append(child)
    parent[:] = children


def _path(text: str) -> str:
    """Return coordinates to a hundredth of a point; those of a trace as steps of a tenth."""
    if text.count("L") < _LONG or not re.fullmatch(r"M [-\d. ]+(?:\s*L [-\d. ]+)+\s*", text):
        return " ".join(re.sub(r"(\d\.\d\d)\d+", r"\1", text).split())
    numbers = [round(10 * float(number)) for number in re.findall(r"-?[\d.]+", text)]
    x, y = numbers[:2]
    parts = [f"M{x / 10:g} {y / 10:g}l"]
    for next_x, next_y in zip(numbers[2::2], numbers[3::2], strict=True):
        parts.append(f"{_tenths(next_x - x)}{_tenths(next_y - y)}")
        x, y = next_x, next_y
    return "".join(parts)


def _tenths(value: int) -> str:
    whole, tenth = divmod(abs(value), 10)
    number = f"{whole or ''}.{tenth}" if tenth else str(whole)
    return f"{'-' if value < 0 else ' '}{number}"


def _name(place: int) -> str:
    letters = ""
    while place >= 0:
        letters = ascii_lowercase[place % 26] + letters
        place = place // 26 - 1
    return letters

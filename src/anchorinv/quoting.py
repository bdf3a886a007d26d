"""Names that others wrote, of classes, channels, files, studies: text that can do nothing but be read.

A control character moves the cursor, a line break starts a sentence that looks like ours, a change of writing
direction shows a word as another one, and a spreadsheet runs what begins with ``=``.
"""

import json
import re
from collections.abc import Iterable

#: Characters that leave no mark though Unicode calls them letters, marks or symbols.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE | re.ASCII)
#: What makes a spreadsheet compute, as OWASP lists it.
_FORMULA = tuple("=+-@＝＋－＠")


def shown(text: object) -> str:
    r"""Return text as one line in which everything is seen: what is not printable stands as its escape.

    Letters of all scripts and the marks on them stay as they are, and so do backslashes: this is for people
    to read, not for programs to read back.

    Examples
    --------
    >>> print(shown("linke Hand\x1b[2J\nanchorinv: all is well"))
    linke Hand\x1b[2J\nanchorinv: all is well
    """
    plain = str(text)
    if plain.isprintable() and _UNSEEN.isdisjoint(plain):
        return plain
    return "".join(map(_escape, plain))


def as_json(value: object) -> str:
    """Return plain values as JSON to read, which means the same and holds nothing that is not printable."""
    lines = json.dumps(value, ensure_ascii=False, indent=2).split("\n")
    return "\n".join("".join(c if _seen(c) else json.dumps(c)[1:-1] for c in line) for line in lines)


def csv_line(cells: Iterable[object]) -> str:
    r"""Return a row of a table that people open in a spreadsheet; numbers stay numbers, text stays text.

    Text that would be computed gets an apostrophe before it. Not for tables that we read back.

    Examples
    --------
    >>> csv_line(["=1+1", -0.5, "left, slowly"])
    '\'=1+1,-0.5,"left, slowly"\n'
    """
    return ",".join(_csv_cell("" if cell is None else cell) for cell in cells) + "\n"


def _csv_cell(cell: object) -> str:
    text = shown(cell)
    if text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    # Some countries' spreadsheets take a semicolon for the end of a cell.
    return '"' + text.replace('"', '""') + '"' if re.search('[",;]', text) else text


def _seen(char: str) -> bool:
    return char.isprintable() and char not in _UNSEEN


def _escape(char: str) -> str:
    if _seen(char):
        return char
    code = ord(char)
    return _SHORT.get(char) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )

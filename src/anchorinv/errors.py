"""Error messages that list several problems, and escaping of untrusted names.

A control character in the name of a class, a channel or a file could move the cursor, a line break could fake
a message, a change of writing direction could disguise a word, and a spreadsheet computes what begins with
``=``.
"""

import json
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of problems that one message lists.
SHOWN = 500
#: Characters of a name.
LONGEST_NAME = 200
#: Invisible characters that Unicode classifies as letters, marks or symbols.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE | re.ASCII)
#: First characters that make a spreadsheet compute a cell, as listed by OWASP.
_FORMULA = tuple("=+-@＝＋－＠")


class LinesError(ValueError):
    """An error message of several lines; a line break within one of them is escaped."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(lines))


class Problems(LinesError):  # noqa: N818 (named after what it holds)
    """Everything that is wrong with an input, raised once.

    Parameters
    ----------
    source : str
        Where they were found, such as the name of a file.
    problems : sequence of str
        One sentence per problem.
    remedy : str, default=""
        What to do about all of them.

    Examples
    --------
    >>> print(Problems("table.csv", ["no column label", "line 3 has no path"]))
    table.csv: 2 problems
      - no column label
      - line 3 has no path
    """

    def __init__(self, source: str, problems: Sequence[str], remedy: str = "") -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__([f"{source}: {problems[0]}{f'; {remedy}' if remedy else ''}"])
            return
        lines = [f"  - {problem}" for problem in problems[:SHOWN]]
        if len(problems) > SHOWN:
            lines.append(f"  ... and {len(problems) - SHOWN} more")
        super().__init__([f"{source}: {len(problems)} problems", *lines, *filter(None, [remedy])])


class MissingExtra(ValueError):  # noqa: N818
    """A library that comes with an extra is not installed."""


def raise_if_any(source: str, problems: Sequence[str], remedy: str = "") -> None:
    """Raise all :class:`Problems` at once, if there are any."""
    if problems:
        raise Problems(source, problems, remedy)


def listed(names: Sequence[object], *, most: int = 10) -> str:
    """Join names in a sentence; only the first few of many.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    first = ", ".join(map(str, names[:most]))
    return first if len(names) <= most else f"{first} and {len(names) - most} more"


def natural_order(names: Sequence[Any]) -> list[Any]:
    """Sort names with numbers in them by these numbers, for people to read; other labels stay in order.

    Examples
    --------
    >>> natural_order(["motion 1", "motion 10", "motion 2"])
    ['motion 1', 'motion 2', 'motion 10']
    """
    if not all(isinstance(name, str) for name in names):
        return list(names)
    # Splitting by numbers alternates text and numbers, so that keys can be compared.
    return sorted(
        names, key=lambda name: [int(p) if i % 2 else p for i, p in enumerate(re.split("([0-9]+)", name))]
    )


def ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as ranges.

    Examples
    --------
    >>> ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def import_extra(name: str, *, extra: str) -> ModuleType:
    """Import a library of one of this package's extras; the error says how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise missing_extra(error.name, extra) from None


def missing_extra(library: str | None, extra: str) -> MissingExtra:
    """Return the error about a library that comes with an extra and is not installed."""
    return MissingExtra(
        f"{library} is needed for this and is not installed; {pip_install(f'anchorinv[{extra}]')}"
    )


def pip_install(package: str) -> str:
    """Return the command that installs a package where this interpreter finds it.

    A bare ``pip`` may belong to another environment.
    """
    python = Path(sys.executable or "python")
    if python.is_relative_to(here := Path.cwd()):
        python = python.relative_to(here)
    quoted = f"'{package}'" if "[" in package else package
    return f"{shlex.quote(str(python))} -m pip install {quoted}"


def shown(text: object) -> str:
    """Return text as one line with non-printable characters escaped.

    Letters and marks of all scripts are unchanged, and so are backslashes: the result is for people, not for
    programs to parse.
    """
    plain = str(text)
    if plain.isprintable() and _INVISIBLE.isdisjoint(plain):
        return plain
    return "".join(map(_escape, plain))


def as_json(value: object) -> str:
    """Return plain values as indented JSON of printable characters."""
    lines = json.dumps(value, ensure_ascii=False, indent=2).split("\n")
    return "\n".join("".join(c if _visible(c) else json.dumps(c)[1:-1] for c in line) for line in lines)


def csv_line(cells: Iterable[object]) -> str:
    """Return a CSV row that is safe to open in a spreadsheet.

    Text that a spreadsheet would compute is prefixed by an apostrophe. Not for tables that are read back.
    """
    return ",".join(_csv_cell("" if cell is None else cell) for cell in cells) + "\n"


def literal_text(figure: "Figure") -> None:
    """Make a figure show names literally: ``$`` is not mathematics, control characters are escaped.

    Call it before drawing. Numbers at ticks are matplotlib's own text and are left alone.
    """
    from matplotlib.category import StrCategoryFormatter
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        names = axis.get_major_formatter()
        if isinstance(names, FuncFormatter | StrCategoryFormatter):  # names at ticks
            axis.set_major_formatter(FuncFormatter(lambda x, place, names=names: _lines(names(x, place))))
            texts += axis.get_ticklabels()
    for text in texts:
        text.set_text(_lines(text.get_text()))
        text.set_parse_math(False)


def _lines(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))


def _csv_cell(cell: object) -> str:
    text = shown(cell)
    if text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    # In some locales spreadsheets use a semicolon as separator.
    return '"' + text.replace('"', '""') + '"' if re.search('[",;]', text) else text


def _visible(char: str) -> bool:
    return char.isprintable() and char not in _INVISIBLE


def _escape(char: str) -> str:
    return char if _visible(char) else char.encode("unicode_escape").decode()


# Unicode categories without a glyph: control characters, surrogates, line and paragraph separators.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")


def check_name(name: str) -> str:
    """Return a name if it is printable."""
    if not 0 < len(name) <= LONGEST_NAME:
        problem = f"{name[:20]!r} ... has {len(name)} characters" if name else "'' is empty"
        raise ValueError(f"the name {problem}; 1 to {LONGEST_NAME} are needed")
    for letter in name:
        if unicodedata.category(letter) in _UNSEEN:
            raise ValueError(
                f"the name {name[:40]!r} contains the invisible character {letter!r}; leave it out"
            )
    return name


def check_names(names: Iterable[Any]) -> None:
    """Refuse names that are not printable or look the same; numbers and booleans are not checked."""
    seen: dict[str, str] = {}
    for name in names:
        if isinstance(name, str):
            if (look := _seen(check_name(name))) in seen:
                raise ValueError(f"the names {seen[look]!r} and {name!r} look the same; rename one of them")
            seen[look] = name


def looks_like(name: Any, others: Iterable[Any]) -> Any | None:
    """Return another name that differs only in spaces or case, if there is one.

    An underscore counts as a space. A space between digits is significant, and so is the case of a single
    letter: annotations of heartbeats have both ``A`` and ``a``.
    """
    if not isinstance(name, str):
        return None
    rough = _rough(name)
    return next((o for o in others if isinstance(o, str) and o != name and _rough(o) == rough), None)


def _rough(name: str) -> str:
    words = re.sub(r"[\s_]+", " ", _seen(name)).strip()
    bare = re.sub(r"(?<!\d) | (?!\d)", "", words)
    return bare.casefold() if len(bare) > 1 else bare or name


def _seen(name: str) -> str:
    """Return a normalised form of a name, without characters of zero width."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(letter for letter in composed if not unicodedata.category(letter).startswith("C"))

"""Problems of an input, collected and told together."""

from collections.abc import Iterable, Sequence
from types import ModuleType

SHOWN = 500


class LinesError(ValueError):
    """An error that takes several lines, which are ours: a line break in a name makes none."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(lines))


class Problems(LinesError):  # noqa: N818 (they are what they are called)
    """Everything that is wrong with an input, a sentence each."""

    def __init__(self, where: str, found: Sequence[str], remedy: str = "") -> None:
        self.found = tuple(found)
        if len(found) == 1:
            super().__init__([f"{where}: {found[0]}{f'; {remedy}' if remedy else ''}"])
            return
        lines = [f"  - {problem}" for problem in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  ... and {len(found) - SHOWN} more")
        super().__init__([f"{where}: {len(found)} problems", *lines, *filter(None, [remedy])])


class MissingExtra(ValueError):  # noqa: N818
    """A library that comes with an extra is not installed."""


def raise_if_any(where: str, found: Sequence[str], remedy: str = "") -> None:
    """Raise all problems at once, if there are any, with what helps against them all."""
    if found:
        raise Problems(where, found, remedy)


def listed(names: Sequence[object], *, most: int = 10) -> str:
    """Name things in a sentence, the first few of many.

    Examples
    --------
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def ranges(numbers: Iterable[int]) -> str:
    """Write rising numbers short.

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


def needed(name: str, *, extra: str) -> ModuleType:
    """Import a library that comes with an extra, or say how to get it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise MissingExtra(
            f"{error.name} is needed for this and not installed; pip install 'anchorinv[{extra}]'"
        ) from None

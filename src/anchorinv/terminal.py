"""The terminal: the only place that prints, so that no name does more there than be read."""

from typing import Any

from rich.console import Console
from rich.text import Text

from anchorinv.quoting import shown


class Terminal(Console):
    """A console for which a string is one line of plain text, in sentences and in cells of tables alike.

    Nothing in it is markup, a code for an emoji or a control; what is coloured is so by ``style``.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich prints it."""
        return super().render_str(shown(text), **options | {"markup": False, "emoji": False})

    def say(self, line: object = "", *, style: str | None = None) -> None:
        """Print a line as long as it is: breaking it is left to the terminal."""
        self.print(str(line), style=style, soft_wrap=True)


def say(*lines: object) -> None:
    """Print lines to standard output."""
    _print(Terminal(), lines)


def complain(*lines: object) -> None:
    """Print lines to standard error."""
    _print(Terminal(stderr=True), lines)


def _print(terminal: Terminal, lines: tuple[object, ...]) -> None:
    for line in lines:
        terminal.say(line)

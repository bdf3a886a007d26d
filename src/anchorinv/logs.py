"""Logging of a command: everything that matters into a file, and what was asked for to the terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorinv.quoting import shown
from anchorinv.terminal import Terminal


class _ToConsole(logging.Handler):
    """Print through rich, so that messages and progress bars do not overwrite each other."""

    def __init__(self, console: Terminal, level: str) -> None:
        super().__init__(level.upper())
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as a line."""
        self._console.say(f"{record.levelname.lower()}: {record.getMessage()}")


class _Line(logging.Formatter):
    """Write a message as one line, whatever it quotes."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the line, before any traceback."""
        return shown(super().formatMessage(record))


@contextmanager
def logging_to(path: Path, level: str, console: Terminal) -> Iterator[None]:
    """Log what happens inside the block: to a file from ``info`` on, to a console from ``level`` on."""
    logger = logging.getLogger("anchorinv")
    before = logger.level
    # Opened by the first message, so that a command that fails before it begins leaves no folder.
    to_file = logging.FileHandler(path, encoding="utf-8", delay=True)
    to_file.setFormatter(_Line("%(asctime)s %(levelname)s %(message)s"))
    handlers = [to_file, _ToConsole(console, level)]
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logging.getLevelName(level.upper())))
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()

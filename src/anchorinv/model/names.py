"""Names of classes and channels: not long, of visible characters, and no two that look the same."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator

from anchorinv.model.limits import LONGEST_NAME, LONGEST_NOTE

# Control characters, halves of characters, ends of lines and paragraphs: no font shows them.
_UNSEEN = ("Cc", "Cs", "Zl", "Zp")


def check_name(name: str, longest: int = LONGEST_NAME) -> str:
    r"""Return a name, if it can be shown on a line.

    Examples
    --------
    >>> check_name("left hand")
    'left hand'
    >>> check_name("left" + chr(0))
    Traceback (most recent call last):
    ValueError: the name 'left\x00' holds '\x00', which nobody can see; leave it out
    """
    if not 0 < len(name) <= longest:
        shown = f"{name[:20]!r} ... has {len(name)} characters" if name else "'' is empty"
        raise ValueError(f"the name {shown}; 1 to {longest} are needed")
    for letter in name:
        if unicodedata.category(letter) in _UNSEEN:
            raise ValueError(f"the name {name[:40]!r} holds {letter!r}, which nobody can see; leave it out")
    return name


def check_names(names: Iterable[Any]) -> None:
    """Refuse names of which one cannot be shown, or two look the same; numbers and booleans are no names."""
    seen: dict[str, str] = {}
    for name in names:
        if isinstance(name, str):
            if (look := _seen(check_name(name))) in seen:
                raise ValueError(f"the names {seen[look]!r} and {name!r} look the same; rename one of them")
            seen[look] = name


def looks_like(name: Any, others: Iterable[Any]) -> Any | None:
    """Return the other name that a reader would take for this one: it differs in spaces or case alone.

    An underscore counts as a space. A space between digits tells numbers apart, and so does the case of a
    single letter: annotations of heartbeats have both ``A`` and ``a``.

    Examples
    --------
    >>> looks_like(" Gest 00", ["rest", "gest00"])
    'gest00'
    >>> looks_like("arm 1_2", ["arm 12"])
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
    """Return what a reader sees: one form of each letter, and nothing that has no width of its own."""
    whole = unicodedata.normalize("NFC", name)
    return "".join(letter for letter in whole if not unicodedata.category(letter).startswith("C"))


Name = Annotated[str, AfterValidator(check_name)]
Note = Annotated[str, AfterValidator(lambda text: check_name(text, LONGEST_NOTE))]

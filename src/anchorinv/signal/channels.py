"""Channels by name: whatever their order and spelling in a file, a model gets those it was trained on."""

import re
from collections.abc import Mapping, Sequence

from anchorinv.problems import listed


def renamed(names: Sequence[str], rename: Mapping[str, str] | None, *, source: str) -> tuple[str, ...]:
    """Return names after ``rename`` (old name: new name); an old name that is not there is an error.

    Examples
    --------
    >>> renamed(["EEG 1", "EEG 2"], {"EEG 1": "C3"}, source="day2.edf")
    ('C3', 'EEG 2')
    """
    if not rename:
        return tuple(names)
    places = _places(names)
    found = list(names)
    for old, new in rename.items():
        if (place := _place(old, names, places)) is None:
            raise ValueError(f"{source} has no channel {old!r} to be called {new!r}; it has {listed(names)}")
        found[place] = new
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ValueError(f"{source} would have two channels called {twice!r}; rename the other one, too")
    return tuple(found)


def pick_channels(wanted: Sequence[str], present: Sequence[str], *, source: str) -> list[int]:
    """Return the places of the wanted channels among those present, in the order wanted.

    Names are compared as they are, then without case, spaces, dots, a kind in front ("EEG ") or a reference
    behind ("-REF"). What two channels would both match is not guessed.

    Examples
    --------
    >>> pick_channels(["C3", "Cz"], ["EEG CZ-REF", "EOG", "EEG C3-REF"], source="day2.edf")
    [2, 0]
    """
    places = _places(present)
    found = [_place(name, present, places) for name in wanted]
    if missing := [name for name, place in zip(wanted, found, strict=True) if place is None]:
        raise ValueError(
            f"{source} lacks {len(missing)} of {len(wanted)} channels: {listed(missing, most=8)}; it has "
            f"{listed(present, most=40)}; if they are there under other names, map them with "
            f"--channels OLD=NEW (in Python rename={{OLD: NEW}})"
        )
    return [place for place in found if place is not None]


def parse_channels(texts: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Read "C3,EEG 4=Cz", once or several times: the names to be had, in order, and what is to be renamed.

    Examples
    --------
    >>> parse_channels(["C3, EEG 4=Cz", "C4"])
    (('C3', 'Cz', 'C4'), {'EEG 4': 'Cz'})
    """
    names, rename = [], {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        old, equals, new = (part.strip() for part in item.partition("="))
        if not old or (equals and not new):
            raise ValueError(f"channels are written C3,C4 or OLD=NEW, got {item!r} between commas")
        names.append(new or old)
        if equals:
            if old in rename:
                raise ValueError(f"channel {old!r} is renamed twice; give it one name")
            rename[old] = new
    if len(set(names)) < len(names):
        raise ValueError(f"channel {max(names, key=names.count)!r} is wanted twice; name each once")
    return tuple(names), rename


def _place(name: str, present: Sequence[str], places: Mapping[str, list[int]]) -> int | None:
    if name in present:
        return list(present).index(name)
    alike = places.get(_bare(name), [])
    return alike[0] if len(alike) == 1 else None


def _places(present: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, name in enumerate(present):
        found.setdefault(_bare(name), []).append(i)
    return found


def _bare(name: str) -> str:
    bare = re.sub(r"^(eeg|emg|ecg|eog)[\s_]+|[-_ ]*(ref|le|avg)\d*$", "", name.strip().casefold())
    return re.sub(r"[\s.]", "", bare)

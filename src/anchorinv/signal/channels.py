"""Channels by name: whatever their order and spelling in a file, a model gets those it was trained on."""

import re
from collections.abc import Callable, Mapping, Sequence

from anchorinv.problems import listed


def renamed(names: Sequence[str], rename: Mapping[str, str] | None, *, source: str) -> tuple[str, ...]:
    """Return names after ``rename`` (old name: new name).

    An old name that is not there is an error, unless the new one is there already, as in one file of many.

    Examples
    --------
    >>> renamed(["EEG 1", "EEG 2"], {"EEG 1": "C3"}, source="day2.edf")
    ('C3', 'EEG 2')
    """
    if not rename:
        return tuple(names)
    found = list(names)
    for old, new in rename.items():
        if (place := find_channel(old, names)) is not None:
            found[place] = new
        elif new not in names:
            raise ValueError(
                f"{source}: there is no channel {old!r} to be called {new!r}; there is "
                f"{listed(names, most=40)}"
            )
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ValueError(f"{source}: two channels would be called {twice!r}; rename the other one, too")
    return tuple(found)


def pick_channels(wanted: Sequence[str], present: Sequence[str], *, source: str) -> list[int]:
    """Return the places of the wanted channels among those present, in the order wanted.

    Names are compared as they are, then without case, spaces and dots, then without a kind in front ("EEG ")
    and a reference behind ("-REF"); two kinds are never the same. What two channels would both match is not
    guessed.

    Examples
    --------
    >>> pick_channels(["C3", "Cz"], ["EEG CZ-REF", "EOG", "EEG C3-REF"], source="day2.edf")
    [2, 0]
    """
    known = _places(present)
    found = [_place(name, present, known) for name in wanted]
    if missing := [name for name, place in zip(wanted, found, strict=True) if place is None]:
        raise ValueError(
            f"{source} lacks {len(missing)} of {len(wanted)} channels: {listed(missing, most=8)}; it has "
            f"{listed(present, most=40)}; if they are there under other names, map them with "
            f"--channels OLD=NEW (in Python rename={{OLD: NEW}})"
        )
    places = [place for place in found if place is not None]
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        same = [name for name, place in zip(wanted, places, strict=True) if place == twice]
        raise ValueError(
            f"{source}: {listed(same)} would all be its channel {present[twice]!r}; name each channel once"
        )
    return places


def find_channel(name: str, present: Sequence[str]) -> int | None:
    """Return the place of the one channel that a name means; None if there is none, or several."""
    return _place(name, present, _places(present))


def _place(name: str, present: Sequence[str], places: Sequence[Mapping[str, list[int]]]) -> int | None:
    """Return the same by what the channels present are called in each view, the most exact first."""
    for view, known in zip(_VIEWS, places, strict=True):
        alike = known.get(view(name), [])
        if view is _bare and (kind := _kind(name)):
            alike = [i for i in alike if _kind(present[i]) in ("", kind)]
        if alike:
            return alike[0] if len(alike) == 1 else None
    return None


def _places(present: Sequence[str]) -> list[dict[str, list[int]]]:
    found: list[dict[str, list[int]]] = [{} for _ in _VIEWS]
    for i, name in enumerate(present):
        for view, known in zip(_VIEWS, found, strict=True):
            known.setdefault(view(name), []).append(i)
    return found


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


_KIND = re.compile(r"(eeg|emg|ecg|eog)[\s_]+", re.IGNORECASE)
_REFERENCE = re.compile(r"[-_ ]+(ref|le|avg)$", re.IGNORECASE)


def _loose(name: str) -> str:
    return re.sub(r"[\s.]", "", name.casefold())


def _bare(name: str) -> str:
    return _loose(_REFERENCE.sub("", _KIND.sub("", name.strip(), count=1)))


def _kind(name: str) -> str:
    found = _KIND.match(name.strip())
    return found[1].casefold() if found else ""


_VIEWS: tuple[Callable[[str], str], ...] = (str, _loose, _bare)

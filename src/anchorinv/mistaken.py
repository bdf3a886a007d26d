"""What is probably meant otherwise, in words: times in the place of channels, one class under two names."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from anchorinv.core.geometry import MIN_TIMES
from anchorinv.model.names import looks_like

#: So many times more channels than samples are rather samples in the place of channels.
_WIDE = 4
_SWAP = "X.transpose(0, 2, 1) swaps them"


def other_shape(found: tuple[int, int], wanted: tuple[int, int]) -> str:
    """Return the sentence about signals whose (n_chans, n_times) are not those of a model.

    Examples
    --------
    >>> other_shape((300, 8), (8, 300))
    'the model takes 8 channels of 300 samples, got 300 channels of 8; X.transpose(0, 2, 1) swaps them'
    """
    takes = (
        f"the model takes {wanted[0]} channels of {wanted[1]} samples, got {found[0]} channels of {found[1]}"
    )
    if found == wanted[::-1]:
        return f"{takes}; {_SWAP}"
    if found[0] == wanted[0]:
        return f"{takes} samples; cut or resample them to that length"
    return f"{takes} samples; hand in the channels that it was trained on"


def check_order(n_chans: int, n_times: int, geometry: tuple[int, int] | None) -> None:
    """Refuse signals that only the other order of axes would fit to the sizes given, or to any network."""
    if geometry == (n_times, n_chans) != (n_chans, n_times):
        raise ValueError(
            f"geometry is for {n_times} channels of {n_chans} samples, signals have {n_chans} of {n_times}; "
            f"{_SWAP}"
        )
    if geometry is None and n_times < MIN_TIMES <= n_chans:
        raise ValueError(
            f"signals have {n_chans} channels of {n_times} samples, and {MIN_TIMES} samples at least are "
            f"needed; use longer windows or, if channels come last, {_SWAP}"
        )


def suspicions(n_chans: int, n_times: int, classes: Sequence[Any]) -> Iterator[str]:
    """Yield a sentence for each thing about base data that is probably meant otherwise."""
    if n_chans > _WIDE * n_times:
        yield f"signals have {n_chans} channels of {n_times} samples; if channels come last, {_SWAP}"
    for i, name in enumerate(classes):
        if (other := looks_like(name, classes[i + 1 :])) is not None:
            yield (
                f"classes {name!r} and {other!r} differ in spaces or case alone; if they are one, give it "
                f"one name"
            )


def likeness(names: Iterable[Any], known: Sequence[Any]) -> str:
    """Return what to add to a sentence about unknown classes: which of them look like known ones.

    Examples
    --------
    >>> likeness([" left", "tongue"], ["left", "right"])
    "; ' left' looks like 'left'"
    """
    alike = [(name, other) for name in names if (other := looks_like(name, known)) is not None]
    return "".join(f"; {name!r} looks like {other!r}" for name, other in alike[:3])


def check_new_names(names: Sequence[Any], known: Sequence[Any]) -> None:
    """Refuse new classes that a reader would take for a known one, or for one another."""
    for i, name in enumerate(names):
        if (other := looks_like(name, known)) is not None:
            raise ValueError(
                f"class {name!r} looks like the known class {other!r}, so nothing was learned; use that name "
                f"with add_shots (anchorinv add) for more examples of it, or one that differs in more than "
                f"spaces or case"
            )
        if (other := looks_like(name, names[:i])) is not None:
            raise ValueError(
                f"the new class {name!r} looks like {other!r}, so nothing was learned; give them one name, "
                f"or names that differ in more than spaces or case"
            )

"""A person or a day that nobody has seen: their features are moved to where those of the base windows lie."""

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.encoder import Encoder
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.types import State

#: Of fewer windows a mean says more about the windows than about the person.
FEWEST = 10


def calibrated(state: State, signals: Tensor) -> State:
    """Return the state for whoever made signals (n, n_chans, n_times), whatever they did: no labels needed.

    The mean of their features becomes that of the base windows. It is right as far as they do the same things
    about as often; :func:`check_calibration` says what rehearsal found.
    """
    encoder, head = _parts(state)
    plain = _shifted(encoder, torch.zeros_like(encoder.shift))
    return replace(state, trunk=_shifted(encoder, mapped(plain, signals).mean(0) - head.middle))


def uncalibrated(state: State) -> State:
    """Return the state as it is for everybody."""
    encoder, _ = _parts(state)
    return replace(state, trunk=_shifted(encoder, torch.zeros_like(encoder.shift)))


def check_calibration(state: State, n_signals: int, *, force: bool) -> None:
    """Refuse a calibration that rehearsal speaks against, or knows nothing of, unless it is forced."""
    _, head = _parts(state)
    if n_signals < FEWEST:
        raise ValueError(f"{n_signals} windows are too few to calibrate by; record {FEWEST} or more")
    if force:
        return
    if math.isnan(head.centring):
        raise ValueError(
            "whether calibration helps here is not known, because fit was not told which windows belong to "
            "one person or recording; train with groups= (--new-people), or pass force=True (--force)"
        )
    if head.centring <= 0:
        raise ValueError(
            f"rehearsal on the base data speaks against calibration: it may cost people who were not seen "
            f"{-100 * head.centring:.1f} points, probably because not all of them do the same things equally "
            f"often; pass force=True (--force) if these windows do"
        )


def _parts(state: State) -> tuple[Encoder, Discriminant]:
    if not isinstance(state.trunk, Encoder) or not isinstance(state.head, Discriminant):
        raise ValueError("only the methods discriminant and lda can be calibrated; train with one of them")
    return state.trunk, state.head


def _shifted(encoder: Encoder, shift: Tensor) -> Encoder:
    other = copy.copy(encoder)  # all else is shared: it never changes
    other._buffers = {**encoder._buffers, "shift": shift}
    return frozen(other)

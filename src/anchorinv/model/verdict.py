"""What a drift means, in a sentence: what differs, in which channels, and what may be the cause."""

import numpy as np

from anchorinv.model.distances import EXTREME, FAR, ODD, UNLIKE, Distances
from anchorinv.model.shapes import band_edges

#: Frequencies in Hz of mains.
_MAINS = (50.0, 60.0)


def verdict_of(found: Distances) -> str:
    """Return one sentence: as the base data, or what differs and a guess at the cause."""
    parts = [*scale_words(found), *_spectrum_words(found), *_covariance_words(found)]
    if not parts:
        parts = ["the recordings are like the base data in every channel"]
    if found.missing:
        parts.append(found.missing)
    return "; ".join(parts)


def scale_words(found: Distances) -> list[str]:
    """Return what there is to say of scale and offset, and what to do about it."""
    far = found.beyond if found.extreme else found.distance > ODD
    if not far.any():
        return []
    if found.extreme and found.factor is not None:
        return [_unit_words(found)]
    worst = int(np.argmax(found.distance))
    spread = f"a spread of {found.scale[worst]:.2g} and a shift of {found.shift[worst]:.2g} spreads"
    word = "far from" if found.extreme else "somewhat unlike"
    named = _named(found, far)
    return [f"{named}: {word} the base data (the worst has {spread}); {_guess(found, far)}"]


def _unit_words(found: Distances) -> str:
    factor, unit = found.factor, found.unit_factor
    where = "every channel" if len(found.channels) > 1 else found.channels[0]
    if unit is None:
        return (
            f"{where}: far from the base data, about {factor:.2g} times its spread; is the recording in "
            f"another unit, or at another gain? bring it to that of the base data (--scale)"
        )
    return (
        f"{where}: far from the base data, about {unit:g} times its spread; is the recording in another "
        f"unit? multiply it by {1 / unit:g} (--scale {found.scaled / unit:g})"
    )


def _guess(found: Distances, far: np.ndarray) -> str:
    if not found.extreme:
        return "predictions may suffer"
    if (found.scale[far] == 0).all():
        return "flat channels: is an electrode off?"
    if (found.shift[far] > EXTREME).all() and (found.scale[far] < ODD).all():
        return "is there an offset that the base data had not? subtract it, or filter as they were"
    if far.all():
        return "are the units those of fit?"
    return "is an electrode off or loose, or are the units those of fit?"


def _spectrum_words(found: Distances) -> list[str]:
    spectrum = found.spectrum
    if spectrum is None or not (unlike := spectrum.distance > UNLIKE).any():
        return []
    if (far := spectrum.distance > FAR).any():
        unlike = far
    word = "far from" if far.any() else "somewhat unlike"
    away = spectrum.bands[unlike].mean(axis=0)
    # What has come in says more than what it has taken the share of.
    band = int(np.argmax(np.where(away > 0, 2 * away, -away)))
    more = "more" if away[band] > 0 else "less"
    said = f"the spectrum of {_named(found, unlike)} is {word} the base data's: {more} of its power"
    edges = band_edges(found.n_times)[[band, band + 1]] / 2
    if found.sfreq is None:
        said += f" at {100 * edges[0]:.3g}-{100 * edges[1]:.3g}% of the sampling rate"
        low, high = 0.0, 0.0
    else:
        low, high = edges * found.sfreq
        said += f" at {low:.0f}-{high:.0f} Hz" if found.sfreq >= 100 else f" at {low:.3g}-{high:.3g} Hz"
    if spectrum.even[unlike].all():
        return [f"{said}, and as even as noise: is an electrode off?"]
    if more == "more" and any(low <= mains <= high for mains in _MAINS):
        return [f"{said}: is it mains hum, or another filter?"]
    return [f"{said}: is it filtered as the base data were?"]


def _covariance_words(found: Distances) -> list[str]:
    covariance = found.covariance
    if covariance is None:
        return []
    names, said = found.channels, []
    if covariance.same:
        first, second = covariance.same[0]
        more = f" (and {len(covariance.same) - 1} pairs more)" if len(covariance.same) > 1 else ""
        said.append(f"{names[first]} and {names[second]}{more} carry one signal: are they shorted?")
    if covariance.swapped:
        first, second = covariance.swapped
        said.append(f"{names[first]} and {names[second]} go with the others as if they were swapped")
    unlike = covariance.distance > UNLIKE
    if not unlike.any():
        return said
    if (far := covariance.distance > FAR).any():
        unlike = far
    word = "far" if far.any() else "somewhat"
    named = _named(found, unlike)
    if (covariance.alone[unlike] > UNLIKE).all():
        said.append(
            f"{named}: {word} less in common with the other channels than in the base data: is an electrode "
            f"off?"
        )
    elif not said or far.any():
        word = "far from" if far.any() else "somewhat unlike"
        said.append(
            f"the correlations of {named} with the others are {word} the base data's: are channels swapped, "
            f"shorted or referenced in another way?"
        )
    return said


def _named(found: Distances, which: np.ndarray) -> str:
    names = [name for name, is_one in zip(found.channels, which, strict=True) if is_one]
    if which.all() and len(names) > 1:
        return "every channel"
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

"""Filters along time, as values: which band, which design, which way."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter along time that keeps a band of frequencies.

    Parameters
    ----------
    low, high : edges in Hz; None leaves that side open.
    order : of the design; a band-pass has twice as many poles.
    causal : run forwards only, as a live source allows; otherwise forwards and backwards, without delay.
    attenuation : None for Butterworth; otherwise Chebyshev type II with so many dB in the stop band, and ends
        as MATLAB has them (:meth:`reach`), since such filters are there to repeat what was done with it.
    from_rest : start a causal filter as if there had been zeros before, as some published preprocessing does;
        otherwise as if the first sample had always been there, so that an offset leaves no trace.

    Examples
    --------
    >>> Filter(4, 40).sections(250).shape
    (4, 6)
    """

    low: float | None = None
    high: float | None = None
    order: int = 4
    causal: bool = True
    attenuation: float | None = None
    from_rest: bool = False

    def __post_init__(self) -> None:
        edges = [edge for edge in (self.low, self.high) if edge is not None]
        if not edges or not all(0 < edge < np.inf for edge in edges) or edges != sorted(set(edges)):
            raise ValueError(
                f"a filter needs edges above 0 Hz, the lower one first, got {self.low} and {self.high}"
            )
        if not 1 <= self.order <= 20:
            raise ValueError(f"order (={self.order}) of the filter must be between 1 and 20")

    def sections(self, sfreq: float) -> Array:
        """Return second-order sections (n_sections, 6) for a rate in Hz."""
        # Imported here: settings are made of filters, and need not wait for scipy.
        from scipy import signal

        edges = [edge for edge in (self.low, self.high) if edge is not None]
        if max(edges) >= sfreq / 2:
            raise ValueError(
                f"a filter to {max(edges):g} Hz reaches beyond what a rate of {sfreq:g} Hz holds; "
                f"more than {2 * max(edges):g} Hz is needed"
            )
        kind = "bandpass" if len(edges) == 2 else "highpass" if self.high is None else "lowpass"
        at = edges if len(edges) == 2 else edges[0]
        if self.attenuation is None:
            found = signal.butter(self.order, at, kind, fs=sfreq, output="sos")
        else:
            found = signal.cheby2(self.order, self.attenuation, at, kind, fs=sfreq, output="sos")
        return np.asarray(found)

    def reach(self, sfreq: float) -> int:
        """Return by how many samples both ends are mirrored about their last value before it runs both ways.

        By scipy's rule three times the coefficients of the transfer function; by MATLAB's (``filtfilt``)
        three times one less, its order. Both then start as if the first value had always been there.
        """
        if self.attenuation is None:
            return 3 * (2 * len(self.sections(sfreq)) + 1)
        return 3 * self.order * (1 if self.low is None or self.high is None else 2)

    def __str__(self) -> str:
        low, high = ("" if edge is None else f"{edge:g}" for edge in (self.low, self.high))
        name = "Butterworth" if self.attenuation is None else f"Chebyshev II, {self.attenuation:g} dB"
        way = "causal" if self.causal else "zero phase, not causal"
        way += ", from rest" if self.causal and self.from_rest else ""
        if not self.causal and self.attenuation is not None:
            way += ", ends as MATLAB has them"
        return f"{low}-{high} Hz, {name} of order {self.order}, {way}"


#: What EEG-Conformer's preprocessing does to each cut window.
CONFORMER = Filter(4.0, 40.0, order=6, causal=False, attenuation=60.0)


def parse_band(text: str, *, order: int = 5, causal: bool = True) -> Filter:
    """Read "0.5-40", "1-" or "-30" (Hz), or "conformer".

    Examples
    --------
    >>> str(parse_band("0.5-40"))
    '0.5-40 Hz, Butterworth of order 5, causal'
    >>> parse_band("-30").low is None
    True
    """
    if text == "conformer":
        return CONFORMER
    number = r"(\d+(?:\.\d+)?)?"
    edges = re.fullmatch(rf"{number}\s*-\s*{number}", text.strip())
    if not edges or not any(edges.groups()):
        raise ValueError(f"a filter is written 0.5-40, 1- or -30 (Hz), or conformer; got {text!r}")
    low, high = (float(edge) if edge else None for edge in edges.groups())
    return Filter(low, high, order=order, causal=causal)

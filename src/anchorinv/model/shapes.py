"""What a window looks like whatever its scale: the spectrum of each channel, which channels go together."""

import numpy as np

#: Bands of equal width up to half the sampling rate; fewer where a window has fewer frequencies.
BANDS = 8
#: Of more channels the correlations of all pairs would be too many to keep: they are left out.
MOST_CORRELATED = 128
#: Share of the power below which a band is just quiet; it may differ by the last bit of a converter.
_QUIET = 1e-3
#: Correlations are seen as this at the most, so that their transforms are finite.
_CLOSEST = 0.999
#: Of squared correlations, about what independent channels have in a short window.
_CHANCE = 0.01


def n_bands(n_times: int) -> int:
    """Return how many bands the spectrum of a window has; 0 where it is too short for any."""
    return min(BANDS, n_times // 2) if n_times >= 4 else 0


def band_edges(n_times: int) -> np.ndarray:
    """Return where bands begin and end (n_bands + 1,), as shares of half the sampling rate."""
    return _edges(n_times) / (n_times // 2)


def has_pairs(n_chans: int) -> bool:
    """Say whether correlations are looked at: of two channels or more, and not of very many."""
    return 2 <= n_chans <= MOST_CORRELATED


def standardised(signals: np.ndarray) -> np.ndarray:
    """Return each channel of each window with mean 0 and spread 1, float32; one that is flat is 0."""
    centred = signals - signals.mean(axis=2, keepdims=True)
    # By the peak first: squares of values in an odd unit need not be numbers.
    peak = np.abs(centred).max(axis=2, keepdims=True)
    centred = (centred / np.where(peak > 0, peak, 1)).astype(np.float32)
    power = np.einsum("nct,nct->nc", centred, centred)[:, :, None] / signals.shape[2]
    unit: np.ndarray = centred / np.sqrt(np.where(power > 0, power, 1))
    return unit


def spectra(unit: np.ndarray) -> np.ndarray:
    """Return the log share of power in each band (n, n_chans, n_bands) of standardised windows."""
    n_times = unit.shape[2]
    taper = np.hanning(n_times + 2)[1:-1].astype(np.float32)
    waves = np.fft.rfft(unit * taper, axis=2)[:, :, 1:]  # without the mean
    power = waves.real**2 + waves.imag**2
    bands = np.add.reduceat(power, _edges(n_times)[:-1], axis=2, dtype=np.float64)
    whole = bands.sum(axis=2, keepdims=True)
    shares: np.ndarray = np.log(bands / np.where(whole > 0, whole, 1) + _QUIET)
    return shares


def correlations(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Fisher's transform of each pair's correlation, and how much each channel shares with the others.

    Parameters
    ----------
    unit : (n, n_chans, n_times), standardised.

    Returns
    -------
    tuple of arrays, shape (n, n_chans * (n_chans - 1) / 2) and (n, n_chans)
        Pairs in the order of ``np.triu_indices``; the logarithm of the mean squared correlation.
    """
    n_chans = unit.shape[1]
    matrices = (unit @ unit.transpose(0, 2, 1)).astype(np.float64) / unit.shape[2]
    pairs = matrices[(slice(None), *np.triu_indices(n_chans, 1))]
    itself = np.einsum("ncc->nc", matrices)
    squares = np.einsum("nij,nij->ni", matrices, matrices) - itself**2
    shared = np.log(np.maximum(squares, 0) / (n_chans - 1) + _CHANCE)
    return np.arctanh(np.clip(pairs, -_CLOSEST, _CLOSEST)), shared


def _edges(n_times: int) -> np.ndarray:
    edges: np.ndarray = np.round(np.linspace(0, n_times // 2, n_bands(n_times) + 1)).astype(np.int64)
    return edges

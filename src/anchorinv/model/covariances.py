"""How far the correlations between channels are from those of the base data, and what may have happened."""

from dataclasses import dataclass

import numpy as np

from anchorinv.model.statistics import Typical

#: Differences below these are of no interest, however steady the base data are.
_STEADY_PAIR, _STEADY_SHARE = 0.1, 0.35
#: Two channels are one if the transform of their correlation exceeds this (0.9985), and that is new.
_ONE, _NEW = 3.6, 3.0
#: A swap is told if it explains this share of the distance, of so many windows, where there is a distance.
_EXPLAINED, _WINDOWS, _DISTANT = 0.5, 10, 0.05


@dataclass(frozen=True, slots=True, eq=False)
class CovarianceDrift:
    """How far correlations between channels are, in standard deviations between base windows.

    Parameters
    ----------
    distance : (n_chans,) of each channel's correlations with the others; 0 for one that is flat, or was.
    alone : (n_chans,) how much less a channel shares with all others.
    same : pairs of channels that carry one signal, and did not.
    swapped : two channels whose exchange explains most of the distance.
    """

    distance: np.ndarray
    alone: np.ndarray
    same: tuple[tuple[int, int], ...] = ()
    swapped: tuple[int, int] | None = None


def covariance_drift(
    new: tuple[np.ndarray, np.ndarray], pairs: Typical, shared: Typical, n: int, alive: np.ndarray
) -> CovarianceDrift:
    """Compare mean pairs (n_pairs,) and shares (n_chans,) of n windows with those of the base data.

    Parameters
    ----------
    alive : (n_chans,) whether a channel moves, here and in the base data; others are left out.
    """
    here, sharing = new
    rows, cols = np.triu_indices(len(alive), 1)
    both = alive[rows] & alive[cols]
    std = np.maximum(pairs.std, _STEADY_PAIR)
    away = np.where(both, (here - pairs.mean) / std, 0.0)
    n_others = np.maximum(_square(both.astype(float), rows, cols).sum(axis=1), 1)
    # Less what so few windows differ by chance.
    apart = np.sqrt(np.maximum(0, _square(away**2, rows, cols).sum(axis=1) / n_others - 1 / n))
    alone = np.maximum(0, (shared.mean - sharing) / np.maximum(shared.std, _STEADY_SHARE))
    if not alive.all():  # with a channel gone, all others share less
        alone = np.zeros_like(alone)
    one = np.flatnonzero((here > _ONE) & (away > _NEW))
    same = tuple((int(rows[i]), int(cols[i])) for i in one)
    distant = (away**2).mean() - 1 / n > _DISTANT
    weights = np.where(both, 1 / std**2, 0.0)
    swapped = None
    if n >= _WINDOWS and len(alive) > 2 and distant and not same:
        squares = (_square(part, rows, cols) for part in (here, pairs.mean, weights))
        swapped = _swapped(*squares)
    return CovarianceDrift(np.where(alive, np.maximum(apart, alone), 0.0), alone, same, swapped)


def _swapped(here: np.ndarray, base: np.ndarray, weights: np.ndarray) -> tuple[int, int] | None:
    """Return the two channels whose exchange brings matrices (n_chans, n_chans) together, if any does."""
    # (i, j): the distance of channel j's correlations from those that channel i should have.
    cost = weights @ here.T**2 - 2 * (weights * base) @ here.T + (weights * base**2).sum(axis=1)[:, None]
    cost -= weights * base**2  # the correlation of j with itself is none
    own = np.diag(cost)
    kept = weights * (here - base) ** 2  # that of the two with each other stays
    gain = own[:, None] + own[None, :] - 2 * kept - cost - cost.T
    np.fill_diagonal(gain, 0)
    i, j = np.unravel_index(int(np.argmax(gain)), gain.shape)
    explained = gain[i, j] / max(float(own.sum()) / 2, 1e-12)
    return (int(min(i, j)), int(max(i, j))) if explained > _EXPLAINED else None


def _square(pairs: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    n_chans = int(cols[-1]) + 1
    matrix = np.zeros((n_chans, n_chans))
    matrix[rows, cols] = matrix[cols, rows] = pairs
    return matrix

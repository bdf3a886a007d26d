"""Where windows start in a continuous recording."""

import numpy as np
import numpy.typing as npt


def window_starts(n_samples: int, n_times: int, *, overlap: float = 0.0) -> npt.NDArray[np.int64]:
    """Return the first sample of each whole window, in order; none if the recording is shorter than one.

    Parameters
    ----------
    n_samples, n_times : length of the recording and of a window, in samples.
    overlap : share of a window that the next one repeats, from 0 to below 1.

    Examples
    --------
    >>> window_starts(10, 4, overlap=0.5).tolist()
    [0, 2, 4, 6]
    >>> len(window_starts(64 * 3600, 64 * 60, overlap=0.5))
    119
    """
    if n_times < 1:
        raise ValueError(f"a window has at least one sample, got {n_times}; choose a longer window")
    if not 0 <= overlap < 1:
        raise ValueError(f"overlap is a share from 0 to below 1, got {overlap}; 0.5 is half a window")
    step = max(1, round(n_times * (1 - overlap)))
    return np.arange(0, n_samples - n_times + 1, step, dtype=np.int64)

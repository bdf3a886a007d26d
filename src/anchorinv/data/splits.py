"""Train and test parts that share no subject, with about the same mix of classes."""

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FOLDS = 5


def grouped_split(
    labels: Sequence[str], groups: Sequence[str] | Sequence[int], *, seed: int | None = None
) -> npt.NDArray[np.str_]:
    """Return "train" or "test" (n,) for each recording, stratified by label; a group is never on both sides.

    Parameters
    ----------
    labels, groups : (n,) one of each for a recording; a group is usually a person. Groups that are equally
        hard to place are taken in the order of their names or numbers.
    seed : None takes the first fold of an unshuffled division into five, as published for NHIE.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    n_groups = len(set(groups))
    # A class number of its own for each label; the largest class must reach into every fold.
    numbers, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)[1:]
    n_folds = min(FOLDS, n_groups, int(counts.max(initial=0)))
    if n_groups < 2:
        raise ValueError(
            f"a train and a test part need recordings of two groups or more, got {n_groups}; "
            "hand in more, or say which train and which test in a table (--manifest, column split)"
        )
    if n_folds < 2:
        raise ValueError("each class has one recording, too few for a train and a test part; add recordings")
    folds = StratifiedGroupKFold(n_folds, shuffle=seed is not None, random_state=seed)
    with warnings.catch_warnings():
        # A class with fewer recordings than folds is in some folds only; the index shows where.
        warnings.simplefilter("ignore", UserWarning)
        _, test = next(folds.split(np.zeros(len(labels)), numbers, np.asarray(groups)))
    found = np.full(len(labels), "train")
    found[test] = "test"
    return found

"""Examples for ``learn`` and ``add``: read from files, their classes by the files or by ``--label``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.estimator import AnchorInvClassifier


def read_examples(
    model: "AnchorInvClassifier",
    paths: Sequence[Path],
    *,
    label: str | None,
    step: float | None,
    scale: float,
) -> "tuple[np.ndarray, list[Any]]":
    """Return the windows of all files (n, n_chans, n_times) and the class of each."""
    import numpy as np

    from anchorinv.commands.targets import label_like
    from anchorinv.model.serving import shots

    every: list[np.ndarray] = []
    labels: list[Any] = []
    for path in paths:
        windows, found = shots(model, path, step=step, scale=scale)
        if label is not None:
            labels += [label_like(model, label)] * len(windows)
        elif found is not None:
            labels += found.tolist()
        else:
            raise ValueError(f"{path} has no labels; name the class of its examples with --label")
        every.append(windows)
    return np.concatenate(every), labels

"""Examples for ``learn`` and ``add``: read from files, their classes by the files or by ``--label``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.data.labelling import Labelling
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.model.sources import Reading


def read_examples(
    model: "AnchorInvClassifier",
    paths: Sequence[Path],
    *,
    label: str | None,
    labelling: "Labelling | None",
    reading: "Reading",
) -> "tuple[np.ndarray, list[Any]]":
    """Return the windows of all files (n, n_chans, n_times) and the class of each."""
    import numpy as np

    from anchorinv.commands.targets import label_like
    from anchorinv.model.serving import shots
    from anchorinv.model.sources import from_events

    if label is not None and labelling is not None:
        raise ValueError("--label and --events both say the class of examples; leave one of them out")
    every: list[np.ndarray] = []
    labels: list[Any] = []
    for path in paths:
        found: np.ndarray | None
        if labelling is not None:
            windows, found = from_events(model, path, labelling, reading)
            found = np.array([label_like(model, name) for name in found.tolist()])
        else:
            windows, found = shots(model, path, reading)
        if label is not None:
            labels += [label_like(model, label)] * len(windows)
        elif found is not None:
            labels += found.tolist()
        else:
            raise ValueError(
                f"{path} has no labels; name the class of its examples with --label, or its events with "
                "--events"
            )
        every.append(windows)
    return np.concatenate(every), labels

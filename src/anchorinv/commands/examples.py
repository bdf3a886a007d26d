"""Examples for ``learn`` and ``add``: read from files, their classes by the files or by ``--label``."""

from collections.abc import Iterator, Sequence
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
    force: bool,
) -> "tuple[np.ndarray, list[Any]]":
    """Return the windows of all files (n, n_chans, n_times) and the class of each; none in another unit."""
    import numpy as np

    from anchorinv.commands.targets import check_units, label_like

    if label is not None and labelling is not None:
        raise ValueError("--label and --events both say the class of examples; leave one of them out")
    every: list[np.ndarray] = []
    labels: list[Any] = []
    for path, windows, named in _read(model, paths, labelling, reading):
        if label is None and named is None:
            raise ValueError(
                f"{path} has no labels; name the class of its examples with --label, or its events with "
                "--events"
            )
        check_units(model, path, windows, scale=reading.scale, force=force)
        every.append(windows)
        labels += [label_like(model, label)] * len(windows) if label is not None else list(named or ())
    return np.concatenate(every), labels


def _read(
    model: "AnchorInvClassifier",
    paths: Sequence[Path],
    labelling: "Labelling | None",
    reading: "Reading",
) -> "Iterator[tuple[Path, np.ndarray, list[Any] | None]]":
    """Yield the windows of each file, and their classes where it has them."""
    from anchorinv.commands.targets import label_like
    from anchorinv.model.serving import shots
    from anchorinv.model.sources import from_events

    if labelling is not None:
        for path, windows, names in from_events(model, paths, labelling, reading):
            yield path, windows, [label_like(model, name) for name in names.tolist()]
        return
    for path in paths:
        windows, found = shots(model, path, reading)
        yield path, windows, None if found is None else found.tolist()

"""A picture of a few trials of each class."""

from pathlib import Path

import numpy as np

from anchorinv.data.dataset import Dataset
from anchorinv.files import replacing

TRIALS, CLASSES, CHANNELS = 3, 8, 8


def draw_trials(data: Dataset, path: Path) -> None:
    """Draw three trials of each of the first classes, a channel above the other, all to one scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from anchorinv.lettering import plainly_lettered

    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"a picture is a .png, .pdf or .svg file, got {path.name!r}")
    present = [label for label in range(len(data.class_names)) if (data.labels == label).any()][:CLASSES]
    if not present:
        raise ValueError("there are no windows to draw")
    channels = np.unique(np.linspace(0, data.n_chans - 1, min(CHANNELS, data.n_chans)).astype(int))
    chosen = [_spread(np.flatnonzero(data.labels == label)) for label in present]
    shown = {int(i): data.signals([i])[0][channels] for row in chosen for i in row}
    centred = {i: trial - np.median(trial, axis=1, keepdims=True) for i, trial in shown.items()}
    # Most of the signal, not its largest artefact, sets the distance between channels.
    step = 2 * float(np.quantile(np.abs(np.concatenate(list(centred.values()), axis=1)), 0.97)) or 1.0
    seconds = np.arange(data.n_times) / data.sfreq
    height = 0.9 + len(present) * max(1.2, 0.16 * len(channels) + 0.4)
    figure = Figure(figsize=(10.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(present), max(map(len, chosen)), sharex=True, sharey=True, squeeze=False)
    offsets = -step * np.arange(len(channels))
    for row, label, windows in zip(axes, present, chosen, strict=True):
        for axis in row:
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.spines["bottom"].set_color("#bbbbbb")
            axis.tick_params(length=0, labelsize=7)
            axis.set_yticks(offsets, [data.ch_names[i] for i in channels])
            axis.set_ylim(offsets[-1] - 0.75 * step, 0.75 * step)
        for axis, i in zip(row, windows, strict=False):
            axis.plot(seconds, (centred[int(i)] + offsets[:, None]).T, color="#27506f", linewidth=0.5)
            where = " · ".join(_told(data, int(i)))
            axis.set_title(where, fontsize=7, color="#666666", loc="right", pad=2)
        for axis in row[len(windows) :]:
            axis.set_visible(False)
        row[0].set_ylabel(data.class_names[label], fontsize=9, fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("time (s)", fontsize=8)
        axis.set_xlim(seconds[0], seconds[-1])
    unit = data.meta.get("unit", "")
    scale = f"channels {step:.3g}{f' {unit}' if unit == 'µV' else ''} apart"
    left = (
        f", {len(present)} of {len(data.class_names)} classes" if len(present) < len(data.class_names) else ""
    )
    thinned = f", {len(channels)} of {data.n_chans} channels" if len(channels) < data.n_chans else ""
    name = data.meta.get("name", "data")
    figure.suptitle(f"{name}: trials of each class ({scale}{left}{thinned})", fontsize=10)
    plainly_lettered(figure)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=130, format=path.suffix[1:].lower())


def _spread(found: np.ndarray) -> np.ndarray:
    """Return a few of them, from the first to the last."""
    places = np.unique(np.linspace(0, len(found) - 1, TRIALS).astype(int))
    return np.asarray(found[places])


def _told(data: Dataset, i: int) -> list[str]:
    rejected = data.rejected is not None and data.rejected[i]
    told = [f"subject {data.subjects[i]}", f"session {data.sessions[i]}", str(data.split[i])]
    return [*told, "rejected"] if rejected else told

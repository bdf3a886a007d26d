"""Signals: real ones and inverted ones that share an anchor; and how the inversion's error fell."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy.signal import welch
from torch import Tensor, nn

from anchorinv.core.inversion import invert
from anchorinv.core.networks import mapped
from anchorinv.report.paper import FEATURE_MAE
from anchorinv.report.plates import COLUMN, PAGE, Plate, colours, look, new_figure, plate
from anchorinv.report.specimen import Specimen, Unavailable, line_of
from anchorinv.study.methods import inversion_of

#: Fewer steps would show where the inversion starts instead of where it leads.
LEAST_STEPS = 50
MOST_CLASSES = 2
_DRAWN = 300  # points of a trace; each is a bin's least and greatest value
REAL, INVERTED = "#000000", "#D55E00"


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A recording and the signal inverted from zeros until its features are the recording's.

    Parameters
    ----------
    real, inverted : (n_chans, n_times), standardised.
    error, start : mean absolute error of the features at the end and at zeros.
    """

    label: int
    real: np.ndarray
    inverted: np.ndarray
    error: float
    start: float
    steps: int


def pairs(specimen: Specimen, n_classes: int = MOST_CLASSES) -> list[Pair]:
    """Invert the most typical training sample of the first base classes, from zeros."""
    state, base = specimen.state, specimen.base
    settings = specimen.experiment.inversion
    classes = state.classes[:n_classes]
    real = torch.stack([_typical(specimen, label) for label in classes])
    network = nn.Sequential(state.trunk, state.tail)
    plan = replace(inversion_of(settings), steps=max(settings.steps, LEAST_STEPS), from_zeros=True)
    anchors = mapped(network, real)
    start = torch.zeros(len(classes), *base.values.shape[1:])
    before = (mapped(network, start) - anchors).abs().mean(1)
    found = invert(network, anchors, start, plan)
    return [
        Pair(
            label,
            real[i].numpy(),
            found.signals[i].numpy(),
            float(found.errors[i]),
            float(before[i]),
            plan.steps,
        )
        for i, label in enumerate(classes)
    ]


def signals_figure(slug: str, specimen: Specimen, pair: Pair, name: str) -> Plate:
    """Draw a recording and its inversion, channel by channel, with their spectra."""
    data = specimen.data
    n_chans, n_times = pair.real.shape
    seconds = np.arange(n_times) / data.sfreq
    gap = 1.1 * float(np.quantile(np.abs(np.concatenate([pair.real, pair.inverted])), 0.995)) * 2
    heights = -gap * np.arange(n_chans)
    with look():
        figure = new_figure(PAGE, 0.2 * n_chans + 1.2)
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 0.75])
        for ax, values, shade, title in (
            (left, pair.real, REAL, "Real"),
            (middle, pair.inverted, INVERTED, "Inverted, from zeros"),
        ):
            for height, trace in zip(heights, values, strict=True):
                ax.plot(*_thinned(seconds, trace + height), color=shade, linewidth=0.55)
            ax.set_title(title, loc="left")
            ax.set_xlabel("time (s)")
            ax.set_ylim(heights[-1] - 0.75 * gap, 0.75 * gap)
            ax.set_xlim(0, seconds[-1])
            ax.grid(axis="y", visible=False)
        left.set_yticks(heights, data.ch_names, fontsize=6)
        middle.set_yticks(heights, [""] * n_chans)
        _draw_spectra(right, pair, data.sfreq)
        told = f"feature MAE {pair.error:.3f}"
        figure.suptitle(f"{name}: {told} (paper: {FEATURE_MAE}); {pair.start:.2f} at zeros", fontsize=8)
        caption = (
            f"A training sample of {name} and the signal inverted from zeros in {pair.steps} steps until "
            f"its features are the same: {told}, the paper reports {FEATURE_MAE}. In standard deviations of "
            f"the training data, channels one below the other, {gap:.1f} apart. Right: power spectra "
            "(Welch), logarithmic, each about its own mean level."
        )
        if specimen.experiment.synthetic is None:
            caption += " This figure shows a person's recording: ask before it is passed on."
        alt = (
            f"{n_chans} channels of a real signal, of the signal inverted from the same features, and the "
            f"spectra of both; {told}."
        )
        return plate(figure, slug, f"Real and inverted signal: {name}", alt, caption)


def curves_figure(slug: str, specimen: Specimen, where: str) -> Plate:
    """Draw how the error fell while the base classes' replay was inverted; labels and anchors apart."""
    found = specimen.curves()
    if not found:
        raise Unavailable("needs replay that was inverted, and this run has none in its bases")
    kinds = {
        "feature MAE": [key for key in found if key[1] == "anchorinv"],
        "cross-entropy + priors": [key for key in found if key[1] != "anchorinv"],
    }
    panels = {words: keys for words, keys in kinds.items() if keys}
    names = {key: line_of(key, list(found)) for key in found}
    shades = colours(list(names.values()))
    with look():
        figure = new_figure(COLUMN, 1.7 * len(panels) + 0.35 + 0.07 * len(names))
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for ax, (words, keys) in zip(axes, panels.items(), strict=True):
            for key in keys:
                values = found[key].values.double().numpy()
                ax.plot(np.arange(len(values)), values, color=shades[names[key]], label=names[key])
            spans = [float(found[key].values.max() / found[key].values.min()) for key in keys]
            if max(spans) > 5:  # less is told better by plain numbers
                ax.set_yscale("log")
            ax.set_ylabel(words)
            ax.locator_params(axis="x", integer=True)
        axes[-1].set_xlabel("step")
        handles = [handle for ax in axes for handle in ax.get_legend_handles_labels()[0]]
        figure.legend(
            handles=handles, loc="outside upper center", ncols=2 if max(map(len, names.values())) > 12 else 3
        )
        told = "; ".join(f"{names[key]} {found[key].values[-1]:.3g}" for key in found)
        alt = f"Error of the inversion over its steps. It ends at: {told}."
        caption = (
            f"Mean error of the base classes' replay while it is inverted from noise. Ends: {told}. The "
            f"paper's feature MAE, from zeros, is {FEATURE_MAE}."
        )
        return plate(figure, slug, f"Inversion error{where}", alt, caption)


def _typical(specimen: Specimen, label: int) -> Tensor:
    """Return the sample whose features are most like its class's mean, by cosine."""
    own = specimen.base.of(label).values
    features = mapped(specimen.state.tail, mapped(specimen.state.trunk, own))
    return own[torch.cosine_similarity(features, features.mean(0, keepdim=True)).argmax()]


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep what the eye sees of a long trace: the least and greatest value of each bin, in their order."""
    if len(y) <= 2 * _DRAWN:
        return x, y
    edges = np.linspace(0, len(y), _DRAWN + 1).astype(int)
    places = [
        sorted((first + int(y[first:end].argmin()), first + int(y[first:end].argmax())))
        for first, end in pairwise(edges)
    ]
    chosen = np.unique(np.concatenate(places))
    return x[chosen], y[chosen]


def _draw_spectra(ax: Axes, pair: Pair, sfreq: float) -> None:
    heights = -2.4 * np.arange(len(pair.real))
    for values, shade, name in ((pair.real, REAL, "real"), (pair.inverted, INVERTED, "inverted")):
        frequencies, power = welch(values, sfreq, nperseg=min(256, values.shape[-1]))
        level = np.log10(np.maximum(power, 1e-12))
        middle = level[:, 1:].mean()
        for i, (height, trace) in enumerate(zip(heights, level, strict=True)):
            shown = np.clip(trace[1:] - middle, -2.2, 2.2) / 2 + height
            ax.plot(frequencies[1:], shown, color=shade, linewidth=0.8, label=name if i == 0 else None)
    ax.set_title("Spectra", loc="left")
    ax.set_xlabel("frequency (Hz)")
    ax.set_yticks(heights, [""] * len(heights))
    ax.set_ylim(heights[-1] - 1.6, 1.6)
    ax.grid(axis="y", visible=False)
    ax.legend(
        loc="upper right", bbox_to_anchor=(1.0, 1.07), ncols=2, fontsize=6, borderpad=0, handlelength=1.2
    )

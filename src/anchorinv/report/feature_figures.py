"""Figures of a base model: features and anchors in the plane (t-SNE), inverted signals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy.signal import welch
from torch import Tensor, nn

from anchorinv.core.heads import class_means
from anchorinv.core.inversion import invert
from anchorinv.core.memory import InvertedAnchors
from anchorinv.core.networks import encode
from anchorinv.core.prototypes import selection, selection_title
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, State, stream
from anchorinv.datasets.dataset import Dataset
from anchorinv.progress import tick
from anchorinv.report.formats import (
    COLUMN,
    N_DISTINCT,
    PAGE,
    Figure,
    canvas,
    colours,
    figure_style,
    grid,
    render_figure,
)
from anchorinv.report.gather import Run, slugify
from anchorinv.study.config import Experiment, digest
from anchorinv.study.execute import Condition, ModelCache
from anchorinv.study.loading import inversion_of, open_data, people
from anchorinv.study.runner import shares_base
from anchorinv.study.scores import method_title

#: The feature error that the paper reports where signals were inverted from zeros.
FEATURE_MAE = "0.06–0.08"
#: Settings that determine recordings and base model; variants that agree in them share both.
_SHARED = {"data", "synthetic", "geometry", "backbone", "protocol", "standardise", "training", "threads"}
PERPLEXITY, ITERATIONS = 30, 1000
MOST = 600  # real features shown; more would overlap, and t-SNE would take long
#: With fewer steps, the figure would show the start of the inversion rather than its result.
LEAST_STEPS = 50
_DRAWN = 300  # points of a trace; each is a bin's least and greatest value
REAL, INVERTED = "#000000", "#D55E00"


class Unavailable(ValueError):  # noqa: N818 (a reason, not a mistake)
    """Shown in place of a figure: what is missing, and how to provide it."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedRun:
    """A variant's first base model and its training data: the standardised training part of the base classes.

    ``replay`` is what was inverted before session 1, for each variant and method with the same base model.
    """

    experiment: Experiment
    data: Dataset
    base: Batch
    state: State
    seed: int
    replay: dict[tuple[str, str], State]

    def curves(self) -> dict[tuple[str, str], np.ndarray]:
        """Return the error of each inversion over its steps, by variant and method."""
        return {
            key: curve.values.double().numpy()
            for key, state in self.replay.items()
            for curve in state.curves
            if curve.name == "invert"
        }


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure that could not be made, and why."""

    title: str
    why: str


def feature_figures(
    run: Run, datasets: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> tuple[list[Figure], list[Absent]]:
    """Draw features, signals and inversion, a set for each data set; or say why not."""
    drawn: list[Figure] = []
    absent: list[Absent] = []
    chosen = chosen_variants(run)
    for variant in chosen:
        data = run.study.variants[variant].data.name
        slug, where = (f"{run.slug}-{slugify(data)}", f" ({data})") if len(chosen) > 1 else (run.slug, "")
        tasks = _tasks(slug, where, selections, run.class_names(variant))
        try:
            fitted = fitted_run(run, variant, datasets, bases)
        except Unavailable as problem:
            absent += [Absent(f"{title}{where}", str(problem)) for title in tasks]
            continue
        for title, task in tasks.items():
            try:
                drawn += task(fitted)
            except Unavailable as problem:
                absent.append(Absent(f"{title}{where}", str(problem)))
        tick(f"report of {run.label}", 2, 3)
    return drawn, absent


def _tasks(
    slug: str, where: str, selections: Sequence[str], names: Sequence[str]
) -> dict[str, Callable[[FittedRun], list[Figure]]]:
    n_classes = 1 if where else 2  # with several data sets, one class of each is enough

    def signals(fitted: FittedRun) -> list[Figure]:
        pairs = {class_title(names, pair.label): pair for pair in inverted_pairs(fitted, n_classes)}
        return [
            signals_figure(f"{slug}-signals-{pair.label}", fitted, pair, name + where)
            for name, pair in pairs.items()
        ]

    return {
        "Inversion error": lambda fitted: [curves_figure(f"{slug}-inversion", fitted, where)],
        "Features in the plane (t-SNE)": lambda fitted: [
            tsne_figure(f"{slug}-tsne", fitted, selections, names, where)
        ],
        "Real and inverted signals": signals,
    }


def chosen_variants(run: Run) -> list[str]:
    """Return one variant for each data set, to represent the others in figures of features."""
    first: dict[str, str] = {}
    for name, experiment in run.variants().items():
        usual = experiment.anchors.select == "random" and experiment.anchors.per_class >= 50
        known = first.get(experiment.data.name)
        if known is None or (usual and run.study.variants[known].anchors.per_class < 50):
            first[experiment.data.name] = name
    return list(first.values())


def fitted_run(
    run: Run, variant: str, datasets: Mapping[str, Dataset], bases: Path | None = None
) -> FittedRun:
    """Return a variant's base model with its recordings; :class:`Unavailable` says what is missing.

    Data sets are by name; synthetic recordings are made again. ``bases`` is where base models are, if not in
    the run folder.
    """
    experiment = run.study.variants[variant]
    if experiment.synthetic is None and experiment.data.name not in datasets:
        raise Unavailable(
            f"needs the recordings: pass --data {experiment.data.name}=FOLDER to anchorinv report"
        )
    data = open_data(experiment, datasets)
    fingerprint = run.about["data"].get(experiment.data.name, {}).get("fingerprint")
    if experiment.synthetic is None and fingerprint != data.fingerprint:
        raise Unavailable("needs the recordings of the run; these have another fingerprint")
    seed, person = experiment.protocol.seeds[0], people(experiment, data)[0]
    condition = Condition.of(variant, experiment, data, seed, person)
    base = condition.samples(data).train.of(*condition.protocol.base_classes)
    folder, key = bases or run.path / "bases", digest(base.values, base.labels)
    replay: dict[tuple[str, str], State] = {}
    try:
        for start in run.starts[::-1]:
            condition = replace(condition, device=str(start.get("device", "cpu")))
            cache = ModelCache(
                folder, key, seed, experiment.threads, start.get("torch"), start.get("anchorinv")
            )
            if state := cache.find(condition.base_spec):
                break
        else:
            raise Unavailable("needs the base model, which is not in the run's bases; pass --bases FOLDER")
        for name, other in run.variants().items():
            if other.model_dump(include=_SHARED) != experiment.model_dump(include=_SHARED):
                continue
            for method, recipe in replace(condition, experiment=other).methods({}).items():
                shared = shares_base(recipe) if METHODS[method].memory.inverts else None
                if shared and (inverted := cache.find(shared.base_spec, shared.memory)):
                    replay[name, method] = inverted
    except Unavailable:
        raise
    except ValueError as error:
        raise Unavailable(f"needs intact files: {error}") from None
    return FittedRun(experiment, data, base, state, seed, replay)


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """Anchors of one selection, and the features of the signals inverted from them, if any."""

    anchors: Batch
    inverted: Batch | None


def selected_anchors(fitted: FittedRun, selections: Sequence[str], latents: Batch) -> dict[str, Anchors]:
    """Return the anchors of each selection, and the signals that the run inverted from them."""
    settings = fitted.experiment.anchors
    by_anchors = {
        state.anchors.values.numpy().tobytes(): state
        for (_, method), state in fitted.replay.items()
        if METHODS[method].uses_anchors and state.anchors is not None
    }
    selected = {}
    for name in selections:
        memory = InvertedAnchors(settings.per_class, selection(name, settings.measure))
        anchors = memory.keep(fitted.state, fitted.base, latents, rng=stream(fitted.seed, "base")).anchors
        assert anchors is not None
        state = by_anchors.get(anchors.values.numpy().tobytes())
        inverted = None
        if state is not None and state.replay is not None:
            inverted = state.replay.with_values(encode(fitted.state.tail, state.replay.values))
        selected[name] = Anchors(anchors, inverted)
    return selected


@figure_style()
def tsne_figure(
    slug: str, fitted: FittedRun, selections: Sequence[str], class_names: Sequence[str], where: str = ""
) -> Figure:
    """Draw features, prototypes, anchors and inverted samples in the plane, a panel for each selection."""
    state, base = fitted.state, fitted.base
    usual = dict.fromkeys(["random", "closest", fitted.experiment.anchors.select])
    latents = base.with_values(encode(state.trunk, base.values))
    features = base.with_values(encode(state.tail, latents.values))
    chosen = features[_subsample(base)]
    prototypes = class_means(features.values, state.columns(base.labels))
    panels = selected_anchors(fitted, selections or list(usual), latents)
    parts = [chosen.values, prototypes]
    for panel in panels.values():
        parts += [panel.anchors.values, *([panel.inverted.values] if panel.inverted else [])]
    points, perplexity = tsne_embedding(torch.cat(parts).double().numpy())
    places = iter(np.split(points, np.cumsum([len(part) for part in parts])[:-1]))
    real, centres = next(places), next(places)
    labels = [class_title(class_names, label) for label in state.classes]
    shades = colours(labels, ordered=len(labels) > N_DISTINCT)
    by_class = dict(zip(state.classes, shades.values(), strict=True))
    titles = {name: selection_title(name).lower() for name in panels}
    drawing, axes = grid(len(panels), 2.9, 0.45, most=2, sharex=True, sharey=True)
    for ax, (name, panel) in zip(axes.flat, panels.items(), strict=False):
        drawn = [(real, chosen, _FEATURE), (next(places), panel.anchors, _ANCHOR)]
        if panel.inverted:
            drawn.append((next(places), panel.inverted, _INVERTED))
        _draw_features(ax, drawn, by_class)
        ax.scatter(*centres.T, s=95, c=[*shades.values()], marker="*", **_PROTOTYPE)
        ax.set_title(f"Anchors: {titles[name]}", loc="left")
        ax.set_xticks([])
        ax.set_yticks([])
    ncols = 6 if len(panels) > 1 else 3
    drawing.legend(
        handles=_legend_handles(shades), loc="outside upper center", ncols=ncols, handletextpad=0.3
    )
    missing = [titles[name] for name, panel in panels.items() if panel.inverted is None]
    caption = (
        f"t-SNE of base features (perplexity {perplexity:g}, {ITERATIONS} iterations; {len(real)} of "
        f"{len(base)} training samples), with prototypes, anchors and the features of the signals "
        "inverted from them; one arrangement for all panels."
        + (f" The run inverted nothing for {', '.join(missing)}." if missing else "")
    )
    alt = (
        f"Scatter plots of {len(real)} base features of {len(labels)} classes in the plane, with "
        f"prototypes, anchors by {', '.join(titles.values())}, and inverted samples."
    )
    return render_figure(drawing, slug, f"Base features, anchors and inverted samples{where}", alt, caption)


# Style of points; their colour is that of their class.
_FEATURE: dict[str, Any] = {"s": 7, "alpha": 0.3, "linewidths": 0}
_ANCHOR: dict[str, Any] = {"s": 17, "facecolors": "none", "linewidths": 0.8, "zorder": 3}
_INVERTED: dict[str, Any] = {"s": 14, "marker": "x", "linewidths": 0.9, "zorder": 4}
_PROTOTYPE: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.7, "zorder": 5}


def _draw_features(
    ax: Axes, drawn: Sequence[tuple[np.ndarray, Batch, dict[str, Any]]], shades: Mapping[int, str]
) -> None:
    for places, samples, style in drawn:
        colour = "edgecolors" if "facecolors" in style else "color"
        for label, shade in shades.items():
            coloured: dict[str, Any] = {colour: shade, **style}
            ax.scatter(*places[(samples.labels == label).numpy()].T, **coloured)


def _legend_handles(shades: Mapping[str, str]) -> list[Line2D]:
    """Return the legend: a sign for each kind of point, then one for each class."""

    def sign(marker: str, label: str, ms: float = 4, color: str = "#555555", **style: Any) -> Line2D:
        return Line2D([], [], ls="", marker=marker, ms=ms, color=color, label=label, **style)

    return [
        sign("o", "base feature", 3, alpha=0.5),
        sign("*", "prototype", 8, mec="black"),
        sign("o", "anchor", mfc="none"),
        sign("x", "inverted sample"),
        *(sign("s", label, color=shade) for label, shade in shades.items()),
    ]


def tsne_embedding(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the t-SNE embedding (n, 2) of values (n, dim), and the perplexity."""
    from sklearn.manifold import TSNE

    # An anchor that equals a shown feature is one point: t-SNE would push two apart.
    _, first, place = np.unique(values.round(4), axis=0, return_index=True, return_inverse=True)
    if len(first) < 7:
        raise Unavailable(f"needs more features: {len(first)} points are too few to arrange")
    perplexity = min(PERPLEXITY, (len(first) - 1) // 3)
    tsne = TSNE(perplexity=perplexity, max_iter=ITERATIONS, init="pca", random_state=0, n_jobs=1)
    points: np.ndarray = tsne.fit_transform(values[first])
    return points[place], perplexity


def _subsample(base: Batch) -> Tensor:
    """Return the indices of a few samples of each class, so that points do not overlap."""
    per_class = max(1, MOST // len(base.classes))
    by_class = [(base.labels == label).nonzero()[:, 0] for label in base.classes]
    even = [
        indices[torch.linspace(0, len(indices) - 1, min(per_class, len(indices))).long()]
        for indices in by_class
    ]
    return torch.cat(even)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A recording and the signal inverted from zeros to the same features, both standardised.

    Both are (n_chans, n_times); ``error`` and ``start`` are the mean absolute error of the features at the
    end and at zeros.
    """

    label: int
    real: np.ndarray
    inverted: np.ndarray
    error: float
    start: float
    steps: int


def inverted_pairs(fitted: FittedRun, n_classes: int = 2) -> list[Pair]:
    """Invert the most typical training sample of the first base classes, from zeros."""
    state, settings = fitted.state, fitted.experiment.inversion
    classes = state.classes[:n_classes]
    network = nn.Sequential(state.trunk, state.tail)
    plan = replace(inversion_of(settings), steps=max(settings.steps, LEAST_STEPS), from_zeros=True)
    typical = []
    for label in classes:  # the sample whose features are most like its class's mean, by cosine
        signals = fitted.base.of(label).values
        features = encode(network, signals)
        typical.append(signals[torch.cosine_similarity(features, features.mean(0, keepdim=True)).argmax()])
    real = torch.stack(typical)
    anchors, zeros = encode(network, real), torch.zeros_like(real)
    before = (encode(network, zeros) - anchors).abs().mean(1)
    result = invert(network, anchors, zeros, plan)
    columns = zip(
        classes, real.numpy(), result.signals.numpy(), result.errors.tolist(), before.tolist(), strict=True
    )
    return [Pair(*values, plan.steps) for values in columns]


@figure_style()
def signals_figure(slug: str, fitted: FittedRun, pair: Pair, name: str) -> Figure:
    """Draw a recording and its inversion, channel by channel, with their spectra."""
    data = fitted.data
    n_chans, n_times = pair.real.shape
    seconds = np.arange(n_times) / data.sfreq
    gap = 1.1 * float(np.quantile(np.abs(np.concatenate([pair.real, pair.inverted])), 0.995)) * 2
    heights = -gap * np.arange(n_chans)
    drawing = canvas(PAGE, 0.2 * n_chans + 1.2)
    left, middle, right = drawing.subplots(1, 3, width_ratios=[1, 1, 0.75])
    for ax, values, shade, title in (
        (left, pair.real, REAL, "Real"),
        (middle, pair.inverted, INVERTED, "Inverted, from zeros"),
    ):
        for height, trace in zip(heights, values, strict=True):
            ax.plot(*downsample(seconds, trace + height), color=shade, linewidth=0.55)
        ax.set_title(title, loc="left")
        ax.set_xlabel("time (s)")
        ax.set_ylim(heights[-1] - 0.75 * gap, 0.75 * gap)
        ax.set_xlim(0, seconds[-1])
        ax.grid(axis="y", visible=False)
    left.set_yticks(heights, data.ch_names, fontsize=6)
    middle.set_yticks(heights, [""] * n_chans)
    _draw_spectra(right, pair, data.sfreq)
    error = f"feature MAE {pair.error:.3f}"
    drawing.suptitle(f"{name}: {error} (paper: {FEATURE_MAE}); {pair.start:.2f} at zeros", fontsize=8)
    caption = (
        f"A training sample of {name} and the signal inverted from zeros in {pair.steps} steps until "
        f"its features are the same: {error}, the paper reports {FEATURE_MAE}. In standard deviations of "
        f"the training data, channels one below the other, {gap:.1f} apart. Right: power spectra "
        "(Welch), logarithmic, each about its own mean level."
    )
    if fitted.experiment.synthetic is None:
        caption += " This figure shows a person's recording: ask before sharing it."
    alt = (
        f"{n_chans} channels of a real signal, of the signal inverted from the same features, and the "
        f"spectra of both; {error}."
    )
    return render_figure(drawing, slug, f"Real and inverted signal: {name}", alt, caption)


def downsample(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Downsample a long trace for display: the least and greatest value of each bin, in order."""
    if len(y) <= 2 * _DRAWN:
        return x, y
    edges = pairwise(np.linspace(0, len(y), _DRAWN + 1).astype(int))
    extremes = [(first + y[first:end].argmin(), first + y[first:end].argmax()) for first, end in edges]
    chosen = np.unique(extremes)
    return x[chosen], y[chosen]


def _draw_spectra(ax: Axes, pair: Pair, sfreq: float) -> None:
    heights = -2.4 * np.arange(len(pair.real))
    for values, shade, name in ((pair.real, REAL, "real"), (pair.inverted, INVERTED, "inverted")):
        frequencies, power = welch(values, sfreq, nperseg=min(256, values.shape[-1]))
        level = np.log10(np.maximum(power, 1e-12))[:, 1:]
        curves = np.clip(level - level.mean(), -2.2, 2.2) / 2 + heights[:, None]
        ax.plot(
            frequencies[1:], curves.T, color=shade, linewidth=0.8, label=[name, *[None] * (len(curves) - 1)]
        )
    ax.set_title("Spectra", loc="left")
    ax.set_xlabel("frequency (Hz)")
    ax.set_yticks(heights, [""] * len(heights))
    ax.set_ylim(heights[-1] - 1.6, 1.6)
    ax.grid(axis="y", visible=False)
    ax.legend(
        loc="upper right", bbox_to_anchor=(1.0, 1.07), ncols=2, fontsize=6, borderpad=0, handlelength=1.2
    )


@figure_style()
def curves_figure(slug: str, fitted: FittedRun, where: str) -> Figure:
    """Draw the error over the steps of inverting the base classes' replay; labels and anchors separately."""
    curves = fitted.curves()
    if not curves:
        raise Unavailable("needs replay that was inverted, and this run has none in its bases")
    names = {key: _curve_name(*key, list(curves)) for key in curves}
    everything = {names[key]: values for key, values in curves.items()}
    kinds = {"feature MAE": True, "cross-entropy + priors": False}
    panels = {
        words: {
            names[key]: values for key, values in curves.items() if METHODS[key[1]].uses_anchors == anchors
        }
        for words, anchors in kinds.items()
        if any(METHODS[method].uses_anchors == anchors for _, method in curves)
    }
    shades = colours(list(everything))
    drawing = canvas(COLUMN, 1.7 * len(panels) + 0.35 + 0.07 * len(everything))
    axes = drawing.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, (words, panel) in zip(axes, panels.items(), strict=True):
        for name, values in panel.items():
            ax.plot(values, color=shades[name], label=name)
        if max(values.max() / values.min() for values in panel.values()) > 5:
            ax.set_yscale("log")  # smaller ranges are clearer on a linear scale
        ax.set_ylabel(words)
        ax.locator_params(axis="x", integer=True)
    axes[-1].set_xlabel("step")
    handles = [handle for ax in axes for handle in ax.get_legend_handles_labels()[0]]
    ncols = 2 if max(map(len, everything)) > 12 else 3
    drawing.legend(handles=handles, loc="outside upper center", ncols=ncols)
    ends = "; ".join(f"{name} {values[-1]:.3g}" for name, values in everything.items())
    alt = f"Error of the inversion over its steps. It ends at: {ends}."
    caption = (
        f"Mean error of the base classes' replay while it is inverted from noise. Ends: {ends}. The "
        f"paper's feature MAE, from zeros, is {FEATURE_MAE}."
    )
    return render_figure(drawing, slug, f"Inversion error{where}", alt, caption)


def _curve_name(variant: str, method: str, curves: Sequence[tuple[str, str]]) -> str:
    """Return the label of one of several curves: its method, its variant, or both."""
    n_variants, n_methods = (len(set(names)) for names in zip(*curves, strict=True))
    if n_variants == 1:
        return method_title(method)
    return variant if n_methods == 1 else f"{variant}, {method_title(method)}"


def class_title(names: Sequence[str], label: int) -> str:
    """Return a class's name by its number; "class 3" where the name is a number."""
    name = names[label] if label < len(names) else str(label)
    return f"class {name}" if name.isdigit() else name

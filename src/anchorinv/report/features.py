"""Where things lie in the feature space: base features, prototypes, anchors and inverted samples (t-SNE)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.lines import Line2D

from anchorinv.core.anchors import selection
from anchorinv.core.heads import class_means
from anchorinv.core.inverted import InvertedAnchors
from anchorinv.core.networks import mapped
from anchorinv.core.rng import stream
from anchorinv.core.types import Batch
from anchorinv.report.plates import COLOURS, COLUMN, PAGE, Plate, colours, look, new_figure, plate
from anchorinv.report.specimen import Specimen, Unavailable
from anchorinv.study.names import selection_name

PERPLEXITY, ITERATIONS = 30, 1000
MOST = 600  # real features shown: more hide each other, and take long to arrange


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What one selection keeps: anchors, and the features of the signals inverted from them, if any were."""

    anchors: Batch
    inverted: Batch | None


def kept(specimen: Specimen, selections: Sequence[str], latents: Batch) -> dict[str, Kept]:
    """Return the anchors of each selection, and what the run inverted from them; ``latents`` of the base."""
    base, state, asked = specimen.base, specimen.state, specimen.experiment.anchors
    own = {}
    for (_, method), replayed in specimen.replay.items():
        if method == "anchorinv" and replayed.anchors is not None:
            own[_digest(replayed.anchors)] = replayed
    found = {}
    for name in selections:
        memory = InvertedAnchors(asked.per_class, selection(name, asked.measure))
        anchors = memory.keep(state, base, latents, rng=stream(specimen.seed, "base")).anchors
        assert anchors is not None
        match = own.get(_digest(anchors))
        inverted = None
        if match is not None and match.replay is not None:
            inverted = match.replay.with_values(mapped(state.tail, match.replay.values))
        found[name] = Kept(anchors, inverted)
    return found


def default_selections(specimen: Specimen) -> list[str]:
    """Return the selections of the paper's figures, and the run's own."""
    return list(dict.fromkeys(["random", "closest", specimen.experiment.anchors.select]))


def tsne_figure(
    slug: str, specimen: Specimen, selections: Sequence[str], class_names: Sequence[str], where: str = ""
) -> Plate:
    """Arrange features, prototypes, anchors and inverted samples in the plane, a panel for each selection."""
    state, base = specimen.state, specimen.base
    latents = base.with_values(mapped(state.trunk, base.values))
    everything = base.with_values(mapped(state.tail, latents.values))
    chosen = everything[_thinned(base)]
    prototypes = class_means(everything.values, state.columns(base.labels))
    shown = kept(specimen, selections, latents)
    parts = [chosen.values, prototypes]
    for each in shown.values():
        parts += [each.anchors.values, *([each.inverted.values] if each.inverted else [])]
    points, perplexity = _arranged(torch.cat(parts).double().numpy())
    places = iter(np.split(points, np.cumsum([len(part) for part in parts])[:-1]))
    real, centres = next(places), next(places)
    names = [class_names[c] if c < len(class_names) else str(c) for c in state.classes]
    labels = [f"class {name}" if name.isdigit() else name for name in names]
    few = len(labels) <= len(COLOURS) - 1
    shades = list(colours(labels, ordered=not few).values())
    with look():
        columns = min(2, len(shown))
        rows = -(-len(shown) // columns)
        figure = new_figure(COLUMN if columns == 1 else PAGE, 2.9 * rows + 0.45)
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for ax in axes.flat[len(shown) :]:
            ax.set_visible(False)
        for ax, (name, each) in zip(axes.flat, shown.items(), strict=False):
            anchors = next(places)
            inverted = next(places) if each.inverted else None
            for shade, label in zip(shades, state.classes, strict=True):
                ax.scatter(
                    *real[(chosen.labels == label).numpy()].T, s=7, color=shade, alpha=0.3, linewidths=0
                )
                mine = (each.anchors.labels == label).numpy()
                ax.scatter(
                    *anchors[mine].T, s=17, facecolors="none", edgecolors=shade, linewidths=0.8, zorder=3
                )
                if inverted is not None and each.inverted is not None:
                    mine = (each.inverted.labels == label).numpy()
                    ax.scatter(*inverted[mine].T, s=14, color=shade, marker="x", linewidths=0.9, zorder=4)
            ax.scatter(*centres.T, s=95, c=shades, marker="*", edgecolors="black", linewidths=0.7, zorder=5)
            ax.set_title(f"Anchors: {selection_name(name).lower()}", loc="left")
            ax.set_xticks([])
            ax.set_yticks([])
        marks = [
            Line2D([], [], ls="", marker="o", ms=3, color="#555555", alpha=0.5, label="base feature"),
            Line2D([], [], ls="", marker="*", ms=8, color="#555555", mec="black", label="prototype"),
            Line2D([], [], ls="", marker="o", ms=4, mfc="none", color="#555555", label="anchor"),
            Line2D([], [], ls="", marker="x", ms=4, color="#555555", label="inverted sample"),
            *(
                Line2D([], [], ls="", marker="s", ms=4, color=s, label=t)
                for s, t in zip(shades, labels, strict=True)
            ),
        ]
        ncols = 6 if columns > 1 else 3
        figure.legend(handles=marks, loc="outside upper center", ncols=ncols, handletextpad=0.3)
        missing = [selection_name(name).lower() for name, each in shown.items() if each.inverted is None]
        note = f" The run inverted nothing for {', '.join(missing)}." if missing else ""
        caption = (
            f"t-SNE of base features (perplexity {perplexity:g}, {ITERATIONS} iterations; {len(real)} of "
            f"{len(base)} training samples), with prototypes, anchors and the features of the signals "
            f"inverted from them; one arrangement for all panels.{note}"
        )
        alt = (
            f"Scatter plots of {len(real)} base features of {len(labels)} classes in the plane, with "
            f"prototypes, anchors by {', '.join(selection_name(name).lower() for name in shown)}, and "
            "inverted samples."
        )
        return plate(figure, slug, f"Base features, anchors and inverted samples{where}", alt, caption)


def _thinned(base: Batch) -> torch.Tensor:
    """Return the places of so many samples of each class that they can be told apart."""
    per_class = max(1, MOST // len(base.classes))
    places = [(base.labels == label).nonzero()[:, 0] for label in base.classes]
    even = [each[torch.linspace(0, len(each) - 1, min(per_class, len(each))).long()] for each in places]
    return torch.cat(even)


def _arranged(values: np.ndarray) -> tuple[np.ndarray, float]:
    from sklearn.manifold import TSNE

    # An anchor that is a feature shown is one point, not two that push each other away.
    _, first, place = np.unique(values.round(4), axis=0, return_index=True, return_inverse=True)
    if len(first) < 7:
        raise Unavailable(f"needs more features: {len(first)} points are too few to arrange")
    perplexity = min(PERPLEXITY, (len(first) - 1) // 3)
    found = TSNE(perplexity=perplexity, max_iter=ITERATIONS, init="pca", random_state=0, n_jobs=1)
    points: np.ndarray = found.fit_transform(values[first])
    return points[place], perplexity


def _digest(anchors: Batch) -> bytes:
    return anchors.values.numpy().tobytes()

"""Every method as a short composition, with its source. Defaults are the paper's settings for BCI."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from anchorinv.core.anchors import Selection, random_anchors
from anchorinv.core.closed_form import ClosedForm, MinimumDistance
from anchorinv.core.heads import DotRegression, Mlp
from anchorinv.core.inversion import Inversion
from anchorinv.core.inverted import InvertedAnchors, InvertedLabels
from anchorinv.core.mahalanobis import PRIOR, FitMahalanobis
from anchorinv.core.memory import Anchors, ClassMeans, LatentSamples, Nothing, RealSamples
from anchorinv.core.priors import Prior, Term, energy, statistics, total_variation
from anchorinv.core.prototypes import (
    Calibrated,
    Placement,
    add_statistics,
    mean_of_shots,
    new_outputs,
    next_vertices,
    random_rows,
)
from anchorinv.core.ranpac import N_RANDOM, RidgeStatistics
from anchorinv.core.recipe import Foundation, Recipe
from anchorinv.core.ridge import PENALTY, ByRidge
from anchorinv.core.splits import Projected, Whole
from anchorinv.core.training import Adaptation, Finetune, Stay
from anchorinv.core.views import VIEWS

# Published as ranges, of which these are the middles: 0 to 150, 150 to 1000 and 0 to 3450 steps.
FINETUNE_ONLY = Finetune(steps=(75,), lr=2e-5)
FINETUNE_PROJECTOR = Finetune(steps=(575,), lr=2e-5)
FINETUNE_ON_LABELS = Finetune(steps=(1725,), lr=2e-5)
FINETUNE = Finetune(steps=(1275,), lr=2e-5)


def anchorinv(
    foundation: Foundation,
    *,
    start: Placement = random_rows,
    adapt: Adaptation = FINETUNE,
    per_class: int = 50,
    select: Selection = random_anchors,
    inversion: Inversion = Inversion(),
    priors: tuple[Prior, ...] = (),
) -> Recipe:
    """Replay signals inverted from anchors while the last block and the new prototypes learn."""
    memory = InvertedAnchors(per_class, select, inversion, priors)
    return Recipe("anchorinv", foundation, start, adapt, memory, "Li et al., AnchorInv, 2025")


def deepdream(
    foundation: Foundation,
    *,
    start: Placement = random_rows,
    adapt: Adaptation = FINETUNE_ON_LABELS,
    per_class: int = 50,
    inversion: Inversion = Inversion(),
    l2: Term = energy,
) -> Recipe:
    """Replay signals inverted from labels, kept small and smooth."""
    priors = (Prior("l2", l2), Prior("tv", total_variation))
    memory = InvertedLabels(per_class, inversion, priors)
    return Recipe("deepdream", foundation, start, adapt, memory, "Mordvintsev et al., Inceptionism, 2015")


def deepinv(
    foundation: Foundation,
    *,
    start: Placement = random_rows,
    adapt: Adaptation = FINETUNE_ON_LABELS,
    per_class: int = 50,
    inversion: Inversion = Inversion(),
    l2: Term = energy,
) -> Recipe:
    """Replay signals inverted from labels, with the statistics that the BatchNorm has seen."""
    priors = (Prior("l2", l2), Prior("tv", total_variation), Prior("statistics", statistics))
    memory = InvertedLabels(per_class, inversion, priors)
    return Recipe("deepinv", foundation, start, adapt, memory, "Yin et al., Dreaming to Distill, CVPR 2020")


def real_replay(
    foundation: Foundation,
    *,
    start: Placement = random_rows,
    adapt: Adaptation = FINETUNE,
    per_class: int = 50,
) -> Recipe:
    """Replay recordings: the bound that inversion aims at, at the price of privacy."""
    memory = RealSamples(per_class)
    return Recipe("real-replay", foundation, start, adapt, memory, "Li et al., AnchorInv, 2025, appendix")


def latent_replay(
    foundation: Foundation,
    *,
    start: Placement = random_rows,
    adapt: Adaptation = FINETUNE,
    per_class: int = 50,
) -> Recipe:
    """Replay the last block's inputs of real samples: the numbers of real replay, without recordings."""
    memory = LatentSamples(per_class)
    citation = "after Pellegrini et al., Latent Replay for Real-Time Continual Learning, IROS 2020"
    return Recipe("latent-replay", foundation, start, adapt, memory, citation)


def protonet(foundation: Foundation) -> Recipe:
    """Place new prototypes at the mean of their shots and leave the network alone."""
    citation = "Snell et al., Prototypical Networks for Few-shot Learning, NeurIPS 2017"
    return Recipe("protonet", foundation, mean_of_shots, Stay(), Nothing(), citation)


def teen(foundation: Foundation, *, tau: float = 32.0, alpha: float = 0.5) -> Recipe:
    """Place new prototypes near their shots' mean, drawn towards similar base prototypes."""
    citation = "Wang et al., FSCIL via Training-Free Prototype Calibration, NeurIPS 2023"
    return Recipe("teen", foundation, Calibrated(tau, alpha), Stay(), Nothing(), citation)


def fecam(
    foundation: Foundation,
    *,
    per_class: int = 50,
    select: Selection = random_anchors,
    prior: float = PRIOR,
) -> Recipe:
    """Measure Mahalanobis distance to prototypes, by covariance of the anchors. Not in the paper."""
    citation = "after Goswami et al., FeCAM, NeurIPS 2023"
    judge = FitMahalanobis(prior)
    return Recipe("fecam", foundation, mean_of_shots, Stay(), Anchors(per_class, select), citation, judge)


def whitened(
    foundation: Foundation,
    *,
    per_class: int = 50,
    select: Selection = random_anchors,
    prior: float = PRIOR,
) -> Recipe:
    """Compare by cosine where anchors of a class are as wide in all directions. Not in the paper."""
    judge = FitMahalanobis(prior, by_angle=True)
    memory = Anchors(per_class, select)
    return Recipe(
        "whitened", foundation, mean_of_shots, Stay(), memory, "nearest class mean, whitened", judge
    )


def ridge(
    foundation: Foundation,
    *,
    per_class: int = 50,
    select: Selection = random_anchors,
    penalty: float = PENALTY,
) -> Recipe:
    """Fit linear outputs to the anchors of all classes by ridge regression. Not in the paper."""
    memory, judge = Anchors(per_class, select), ByRidge(penalty)
    return Recipe("ridge", foundation, mean_of_shots, Stay(), memory, "Hoerl & Kennard, 1970", judge)


def ranpac(foundation: Foundation, *, n_random: int = N_RANDOM) -> Recipe:
    """Fit ridge outputs to random projections of the features, by sums over all samples. Not in the paper."""
    citation = "McDonnell et al., RanPAC, NeurIPS 2023"
    return Recipe("ranpac", foundation, add_statistics, Stay(), RidgeStatistics(n_random), citation)


def anchorinv_plus(
    foundation: Foundation,
    *,
    per_class: int = 50,
    select: Selection = random_anchors,
    prior: float = PRIOR,
    views: tuple[str, ...] = tuple(VIEWS),
) -> Recipe:
    """Measure Mahalanobis distance in features, spectrum and covariance alike. Not in the paper."""
    citation = "anchors as in AnchorInv; covariance after FeCAM; log-covariances after Barachant et al., 2012"
    memory, judge = Anchors(per_class, select), FitMahalanobis(prior)
    return Recipe("anchorinv-plus", foundation, mean_of_shots, Stay(), memory, citation, judge, views)


#: Whether a discriminant has a network beside its other features.
NETWORKS = ("never", "rehearse", "always")


def discriminant(foundation: Foundation, *, network: str = "never") -> Recipe:
    """Judge by a discriminant on classical features; no sample is kept. Not in the paper.

    ``network`` is ``"never"``, ``"always"``, or ``"rehearse"``: train one if held-out base classes are told
    clearly better with one.
    """
    citation = "probabilistic LDA after Ioffe, ECCV 2006; random projections after RanPAC, NeurIPS 2023"
    base = ClosedForm()
    if network != "never":
        base = ClosedForm(network=foundation, always=network == "always")
    return Recipe("discriminant", base, add_statistics, Stay(), Nothing(), citation)


#: What a textbook would take, each feature as it is.
TEXTBOOK = ClosedForm(
    blocks=("covariance", "covariance of differences", "time-domain", "spectrum", "waveform"),
    most_features=1 << 11,
    most_random=0,
    share=1e9,
    by_block=False,
    prior=False,
    rehearsed=False,
)


def lda(foundation: Foundation) -> Recipe:
    """Judge by linear discriminant analysis on textbook features; no network. Not in the paper."""
    citation = "Fisher, 1936; shrinkage of Ledoit & Wolf, 2004; tangent space of Barachant et al., 2012"
    return Recipe("lda", TEXTBOOK, add_statistics, Stay(), Nothing(), citation)


def mdm(foundation: Foundation) -> Recipe:
    """Take the class with the nearest mean covariance; no network, no sample kept. Not in the paper."""
    citation = "Barachant et al., Riemannian Geometry, IEEE TBME 2012: minimum distance to mean"
    return Recipe("mdm", MinimumDistance(), add_statistics, Stay(), Nothing(), citation)


def finetune(
    foundation: Foundation, *, adapt: Finetune = FINETUNE_ONLY, whole_network: bool = False
) -> Recipe:
    """Train the last block, or the whole network, and an ordinary classifier on the new shots alone."""
    citation = "plain finetuning; classifier of Song et al., EEG Conformer, IEEE TNSRE 2023"
    with_mlp = replace(foundation, head=Mlp.start)
    if whole_network:
        with_mlp = replace(with_mlp, backbone=partial(_whole, foundation.backbone))
    return Recipe("finetune", with_mlp, new_outputs, adapt, Nothing(), citation)


def nc_fscil(foundation: Foundation, *, n_all: int = 16, adapt: Finetune = FINETUNE_PROJECTOR) -> Recipe:
    """Train a projector towards fixed vertices, one for each of ``n_all`` classes ever to come."""
    citation = "Yang et al., Neural Collapse Inspired Feature-Classifier Alignment for FSCIL, ICLR 2023"
    projected = replace(
        foundation,
        backbone=partial(_projected, foundation.backbone),
        head=partial(DotRegression.start, n_all=n_all),
    )
    return Recipe("nc-fscil", projected, next_vertices, adapt, ClassMeans(), citation)


#: All methods by the name under which studies ask for them.
CATALOGUE: dict[str, Callable[..., Recipe]] = {
    "finetune": finetune,
    "nc-fscil": nc_fscil,
    "protonet": protonet,
    "teen": teen,
    "deepdream": deepdream,
    "deepinv": deepinv,
    "anchorinv": anchorinv,
    "real-replay": real_replay,
    "latent-replay": latent_replay,
    "ridge": ridge,
    "whitened": whitened,
    "fecam": fecam,
    "anchorinv-plus": anchorinv_plus,
    "ranpac": ranpac,
    "lda": lda,
    "mdm": mdm,
    "discriminant": discriminant,
}

#: Names that methods had, still understood in settings, files and records.
FORMER_NAMES = {"spread": "fecam"}

#: Ours, which leave the network alone and classify by the anchors.
JUDGED = ("ridge", "whitened", "fecam", "anchorinv-plus")

#: Those that leave the network alone and keep sums over all samples.
SUMMED = ("ranpac",)

#: Ours, which need no network and keep statistics of classes alone.
CLOSED_FORM = ("lda", "mdm", "discriminant")

#: Those of the paper and its appendix.
PUBLISHED = tuple(name for name in CATALOGUE if name not in (*JUDGED, *SUMMED, *CLOSED_FORM))


def current_name(method: str) -> str:
    """Return what a method is called now.

    Examples
    --------
    >>> current_name("spread"), current_name("protonet")
    ('fecam', 'protonet')
    """
    return FORMER_NAMES.get(method, method)


def _projected(backbone: Callable[[], nn.Module]) -> nn.Module:
    return Projected(backbone())


def _whole(backbone: Callable[[], nn.Module]) -> nn.Module:
    return Whole(backbone())

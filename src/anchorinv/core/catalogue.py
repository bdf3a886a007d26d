"""All methods of this package, each as one registry entry. Defaults are the paper's for BCI."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.blocks import VIEWS
from anchorinv.core.closed_form import ClosedForm, MinimumDistance
from anchorinv.core.heads import DotRegression, Mlp
from anchorinv.core.inversion import Inversion, Prior, Term, energy, statistics, total_variation
from anchorinv.core.mahalanobis import SHRINKAGE, FitMahalanobis
from anchorinv.core.memory import (
    Anchors,
    ClassMeans,
    InvertedAnchors,
    InvertedLabels,
    LatentSamples,
    NoMemory,
    RealSamples,
)
from anchorinv.core.prototypes import (
    Calibrated,
    Placement,
    Selection,
    add_statistics,
    mean_of_shots,
    new_outputs,
    next_vertices,
    random_anchors,
    random_rows,
)
from anchorinv.core.recipe import BaseSpec, FitHead, Recipe
from anchorinv.core.registry import method
from anchorinv.core.ridge import N_RANDOM, PENALTY, FitRidge, RidgeStatistics
from anchorinv.core.training import Adaptation, Finetune, NoAdaptation

paper_method = partial(method, published=True)

# Midpoints of the published ranges: 0 to 150, 150 to 1000 and 0 to 3450 steps.
FINETUNE_ONLY = Finetune(steps=(75,), lr=2e-5)
FINETUNE_PROJECTOR = Finetune(steps=(575,), lr=2e-5)
FINETUNE_ON_LABELS = Finetune(steps=(1725,), lr=2e-5)
FINETUNE = Finetune(steps=(1275,), lr=2e-5)


@paper_method(
    "finetune",
    title="Finetune",
    citation="plain finetuning; classifier of Song et al., EEG Conformer, IEEE TNSRE 2023",
    look=("#7F7F7F", "<"),
    head="mlp",
    memory=NoMemory,
)
def finetune(base_spec: BaseSpec, *, adapt: Finetune = FINETUNE_ONLY, whole_network: bool = False) -> Recipe:
    """Train the last block, or the whole network, and an ordinary classifier on the new shots alone."""
    with_mlp = replace(base_spec, head=Mlp.start)
    if whole_network:
        with_mlp = replace(with_mlp, backbone=partial(_whole, base_spec.backbone))
    return Recipe("finetune", with_mlp, new_outputs, adapt, NoMemory())


@paper_method(
    "nc-fscil",
    title="NC-FSCIL",
    citation="Yang et al., Neural Collapse Inspired Feature-Classifier Alignment for FSCIL, ICLR 2023",
    look=("#CC79A7", "D"),
    head="dot-regression",
    memory=ClassMeans,
)
def nc_fscil(base_spec: BaseSpec, *, n_all: int = 16, adapt: Finetune = FINETUNE_PROJECTOR) -> Recipe:
    """Train a projector towards fixed vertices, one for each of ``n_all`` present and future classes."""
    projected = replace(
        base_spec,
        backbone=partial(_projected, base_spec.backbone),
        head=partial(DotRegression.start, n_all=n_all),
    )
    return Recipe("nc-fscil", projected, next_vertices, adapt, ClassMeans())


@paper_method(
    "protonet",
    title="ProtoNet",
    citation="Snell et al., Prototypical Networks for Few-shot Learning, NeurIPS 2017",
    look=("#0072B2", "s"),
    memory=NoMemory,
)
def protonet(base_spec: BaseSpec) -> Recipe:
    """Place new prototypes at the mean of their shots and leave the network alone."""
    return Recipe("protonet", base_spec, mean_of_shots, NoAdaptation(), NoMemory())


@paper_method(
    "teen",
    title="TEEN",
    citation="Wang et al., FSCIL via Training-Free Prototype Calibration, NeurIPS 2023",
    look=("#56B4E9", "P"),
    memory=NoMemory,
)
def teen(base_spec: BaseSpec, *, tau: float = 32.0, alpha: float = 0.5) -> Recipe:
    """Place new prototypes near their shots' mean, drawn towards similar base prototypes."""
    return Recipe("teen", base_spec, Calibrated(tau, alpha), NoAdaptation(), NoMemory())


def _from_labels(name: str, *priors: Prior) -> Callable[..., Recipe]:
    """Replay signals inverted from labels, regularised by priors."""

    def build(
        base_spec: BaseSpec,
        *,
        start: Placement = random_rows,
        adapt: Adaptation = FINETUNE_ON_LABELS,
        per_class: int = 50,
        inversion: Inversion = Inversion(),
        l2: Term = energy,
    ) -> Recipe:
        terms = (Prior("l2", l2), Prior("tv", total_variation), *priors)
        return Recipe(name, base_spec, start, adapt, InvertedLabels(per_class, inversion, terms))

    return build


deepdream = paper_method(
    "deepdream",
    title="DeepDream",
    citation="Mordvintsev et al., Inceptionism, 2015",
    look=("#E69F00", "v"),
    memory=InvertedLabels,
)(_from_labels("deepdream"))

deepinv = paper_method(  # with the running statistics of BatchNorm
    "deepinv",
    title="DeepInv",
    citation="Yin et al., Dreaming to Distill, CVPR 2020",
    look=("#009E73", "^"),
    memory=InvertedLabels,
)(_from_labels("deepinv", Prior("statistics", statistics)))


@paper_method(
    "anchorinv",
    title="AnchorInv",
    citation="Li et al., AnchorInv, 2025",
    look=("#D55E00", "o"),
    memory=InvertedAnchors,
)
def anchorinv(
    base_spec: BaseSpec,
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
    return Recipe("anchorinv", base_spec, start, adapt, memory)


def _from_samples(name: str, memory: type[RealSamples] | type[LatentSamples]) -> Callable[..., Recipe]:
    """Replay what is kept of real samples."""

    def build(
        base_spec: BaseSpec,
        *,
        start: Placement = random_rows,
        adapt: Adaptation = FINETUNE,
        per_class: int = 50,
    ) -> Recipe:
        return Recipe(name, base_spec, start, adapt, memory(per_class))

    return build


real_replay = paper_method(  # recordings: the upper bound for inversion, without privacy
    "real-replay",
    title="RealReplay",
    citation="Li et al., AnchorInv, 2025, appendix",
    look=("#000000", "X"),
    memory=RealSamples,
)(_from_samples("real-replay", RealSamples))

# Inputs of the last block: equivalent to replaying recordings, without storing them.
latent_replay = paper_method(
    "latent-replay",
    title="LatentReplay",
    citation="after Pellegrini et al., Latent Replay for Real-Time Continual Learning, IROS 2020",
    look=("#8C510A", ">"),
    memory=LatentSamples,
)(_from_samples("latent-replay", LatentSamples))


WIDTH, HIDDEN = 512, 1024


class Pooled(nn.Module):
    """Average features (n, dim) down to (n, 512)."""

    def forward(self, features: Tensor) -> Tensor:
        """Return (n, 512)."""
        return F.adaptive_avg_pool1d(features.unsqueeze(1), WIDTH).squeeze(1)


class Projector(nn.Module):
    """Two hidden layers and a skip: (n, 512) -> (n, 512)."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Linear(WIDTH, HIDDEN), nn.LayerNorm(HIDDEN), nn.LeakyReLU(0.1)]
        second = [nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*first, *second, nn.Linear(HIDDEN, WIDTH, bias=False))
        self.skip = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return (n, 512)."""
        projected: Tensor = self.layers(pooled) + self.skip(pooled)
        return projected


class Projected(nn.Sequential):
    """Split a backbone after the pooling: all of it is the trunk, the projector is the tail."""

    latent_shape = (WIDTH,)
    dim = WIDTH

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__(OrderedDict(trunk=nn.Sequential(backbone, Pooled()), tail=Projector()))


def _projected(backbone: Callable[[], nn.Module]) -> nn.Module:
    return Projected(backbone())


def _whole(backbone: Callable[[], nn.Module]) -> nn.Module:
    """Split a backbone so that nothing is frozen."""
    return nn.Sequential(OrderedDict(trunk=nn.Identity(), tail=backbone()))


STATISTICS_FORGET = (
    "its statistics are gone. If it was a base class, how features are computed, and quantiles of the "
    "distances of all base classes' windows together, may keep traces."
)
STATISTICS: dict[str, Any] = {
    "network": False,
    "statistics": True,
    "weighted": True,
    "holds": (
        "It holds how features are computed, and of each class a count, a mean and a scatter of them.",
        "The mean of a class learned from one window is that window's features; the scatter of a class "
        "learned from few windows shows how these differ.",
    ),
    "forgetting": STATISTICS_FORGET,
}

#: Textbook features, unscaled.
TEXTBOOK = ClosedForm(
    blocks=("covariance", "covariance of differences", "time-domain", "spectrum", "waveform"),
    most_features=1 << 11,
    most_random=0,
    share=1e9,
    by_block=False,
    prior=False,
    rehearsed=False,
)


def _fitted_to_anchors(
    name: str, fit: Callable[[float], FitHead], strength: float, views: tuple[str, ...] = ()
) -> Callable[..., Recipe]:
    """Leave the network alone and classify with a head that is fitted to the anchors of all classes."""

    def build(
        base_spec: BaseSpec,
        *,
        per_class: int = 50,
        select: Selection = random_anchors,
        prior: float = strength,
        views: tuple[str, ...] = views,
    ) -> Recipe:
        memory = Anchors(per_class, select)
        return Recipe(name, base_spec, mean_of_shots, NoAdaptation(), memory, fit(prior), views)

    return build


ridge = method(  # linear outputs by ridge regression
    "ridge",
    title="Ridge",
    citation="Hoerl & Kennard, 1970",
    look=("#882255", "h"),
    head="linear",
    memory=Anchors,
)(_fitted_to_anchors("ridge", FitRidge, PENALTY))

whitened = method(  # cosine in a whitened space
    "whitened",
    title="Whitened",
    citation="nearest class mean, whitened",
    look=("#999933", "d"),
    head="whitened",
    memory=Anchors,
)(_fitted_to_anchors("whitened", partial(FitMahalanobis, by_angle=True), SHRINKAGE))

fecam = method(  # Mahalanobis distance to prototypes, by a covariance of the anchors
    "fecam",
    title="FeCAM",
    citation="after Goswami et al., FeCAM, NeurIPS 2023",
    look=("#332288", "p"),
    head="mahalanobis",
    former=("spread",),
    memory=Anchors,
)(_fitted_to_anchors("fecam", FitMahalanobis, SHRINKAGE))

anchorinv_plus = method(  # the same in network features, spectrum and covariance alike
    "anchorinv-plus",
    title="AnchorInv+",
    citation="anchors as in AnchorInv; covariance after FeCAM; log-covariances after Barachant et al., 2012",
    look=("#117777", "8"),
    head="mahalanobis",
    memory=Anchors,
)(_fitted_to_anchors("anchorinv-plus", FitMahalanobis, SHRINKAGE, tuple(VIEWS)))


@method(
    "ranpac",
    title="RanPAC",
    citation="McDonnell et al., RanPAC, NeurIPS 2023",
    look=("#661100", "x"),
    head="projected-ridge",
    holds=(
        "It holds the network's weights and a random projection; of each class a count and a sum of "
        "projected features, and of all classes together sums of their squares and products.",
        "The sum of a class learned from one window is that window's projected features.",
    ),
    forgetting="its sum is gone, but weights and the squares and products of all classes may keep traces.",
    memory=RidgeStatistics,
    statistics=True,
)
def ranpac(base_spec: BaseSpec, *, n_random: int = N_RANDOM) -> Recipe:
    """Fit ridge outputs to random projections of the features, by sums over all samples. Not in the paper."""
    return Recipe("ranpac", base_spec, add_statistics, NoAdaptation(), RidgeStatistics(n_random))


@method(
    "lda",
    title="LDA",
    citation="Fisher, 1936; shrinkage of Ledoit & Wolf, 2004; tangent space of Barachant et al., 2012",
    look=("#EE8866", "*"),
    head="discriminant",
    **STATISTICS,
    memory=NoMemory,
)
def lda(base_spec: BaseSpec) -> Recipe:
    """Classify by linear discriminant analysis on textbook features; no network. Not in the paper."""
    return Recipe("lda", TEXTBOOK, add_statistics, NoAdaptation(), NoMemory())


@method(
    "mdm",
    title="MDM",
    citation="Barachant et al., Riemannian Geometry, IEEE TBME 2012: minimum distance to mean",
    look=("#AA4499", "H"),
    network=False,
    head="riemannian-means",
    holds=(
        "It holds a reference, and of each class a count and the mean of its windows' covariances.",
        "The mean of a class learned from one window is that window's covariance.",
    ),
    forgetting=STATISTICS_FORGET,
    memory=NoMemory,
    statistics=True,
    weighted=True,
)
def mdm(base_spec: BaseSpec) -> Recipe:
    """Take the class with the nearest mean covariance; no network, no sample kept. Not in the paper."""
    return Recipe("mdm", MinimumDistance(), add_statistics, NoAdaptation(), NoMemory())


@method(
    "discriminant",
    title="Discriminant",
    citation="probabilistic LDA after Ioffe, ECCV 2006; random projections after RanPAC, NeurIPS 2023",
    look=("#6699CC", "+"),
    head="discriminant",
    **STATISTICS,
    memory=NoMemory,
)
def discriminant(base_spec: BaseSpec, *, network: str = "rehearse") -> Recipe:
    """Classify by a discriminant on classical features; no sample is kept. Not in the paper.

    ``network`` is ``"never"``, ``"always"``, or ``"rehearse"``: train networks where classical features
    hardly separate the base classes, and use them if they do so better (``rehearsal.py``).
    """
    base = ClosedForm()
    if network != "never":
        # Windows are held out by folds; random gains would hide the strength of rhythms.
        training = replace(base_spec.training, patience=None, gain=0.0)
        base = ClosedForm(network=replace(base_spec, training=training), always=network == "always")
    return Recipe("discriminant", base, add_statistics, NoAdaptation(), NoMemory())

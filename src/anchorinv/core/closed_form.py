"""Base models without a gradient: a discriminant on what blocks see of a window, or means of covariances."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from anchorinv.core.checkpoint import Checkpoint
from anchorinv.core.discriminant import Discriminant
from anchorinv.core.encoder import (
    BLOCKS,
    MOST_FEATURES,
    MOST_RANDOM,
    SHARE,
    Encoder,
    covariance_encoder,
    fit_encoder,
)
from anchorinv.core.heads import StatisticalHead, class_means
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.rehearsal import Choice, rehearse
from anchorinv.core.riemannian import RiemannianMeans
from anchorinv.core.types import Batch, Curve, State, columns


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """What determines a base model that is computed, not trained; in a recipe it stands for a network.

    Parameters
    ----------
    blocks : tuple of str
        Of ``BLOCKS``; those that suit the signals are taken.
    most_features, most_random, share : int, int, float
        Features in all, random projections among them, and features to a base window, at the most.
    by_block : bool
        Whether each block counts alike, or each of its features.
    prior : bool
        Whether means of few shots are drawn to where base classes say that classes lie.
    rehearsed : bool
        Whether settings are chosen by rehearsal, or are those of theory.
    """

    blocks: tuple[str, ...] = tuple(BLOCKS)
    most_features: int = MOST_FEATURES
    most_random: int = MOST_RANDOM
    share: float = SHARE
    by_block: bool = True
    prior: bool = True
    rehearsed: bool = True

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """There is no network: making one is an error."""
        return _no_network

    def fit(
        self,
        samples: Batch,
        *,
        groups: Tensor | None = None,
        checkpoint: Checkpoint | None = None,
        rng: torch.Generator,
    ) -> State:
        """Return the base model of signals (n, n_chans, n_times); it takes seconds, and no checkpoint."""
        classes, signals = _two_at_least(samples), samples.values
        encoder = fit_encoder(
            signals,
            self.blocks,
            most_features=self.most_features,
            most_random=self.most_random,
            share=self.share,
            by_block=self.by_block,
            rng=rng,
        )
        features, targets = mapped(encoder, signals), columns(samples.labels, classes)
        choice = Choice(ledoit_wolf(features, targets))
        if self.rehearsed:
            known = samples.groups if groups is None else groups
            choice = rehearse(features, targets, known, shrinkage=choice.shrinkage, prior=self.prior, rng=rng)
        head = Discriminant.empty(
            encoder.dim,
            n_base=len(classes),
            shrinkage=choice.shrinkage,
            prior=self.prior,
            scale=choice.scale,
            centring=choice.centring,
        )
        told = {"shrinkage": choice.shrinkage, "rehearsed macro-F1": choice.score, "scale": choice.scale}
        state = _state(encoder, head.to(signals).learned(features, targets), classes, rng)
        curves = [
            Curve(name, 0, torch.tensor([value])) for name, value in told.items() if math.isfinite(value)
        ]
        return replace(state, curves=tuple(curves))


@dataclass(frozen=True, slots=True)
class MinimumDistance:
    """A base model of one Riemannian mean per class (``riemannian.py``); it takes all there is from data."""

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """There is no network: making one is an error."""
        return _no_network

    def fit(
        self,
        samples: Batch,
        *,
        groups: Tensor | None = None,
        checkpoint: Checkpoint | None = None,
        rng: torch.Generator,
    ) -> State:
        """Return the base model of signals (n, n_chans, n_times); who they are of plays no part."""
        classes, signals = _two_at_least(samples), samples.values
        encoder = covariance_encoder(signals)
        features, targets = mapped(encoder, signals), columns(samples.labels, classes)
        head = RiemannianMeans.empty(encoder.dim).to(signals)
        return _state(encoder, head.learned(features, targets), classes, rng)


def _state(encoder: Encoder, head: StatisticalHead, classes: tuple[int, ...], rng: torch.Generator) -> State:
    return State(
        trunk=encoder,
        tail=frozen(nn.Identity()),
        head=frozen(head),
        classes=classes,
        n_base=len(classes),
        shape=encoder.shape,
        seed=rng.initial_seed(),
    )


def _two_at_least(samples: Batch) -> tuple[int, ...]:
    if len(classes := samples.classes) < 2:
        raise ValueError(f"a base model needs at least two classes, got {len(classes)}")
    return classes


def _no_network() -> nn.Module:
    raise TypeError("a closed form has no network; its encoder is made from facts of its own")


def ledoit_wolf(features: Tensor, targets: Tensor) -> float:
    """Return how far to draw the within-class covariance of features (n, dim) to a sphere.

    See Ledoit & Wolf, A Well-conditioned Estimator for Large-dimensional Covariance Matrices, J. Multivariate
    Analysis 2004.
    """
    # Imported here: it takes half a second that nobody else need pay.
    from sklearn.covariance import ledoit_wolf_shrinkage

    residuals = features - class_means(features, targets)[targets]
    if not residuals.abs().max() > 0:
        return 1.0  # of single windows: a sphere is all there is
    return float(ledoit_wolf_shrinkage(residuals.double().numpy(), assume_centered=True))

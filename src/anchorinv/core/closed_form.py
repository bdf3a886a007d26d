"""Base models without a gradient: a discriminant on feature blocks, or Riemannian means; and calibration."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.confidence_rehearsal import Features, rehearse_confidence
from anchorinv.core.discriminant import Discriminant
from anchorinv.core.encoder import (
    CLASSICAL,
    MOST_FEATURES,
    MOST_RANDOM,
    SHARE,
    Encoder,
    FeatureNetwork,
    covariance_encoder,
    fit_encoder,
)
from anchorinv.core.head import StatisticalHead
from anchorinv.core.heads import class_means
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.networks import encode, frozen
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.rehearsal import Choice, NetworkComparison, compare_networks, rehearse
from anchorinv.core.riemannian import RiemannianMeans
from anchorinv.core.types import Batch, Curve, State, columns
from anchorinv.progress import tick


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
    network : BaseLearner, optional
        Trains networks, one for each fold of the base windows, whose features are blocks more.
    always : bool
        Whether they are used whatever rehearsal says of them.
    revision : int
        Of what is computed from all this: a study takes no base model that an earlier one has cached.
    """

    blocks: tuple[str, ...] = CLASSICAL
    most_features: int = MOST_FEATURES
    most_random: int = MOST_RANDOM
    share: float = SHARE
    by_block: bool = True
    prior: bool = True
    rehearsed: bool = True
    network: BaseLearner | None = None
    always: bool = False
    revision: int = 3

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """Makes an untrained network, where there may be one."""
        return self.network.backbone if self.network else _no_network

    @property
    def device(self) -> str:
        """Where its networks are; all else is computed on the host."""
        return str(getattr(self.network, "device", "cpu"))

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Return the base model of signals (n, n_chans, n_times); without a network it takes seconds.

        Weights go into all that is closed form. Networks and rehearsal take each signal as one.
        """
        classes, signals, weights = _two_at_least(samples), samples.values, samples.weights
        targets = columns(samples.labels, classes)
        encoder = self._encoder(samples, (), rng)
        features = encode(encoder, signals)
        comparison = NetworkComparison()
        if self.network is not None:
            comparison = compare_networks(
                self.network,
                samples,
                features,
                shrinkage=ledoit_wolf(features, targets, weights),
                prior=self.prior,
                always=self.always,
                rng=rng,
            )
            tick(str(comparison), 1, 1)
        if comparison.networks:
            encoder = self._encoder(samples, comparison.networks, rng)
            features = encode(encoder, signals)
        choice = Choice(ledoit_wolf(features, targets, weights))
        if self.rehearsed:
            choice = rehearse(
                features, targets, samples.groups, shrinkage=choice.shrinkage, prior=self.prior, rng=rng
            )
        head = Discriminant.empty(
            encoder.dim,
            n_base=len(classes),
            shrinkage=choice.shrinkage,
            prior=self.prior,
            scale=choice.scale,
            centring=choice.centring,
        )
        chosen = {
            "shrinkage": choice.shrinkage,
            "rehearsed macro-F1": choice.score,
            "scale": choice.scale,
            "base macro-F1 without a network": comparison.classical,
            "base macro-F1 of networks": comparison.learned,
        }
        empty = head.to(signals)
        state = state_of(encoder, empty.learned(features, targets, weights), classes, rng)
        if self.rehearsed:
            held_out = _features_without(encoder, signals, features)
            confidence = rehearse_confidence(held_out, targets, samples.groups, empty, rng=rng)
            state = replace(state, confidence=confidence)
        curves = [
            Curve(name, 0, torch.tensor([value])) for name, value in chosen.items() if math.isfinite(value)
        ]
        return replace(state, curves=(*curves, *comparison.curves))

    def _encoder(self, samples: Batch, networks: Sequence[FeatureNetwork], rng: torch.Generator) -> Encoder:
        return fit_encoder(
            samples.values,
            self.blocks,
            most_features=self.most_features,
            most_random=self.most_random,
            share=self.share,
            by_block=self.by_block,
            networks=networks,
            weights=samples.weights,
            rng=rng,
        )


def _features_without(encoder: Encoder, signals: Tensor, features: Tensor) -> Features:
    """Return a function from windows to learn from (n,) to features (n, dim) of all, as these set components.

    What blocks are measured against, and their scales, stay those of all windows; at 5 % that made less than
    a point more of false rejections with a hundred windows of synthetic EMG.
    """
    if not len(encoder.components):
        return lambda known: features
    columns = torch.cat([encode(block, signals) for block in encoder.blocks], dim=1)

    def without(known: Tensor) -> Tensor:
        return encoder.refitted(columns[known]).project(columns)

    return without


@dataclass(frozen=True, slots=True)
class MinimumDistance:
    """A base model of one Riemannian mean per class (``riemannian.py``); it takes all there is from data."""

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """There is no network: making one is an error."""
        return _no_network

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Return the base model of signals (n, n_chans, n_times); who they are of plays no part."""
        classes, signals = _two_at_least(samples), samples.values
        encoder = covariance_encoder(signals, samples.weights)
        features, targets = encode(encoder, signals), columns(samples.labels, classes)
        head = RiemannianMeans.empty(encoder.dim).to(signals)
        return state_of(encoder, head.learned(features, targets, samples.weights), classes, rng)


def state_of(
    encoder: Encoder, head: StatisticalHead, classes: tuple[int, ...], rng: torch.Generator
) -> State:
    """Return a base model that is an encoder and a head that follows from statistics."""
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
    raise TypeError("a closed form has no network; these are facts of another method")


def ledoit_wolf(features: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
    """Return how far to draw the within-class covariance of features (n, dim) to a sphere.

    See Ledoit & Wolf, A Well-conditioned Estimator for Large-dimensional Covariance Matrices, J. Multivariate
    Analysis 2004. A window with a weight (n,) of 2 counts as two.
    """
    if weights is not None:
        return _weighted_ledoit_wolf(features.double(), targets, weights.double())
    # Imported here: it takes half a second that nobody else need pay.
    from sklearn.covariance import ledoit_wolf_shrinkage

    residuals = features - class_means(features, targets)[targets]
    if not residuals.abs().max() > 0:
        return 1.0  # of single windows: a sphere is all there is
    return float(ledoit_wolf_shrinkage(residuals.double().numpy(), assume_centered=True))


def _weighted_ledoit_wolf(features: Tensor, targets: Tensor, weights: Tensor) -> float:
    """Return the shrinkage as if each window were there as often as its weight says."""
    members = weights[:, None] * F.one_hot(targets).double()  # (n, n_classes)
    residuals = features - (members.T @ features / members.sum(0)[:, None])[targets]
    if not residuals.abs().max() > 0:
        return 1.0
    n, dim = weights.sum(), features.shape[1]
    covariance = residuals.T @ (weights[:, None] * residuals) / n
    squared = covariance.square().sum()
    fourth = weights @ residuals.square().sum(1).square() / n
    level = covariance.trace() / dim
    distance = squared - dim * level**2  # of the covariance from the sphere
    return (
        float((((fourth - squared) / n).clamp(max=distance) / distance).clamp(0, 1)) if distance > 0 else 0.0
    )


#: Of fewer windows a mean says more about the windows than about the person.
FEWEST = 10


def calibrated(state: State, signals: Tensor) -> State:
    """Return the state for whoever made signals (n, n_chans, n_times), whatever they did: no labels needed.

    The mean of their features becomes that of the base windows. It is right as far as they do the same things
    about as often; :func:`check_calibration` says what rehearsal found.
    """
    encoder, head = _parts(state)
    plain = _shifted(encoder, torch.zeros_like(encoder.shift))
    return replace(state, trunk=_shifted(encoder, encode(plain, signals).mean(0) - head.middle))


def uncalibrated(state: State) -> State:
    """Return the state as it is for everybody."""
    encoder, _ = _parts(state)
    return replace(state, trunk=_shifted(encoder, torch.zeros_like(encoder.shift)))


def check_calibration(state: State, n_signals: int, *, force: bool) -> None:
    """Refuse a calibration that rehearsal speaks against, or knows nothing of, unless it is forced."""
    _, head = _parts(state)
    if n_signals < FEWEST:
        raise ValueError(f"{n_signals} windows are too few to calibrate by; record {FEWEST} or more")
    if force:
        return
    if math.isnan(head.centring):
        raise ValueError(
            "whether calibration helps here is not known, because fit was not told which windows belong to "
            "one person or recording; train with groups= (--new-people), or pass force=True (--force)"
        )
    if head.centring <= 0:
        raise ValueError(
            f"rehearsal on the base data speaks against calibration: it may cost people who were not seen "
            f"{-100 * head.centring:.1f} points, probably because not all of them do the same things equally "
            f"often; pass force=True (--force) if these windows do"
        )


def _parts(state: State) -> tuple[Encoder, Discriminant]:
    if not isinstance(state.trunk, Encoder) or not isinstance(state.head, Discriminant):
        raise ValueError("only the methods discriminant and lda can be calibrated; train with one of them")
    return state.trunk, state.head


def _shifted(encoder: Encoder, shift: Tensor) -> Encoder:
    other = copy.copy(encoder)  # all else is shared: it never changes
    other._buffers = {**encoder._buffers, "shift": shift}
    return frozen(other)

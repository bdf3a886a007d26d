"""Closed-form base models: a discriminant on feature blocks, or Riemannian means; and calibration."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorinv.core.discriminant import Discriminant, Features, rehearse_confidence
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
from anchorinv.core.heads import StatisticalHead, class_means
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.networks import encode, frozen, one_thread
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.rehearsal import Choice, NetworkComparison, compare_networks, rehearse
from anchorinv.core.riemannian import RiemannianMeans
from anchorinv.core.types import Batch, Curve, State, columns
from anchorinv.progress import tick


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Spec of a closed-form base model: an encoder of feature blocks and a discriminant.

    Parameters
    ----------
    blocks : tuple of str
        Names in ``BLOCKS``; those that apply to the signals are used.
    most_features, most_random, share : int, int, float
        Maximum number of features, of random projections among them, and of features per base window; the
        last gives way where all features fit, and rehearsal finds the base classes easily separated or is
        impossible.
    by_block : bool
        Whether each block has the same variance, or each feature.
    prior : bool
        Whether class means have a prior, estimated from the base classes.
    rehearsed : bool
        Whether settings are chosen by rehearsal, or by theory.
    network : BaseLearner, optional
        Trains networks, one for each fold of the base windows, whose features are further blocks.
    always : bool
        Whether these are used regardless of rehearsal.
    revision : int
        Version of the computation, so that studies do not use base models cached by earlier versions.
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
    revision: int = 5

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """Builds an untrained network, if there may be one."""
        return self.network.backbone if self.network else _no_network

    @property
    def device(self) -> str:
        """Device of its networks; all else is computed on the host."""
        return str(getattr(self.network, "device", "cpu"))

    @one_thread()
    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Return the base model of signals (n, n_chans, n_times); without a network it takes seconds.

        Weights are used in all closed forms; networks and rehearsal count each signal as one.
        """
        classes, signals, weights = _two_at_least(samples), samples.values, samples.weights
        targets = columns(samples.labels, classes)
        encoder, comparison = self._chosen_encoder(samples, targets, rng)
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

    def _chosen_encoder(
        self, samples: Batch, targets: Tensor, rng: torch.Generator
    ) -> tuple[Encoder, NetworkComparison]:
        """Return the encoder that the base windows support: with networks, with all features, or fewer."""
        encoder = self._encoder(samples, (), rng)
        most = min(self.most_features, encoder.n_columns + self.most_random)
        reduced = self.rehearsed and encoder.n_columns <= self.most_features and encoder.dim < most
        if self.network is None and not reduced:
            return encoder, NetworkComparison()
        features = encode(encoder, samples.values)
        comparison = compare_networks(
            self.network,
            samples,
            features,
            shrinkage=ledoit_wolf(features, targets, samples.weights),
            prior=self.prior,
            always=self.always,
            rng=rng,
        )
        if self.network is not None:
            tick(str(comparison), 1, 1)
        if comparison.networks:
            return self._encoder(samples, comparison.networks, rng), comparison
        if reduced and comparison.easy:
            encoder = replace(self, share=math.inf)._encoder(samples, (), rng)
        return encoder, comparison

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
    """Return a function from a subset (n,) to features (n, dim) of all windows, by the subset's components.

    Without components, the scales of more features than windows are the subset's, too: with 36 windows of
    synthetic EMG that lowers false rejections at 5 % from 17 % to 7 %. References of blocks are always those
    of all windows; at 5 % this added less than a percentage point with a hundred windows.
    """
    if not len(encoder.components) and encoder.dim <= len(signals):
        return lambda known: features
    columns = torch.cat([encode(block, signals) for block in encoder.blocks], dim=1)

    def without(known: Tensor) -> Tensor:
        return encoder.refitted(columns, known).project(columns)

    return without


@dataclass(frozen=True, slots=True)
class MinimumDistance:
    """Spec of a base model of one Riemannian mean per class (``riemannian.py``), without settings."""

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """There is no network: building one is an error."""
        return _no_network

    @one_thread()
    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Return the base model of signals (n, n_chans, n_times); groups are ignored."""
        classes, signals = _two_at_least(samples), samples.values
        encoder = covariance_encoder(signals, samples.weights)
        features, targets = encode(encoder, signals), columns(samples.labels, classes)
        head = RiemannianMeans.empty(encoder.dim).to(signals)
        return state_of(encoder, head.learned(features, targets, samples.weights), classes, rng)


def state_of(
    encoder: Encoder, head: StatisticalHead, classes: tuple[int, ...], rng: torch.Generator
) -> State:
    """Return a base model of an encoder and a statistical head."""
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
    raise TypeError("a closed form has no network; this state belongs to another method")


def ledoit_wolf(features: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
    """Return the Ledoit-Wolf shrinkage of the within-class covariance of features (n, dim).

    See Ledoit & Wolf, A Well-conditioned Estimator for Large-dimensional Covariance Matrices, J. Multivariate
    Analysis 2004. A window with a weight (n,) of 2 counts as two.
    """
    if weights is not None:
        return _weighted_ledoit_wolf(features.double(), targets, weights.double())
    # Imported here, as it takes half a second.
    from sklearn.covariance import ledoit_wolf_shrinkage

    residuals = features - class_means(features, targets)[targets]
    if not residuals.abs().max() > 0:
        return 1.0  # single windows have no covariance: full shrinkage
    return float(ledoit_wolf_shrinkage(residuals.double().numpy(), assume_centered=True))


def _weighted_ledoit_wolf(features: Tensor, targets: Tensor, weights: Tensor) -> float:
    """Return the shrinkage as if each window were repeated by its weight."""
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


#: Minimum number of windows: a mean of fewer is dominated by chance.
FEWEST = 10


def calibrated(state: State, signals: Tensor) -> State:
    """Return the state calibrated to unlabelled signals (n, n_chans, n_times) of one person.

    The mean of their features is shifted to that of the base windows, which assumes the same classes about as
    often; :func:`check_calibration` uses the result of rehearsal.
    """
    encoder, head = _parts(state)
    plain = _shifted(encoder, torch.zeros_like(encoder.shift))
    return replace(state, trunk=_shifted(encoder, encode(plain, signals).mean(0) - head.middle))


def uncalibrated(state: State) -> State:
    """Return the state without calibration."""
    encoder, _ = _parts(state)
    return replace(state, trunk=_shifted(encoder, torch.zeros_like(encoder.shift)))


def check_calibration(state: State, n_signals: int, *, force: bool) -> None:
    """Refuse a calibration that did not help in rehearsal, or was not rehearsed, unless forced."""
    _, head = _parts(state)
    if n_signals < FEWEST:
        raise ValueError(f"{n_signals} windows are too few to calibrate by; record {FEWEST} or more")
    if force:
        return
    if math.isnan(head.centring):
        raise ValueError(
            "it is unknown whether calibration helps, because fit had no groups, the person or recording of "
            "each window; train with groups= (--new-people), or pass force=True (--force)"
        )
    if head.centring <= 0:
        raise ValueError(
            f"rehearsal on the base data advises against calibration: it may cost unseen people "
            f"{-100 * head.centring:.1f} points, probably because their classes are not equally "
            f"frequent; pass force=True (--force) if they are in these windows"
        )


def _parts(state: State) -> tuple[Encoder, Discriminant]:
    if not isinstance(state.trunk, Encoder) or not isinstance(state.head, Discriminant):
        raise ValueError("only the methods discriminant and lda can be calibrated; train with one of them")
    return state.trunk, state.head


def _shifted(encoder: Encoder, shift: Tensor) -> Encoder:
    other = copy.copy(encoder)  # all else is shared, as it never changes
    other._buffers = {**encoder._buffers, "shift": shift}
    return frozen(other)

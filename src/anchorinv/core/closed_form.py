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
from anchorinv.core.network_block import FeatureNetwork
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.progress import tick
from anchorinv.core.recipe import BaseLearner
from anchorinv.core.rehearsal import Choice, clearly_better, held_out, rehearse, taught_scores
from anchorinv.core.riemannian import RiemannianMeans
from anchorinv.core.rng import stream
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
    network : BaseLearner, optional
        Trains a network, whose features are one block more.
    always : bool
        Whether the network is used whatever rehearsal says of it.
    """

    blocks: tuple[str, ...] = tuple(BLOCKS)
    most_features: int = MOST_FEATURES
    most_random: int = MOST_RANDOM
    share: float = SHARE
    by_block: bool = True
    prior: bool = True
    rehearsed: bool = True
    network: BaseLearner | None = None
    always: bool = False

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """Makes an untrained network, where there may be one."""
        return self.network.backbone if self.network else _no_network

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Return the base model of signals (n, n_chans, n_times); without a network it takes seconds."""
        classes, signals = _two_at_least(samples), samples.values
        gain, network = math.nan, None
        if self.network is not None:
            gain, wanted = self._network_gain(self.network, samples, rng)
            if wanted or self.always:
                network = _trained(self.network, samples, stream(rng, "network"))
            if math.isfinite(gain):
                tick(
                    f"a network: {100 * gain:+.1f} points in rehearsal, {'used' if network else 'not used'}",
                    1,
                    1,
                )
        encoder = self._encoder(signals, network, rng)
        features, targets = mapped(encoder, signals), columns(samples.labels, classes)
        choice = Choice(ledoit_wolf(features, targets))
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
        told = {
            "shrinkage": choice.shrinkage,
            "rehearsed macro-F1": choice.score,
            "scale": choice.scale,
            "gain of a network": gain,
        }
        state = _state(encoder, head.to(signals).learned(features, targets), classes, rng)
        curves = [
            Curve(name, 0, torch.tensor([value])) for name, value in told.items() if math.isfinite(value)
        ]
        return replace(state, curves=tuple(curves))

    def _encoder(self, signals: Tensor, network: FeatureNetwork | None, rng: torch.Generator) -> Encoder:
        return fit_encoder(
            signals,
            self.blocks,
            most_features=self.most_features,
            most_random=self.most_random,
            share=self.share,
            by_block=self.by_block,
            network=network,
            rng=rng,
        )

    def _network_gain(self, learner: BaseLearner, samples: Batch, rng: torch.Generator) -> tuple[float, bool]:
        """Return what a network that never saw a third of the classes brings to telling them, and if clearly.

        Of fewer than four classes nothing can be said: a network of two classes knows no others.
        """
        classes = samples.classes
        if len(classes) < 4 or self.always:
            return math.nan, False
        held = held_out(len(classes), stream(rng, "network"))[0]
        seen = torch.isin(samples.labels, torch.tensor([c for i, c in enumerate(classes) if i not in held]))
        part = samples[seen]
        network = _trained(learner, part, stream(rng, "rehearsed network"))
        targets, scores = columns(samples.labels, classes), []
        for some in (None, network):
            encoder = self._encoder(part.values, some, rng)
            features = mapped(encoder, samples.values)
            shrinkage = ledoit_wolf(features[seen], columns(part.labels, part.classes))
            rounds = taught_scores(
                features, targets, samples.groups, held, shrinkage=shrinkage, prior=self.prior, rng=rng
            )
            scores.append(rounds)
        gains = scores[1] - scores[0]
        return (float(gains.mean()) if len(gains) else math.nan), clearly_better(gains)


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


def _trained(learner: BaseLearner, samples: Batch, rng: torch.Generator) -> FeatureNetwork:
    state = learner.fit(samples, rng=rng)
    dim = mapped(state.tail, mapped(state.trunk, samples.values[:1])).shape[1]
    return frozen(FeatureNetwork(state.trunk, state.tail, dim))


def _no_network() -> nn.Module:
    raise TypeError("a closed form has no network; these are facts of another method")


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

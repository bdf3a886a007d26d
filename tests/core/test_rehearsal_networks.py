"""Networks beside classical features: trained where these hardly help, asked about windows never seen."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from anchorinv.core import catalogue, closed_form
from anchorinv.core.closed_form import ClosedForm
from anchorinv.core.encoder import NETWORK, Encoder, FeatureNetwork, fit_encoder
from anchorinv.core.heads import Cosine
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.rehearsal import FOLDS, NetworkComparison, compare_networks
from anchorinv.core.types import Batch, State, stream
from anchorinv.persistence.format import packed, unpacked
from tests.core.small import SMALL, base_spec, randn, toy


class Product(nn.Module):
    """Sees what no classical feature does: whether two samples have the same sign."""

    def forward(self, signals: Tensor) -> Tensor:
        same = signals[:, 0, 0] * signals[:, 1, 0]
        return torch.stack([same, -same, torch.ones_like(same)], dim=1)


class Blind(nn.Module):
    def forward(self, signals: Tensor) -> Tensor:
        return signals[:, :, 7]


@dataclass
class Learner:
    """Trains nothing, and remembers what it was given to train on."""

    trunk: nn.Module
    given: list[Batch] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        raise NotImplementedError

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        self.given.append(samples)
        self.threads.append(torch.get_num_threads())
        prototypes = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
        head = Cosine(prototypes[:0], prototypes)
        return State(self.trunk, nn.Identity(), head, classes=(0, 1), n_base=2, shape=(3, 40), seed=0)


def hard(n: int = 90) -> Batch:
    """Two classes that differ in nothing but one product of samples."""
    signals = randn(n, 3, 40, seed=4, dtype=torch.float32)
    return Batch(signals, (signals[:, 0, 0] * signals[:, 1, 0] < 0).long())


def compared(learner: Learner, samples: Batch, **options: bool) -> NetworkComparison:
    features = fit_encoder(samples.values, rng=stream(0))(samples.values)
    return compare_networks(learner, samples, features, shrinkage=0.1, prior=True, rng=stream(1), **options)


def test_none_is_trained_where_classical_features_do() -> None:
    learner = Learner(Product())
    comparison = compared(learner, toy(2, 30))
    assert not learner.given
    assert not comparison.networks
    assert comparison.classical > 0.9
    assert math.isnan(comparison.learned)
    assert str(comparison).startswith("networks: not used, none was needed")


def test_they_are_used_where_they_do_better() -> None:
    comparison = compared(Learner(Product()), hard())
    assert len(comparison.networks) == FOLDS
    assert comparison.learned == 1.0
    assert comparison.classical < 2 / 3
    assert str(comparison).startswith("networks: used, 100 % of macro-F1 on held-out base windows")


def test_they_are_not_used_where_they_do_no_better() -> None:
    learner, samples = Learner(Blind()), hard()
    comparison = compared(learner, samples)
    assert len(learner.given) == FOLDS
    assert bool(comparison.networks) == (comparison.learned > comparison.classical)


def test_they_are_trained_on_all_threads_and_closed_forms_computed_on_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(2)
    learner, threads = Learner(Product()), list[int]()

    def ledoit_wolf(*args: object) -> float:
        threads.append(torch.get_num_threads())
        return 0.1

    monkeypatch.setattr(closed_form, "ledoit_wolf", ledoit_wolf)
    ClosedForm(network=learner, always=True).fit(hard(), rng=stream(0))
    assert set(learner.threads) == {2}
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2


def test_each_is_asked_about_windows_that_it_never_saw() -> None:
    samples = hard()
    groups = torch.arange(len(samples)) // 9
    learner = Learner(Product())
    compared(learner, Batch(samples.values, samples.labels, groups))
    seen = [set(part.groups.tolist()) for part in learner.given if part.groups is not None]
    missing = [set(groups.tolist()) - each for each in seen]
    assert len(seen) == FOLDS
    assert sorted(group for part in missing for group in part) == sorted(set(groups.tolist()))


def test_where_nothing_can_be_kept_aside_there_is_none_unless_it_is_wanted() -> None:
    few, learner = hard(8)[torch.arange(6)], Learner(Product())
    assert not compared(learner, few).networks
    comparison = compared(learner, few, always=True)
    assert len(comparison.networks) == len(learner.given) == 1
    assert len(learner.given[0]) == len(few)
    assert math.isnan(comparison.learned)


def test_a_fold_that_lacks_a_class_is_left_out() -> None:
    """A person with one class only, who is all there is of it."""
    samples = hard()
    learner = Learner(Product())
    compared(learner, Batch(samples.values, samples.labels, samples.labels.clone()), always=True)
    assert all(part.classes == (0, 1) for part in learner.given)


@pytest.mark.parametrize("n_networks", [1, 3])
def test_networks_together_count_as_another_block(n_networks: int) -> None:
    signals = randn(400, 3, 40, seed=2, dtype=torch.float32)
    networks = [FeatureNetwork(Blind(), nn.Identity(), 3) for _ in range(n_networks)]
    encoder = fit_encoder(signals, most_random=0, networks=networks, rng=stream(0))
    n_columns = 3 * n_networks
    assert encoder.names[-n_networks:] == (NETWORK,) * n_networks
    assert encoder.sizes[NETWORK] == n_columns
    variances = encoder(signals).double().var(0, correction=0)
    assert float(variances[-n_columns:].sum()) == pytest.approx(1, rel=1e-3)


def test_as_many_networks_as_blocks_of_them_are_needed() -> None:
    with pytest.raises(ValueError, match="2 blocks 'network' cannot have 0 networks"):
        Encoder((3, 40), (NETWORK, NETWORK), 4, 0)


def test_a_state_with_networks_survives_packing() -> None:
    recipe = catalogue.discriminant(base_spec(), network="always")
    samples = toy(2, 20)
    state = recipe.fit_base(samples, rng=stream(1))
    assert isinstance(state.trunk, Encoder)
    assert len(state.trunk.networks) == FOLDS
    again = unpacked(*packed(state), base_spec().backbone)
    assert torch.equal(recipe.predict(again, samples.values), recipe.predict(state, samples.values))
    assert torch.equal(again.trunk(samples.values), state.trunk(samples.values))


def test_what_was_seen_is_kept_as_curves() -> None:
    state = ClosedForm(network=base_spec()).fit(hard(), rng=stream(1))
    names = [curve.name for curve in state.curves]
    assert "base macro-F1 without a network" in names
    assert "base macro-F1 of networks" in names
    assert SMALL.n_chans == state.shape[0]


def test_varied_gains_and_early_stopping_are_not_for_these_networks() -> None:
    base = catalogue.discriminant(base_spec(gain=0.3, patience=2)).base_spec
    assert isinstance(base, ClosedForm)
    assert isinstance(base.network, BaseSpec)
    assert base.network.training == base_spec().training


@pytest.mark.parametrize("few", [2, 12])
def test_few_windows_of_classes_easily_separated_keep_all_features(few: int) -> None:
    signals = randn(2 * few, 3, 40, seed=4, dtype=torch.float32)
    targets = torch.arange(2 * few) % 2
    signals[targets == 1] *= 3
    encoder = ClosedForm().fit(Batch(signals, targets), rng=stream(1)).trunk
    assert isinstance(encoder, Encoder)
    assert not len(encoder.components)
    assert encoder.dim > encoder.n_columns > len(signals)


def test_few_windows_of_classes_hardly_separated_keep_half_as_many_features() -> None:
    samples = hard(24)
    encoder = ClosedForm().fit(samples, rng=stream(1)).trunk
    assert isinstance(encoder, Encoder)
    assert len(encoder.components) == encoder.dim == len(samples) / 2


def test_a_group_of_most_windows_can_be_held_out() -> None:
    """Without it, there are fewer windows than components."""
    samples = hard(60)
    groups = (torch.arange(len(samples)) >= len(samples) - 10).long()
    state = ClosedForm().fit(Batch(samples.values, samples.labels, groups=groups), rng=stream(1))
    assert isinstance(state.trunk, Encoder)
    assert len(state.trunk.components) > 10
    assert state.confidence is not None

"""Base training and finetuning: equal to the textbook, reproducible, and without side effects."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine, Head, Mlp
from anchorinv.core.minimise import EarlyStopping, Optimiser
from anchorinv.core.networks import Geometry, encode, frozen
from anchorinv.core.training import Finetune, NoAdaptation, Training, finetune, inverse_frequency, train
from anchorinv.core.types import Batch, scoped_seed, stream
from tests import naive
from tests.core.small import SMALL, STRIDED, pair, randn, same, toy, twin, untouched_generators, weights_of

N_OLD = 3


class Task:
    """A session in float64: a network and its twin, old and new prototypes, shots and replay as signals."""

    def __init__(self, geometry: Geometry = SMALL, *, n_new: int = 1, seed: int = 0) -> None:
        self.network, self.twin = pair(geometry, seed)
        frozen(self.network)
        shape = (geometry.n_chans, geometry.n_times)
        self.old, self.new = randn(N_OLD, geometry.dim, seed=1), randn(n_new, geometry.dim, seed=2)
        self.shots = Batch(randn(5, *shape, seed=3), N_OLD + torch.arange(5) % n_new)
        self.replay = Batch(randn(7, *shape, seed=4), torch.arange(7) % N_OLD)

    @property
    def head(self) -> Cosine:
        return frozen(Cosine(self.new, self.old))

    def latents(self, signals: Batch) -> Batch:
        return signals.with_values(encode(self.network.trunk, signals.values))

    def finetuned(
        self, plan: Optimiser, *, replay: bool = True, weight: float = 1.0
    ) -> tuple[nn.Module, Head, Tensor]:
        kept = self.latents(self.replay) if replay else None
        shots = self.latents(self.shots)
        return finetune(self.network.tail, self.head, shots, kept, plan, replay_weight=weight)

    def with_tail(self, tail: nn.Module) -> dict[str, Tensor]:
        """The network's weights under the usual names, with another tail."""
        network = copy.deepcopy(self.network)
        network.tail.load_state_dict(tail.state_dict())
        return network.to_conv2d_state()


def assert_same_weights(ours: dict[str, Tensor], theirs: dict[str, Tensor], *, atol: float = 1e-9) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


class TestFinetune:
    @pytest.mark.parametrize("geometry", [SMALL, STRIDED], ids=["stride 1", "stride 4"])
    @pytest.mark.parametrize(("n_new", "weight"), [(1, 1.0), (1, 0.3), (2, 1.0)])
    def test_latents_give_what_the_whole_network_gives(
        self, geometry: Geometry, n_new: int, weight: float
    ) -> None:
        task = Task(geometry, n_new=n_new)
        tail, head, _ = task.finetuned(Optimiser(12, 1e-2), weight=weight)
        new = naive.finetune(
            task.twin,
            task.old,
            task.new,
            task.shots.values,
            task.shots.labels,
            task.replay.values,
            task.replay.labels,
            steps=12,
            lr=1e-2,
            lam=weight,
        )
        assert isinstance(head, Cosine)
        assert (head.free - task.new).abs().max() > 1e-2  # it did move
        torch.testing.assert_close(head.free, new, rtol=0, atol=1e-9)
        assert_same_weights(task.with_tail(tail), task.twin.state_dict())

    def test_old_prototypes_stay_bit_by_bit(self) -> None:
        task = Task()
        _, head, _ = task.finetuned(Optimiser(5, 0.1))
        assert isinstance(head, Cosine)
        assert torch.equal(head.fixed, task.old)
        assert torch.equal(head.prototypes[:N_OLD], task.old)

    def test_what_is_handed_in_stays_bit_by_bit(self) -> None:
        task = Task()
        tail, head = task.network.tail, task.head
        shots, replay = task.latents(task.shots), task.latents(task.replay)
        given = (shots.values, shots.labels, replay.values, replay.labels)
        kept = weights_of(tail), weights_of(head), [tensor.clone() for tensor in given]
        with untouched_generators():
            finetune(tail, head, shots, replay, Optimiser(3, 0.1))
        assert same((weights_of(tail), weights_of(head), list(given)), kept)
        for parameter in (*tail.parameters(), *head.parameters()):
            assert not parameter.requires_grad
            assert parameter.grad is None

    def test_what_comes_back_is_frozen(self) -> None:
        tail, head, curve = Task().finetuned(Optimiser(2, 0.1))
        for module in (*tail.modules(), *head.modules()):
            assert not module.training
        assert not any(parameter.requires_grad for parameter in (*tail.parameters(), *head.parameters()))
        assert not curve.requires_grad

    def test_there_is_no_dropout(self) -> None:
        task = Task()  # its geometry has dropout 0.5
        first, second = (task.finetuned(Optimiser(5, 1e-2)) for _ in range(2))
        assert same(weights_of(first[0]), weights_of(second[0]))

    def test_the_curve_starts_at_the_loss_of_both_terms(self) -> None:
        task = Task()
        _, _, curve = task.finetuned(Optimiser(30, 1e-2), weight=0.5)
        classifier = torch.cat([task.old, task.new])
        terms = [
            nn.functional.cross_entropy(
                naive.cosine_logits(task.twin(batch.values), classifier), batch.labels
            ).item()
            for batch in (task.shots, task.replay)
        ]
        assert curve[0].item() == pytest.approx(terms[0] + 0.5 * terms[1])
        assert curve[-1] < 0.5 * curve[0]

    def test_replay_of_no_weight_is_no_replay(self) -> None:
        task = Task()
        ignored, none = (task.finetuned(Optimiser(10, 1e-2), replay=r, weight=0.0) for r in (True, False))
        assert_same_weights(weights_of(ignored[0]), weights_of(none[0]))
        assert_same_weights(weights_of(ignored[1]), weights_of(none[1]))
        replayed = task.finetuned(Optimiser(10, 1e-2))
        assert not torch.allclose(replayed[1].free, none[1].free, rtol=0, atol=1e-3)

    def test_no_steps_give_equal_copies(self) -> None:
        task = Task()
        tail, head, curve = task.finetuned(Optimiser(0, 0.1))
        assert tail is not task.network.tail
        assert same(weights_of(tail), weights_of(task.network.tail))
        assert same(weights_of(head), weights_of(task.head))
        assert len(curve) == 0

    def test_an_mlp_is_trained_whole_old_rows_included(self) -> None:
        task = Task()
        with scoped_seed(stream(0)):
            head = frozen(Mlp.start(4, SMALL.dim).double())
        before = weights_of(head)
        shots = task.latents(task.shots)
        _, trained, _ = finetune(task.network.tail, head, shots, None, Optimiser(3, 1e-2))
        after = weights_of(trained)
        assert all((after[name] != before[name]).any() for name in before)
        assert (after["last.weight"][:N_OLD] != before["last.weight"][:N_OLD]).any(1).all()


class TestAdaptation:
    @pytest.mark.parametrize(("session", "expected"), [(1, 2), (2, 5), (3, 0), (4, 0), (9, 0)])
    def test_steps_are_listed_by_session_and_the_last_holds_on(self, session: int, expected: int) -> None:
        task = Task()
        plan = Finetune(steps=(2, 5, 0), lr=1e-2)
        shots = task.latents(task.shots)
        _, _, curve = plan(task.network.tail, task.head, shots, None, session=session)
        assert len(curve) == expected

    def test_settings_reach_the_descent(self) -> None:
        task = Task()
        shots, replay = task.latents(task.shots), task.latents(task.replay)
        plan = Finetune(steps=(6,), lr=1e-2, betas=(0.5, 0.99), replay_weight=0.3)
        tail, head, curve = plan(task.network.tail, task.head, shots, replay, session=1)
        expected = task.finetuned(Optimiser(6, 1e-2, (0.5, 0.99)), weight=0.3)
        assert same(
            (weights_of(tail), weights_of(head), curve),
            (weights_of(expected[0]), weights_of(expected[1]), expected[2]),
        )

    def test_stay_returns_what_came(self) -> None:
        task = Task()
        head = task.head
        tail, same_head, curve = NoAdaptation()(task.network.tail, head, task.shots, None, session=1)
        assert tail is task.network.tail
        assert same_head is head
        assert len(curve) == 0


class Scaling(nn.Module):
    """A network that notes what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shown: list[Tensor] = []

    def forward(self, signals: Tensor) -> Tensor:
        self.shown.append(signals.flatten(1)[:, 0].clone())
        return signals.flatten(1) * self.scale


class Noting(Cosine):
    """A head that notes with what it is asked for a loss."""

    def __init__(self, free: Tensor) -> None:
        super().__init__(free)
        self.asked: list[tuple[Tensor, Tensor | None]] = []

    def loss(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        self.asked.append((targets, weights))
        return super().loss(features, targets, weights)


def numbered(n: int) -> Batch:
    """Samples that carry their number in their first value, in classes 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, ..."""
    values = torch.ones(n, 1, 4)
    values[:, 0, 0] = torch.arange(n) + 0.5
    return Batch(values, torch.tensor([0] * 6 + [1] * 3 + [2] * (n - 9)))


def noted(samples: Batch, plan: Training, *, seed: int = 0) -> tuple[Scaling, Noting, Tensor]:
    network, head = Scaling(), Noting(torch.ones(3, 4))
    curve = train(network, head, samples, plan, rng=stream(seed))
    return network, head, curve


class TestBatches:
    @pytest.mark.parametrize(
        ("batch_size", "sizes"), [(4, [4, 4, 2]), (5, [5, 5]), (10, [10]), (100, [10]), (1, [1] * 10)]
    )
    def test_cover_every_sample_once_in_every_epoch(self, batch_size: int, sizes: list[int]) -> None:
        network, _, curve = noted(numbered(10), Training(epochs=3, batch_size=batch_size))
        assert [len(batch) for batch in network.shown] == sizes * 3
        assert len(curve) == len(network.shown)
        orders = [order.floor().tolist() for order in torch.cat(network.shown).split(10)]
        assert len(orders) == 3
        assert all(sorted(order) == list(range(10)) for order in orders)
        assert orders[0] != orders[1] != orders[2]  # shuffled anew

    def test_gains_vary_by_channel_and_window_and_not_over_time(self) -> None:
        samples = Batch(torch.ones(300, 2, 5), torch.arange(300) % 3)
        shown: list[Tensor] = []

        class Looking(Scaling):
            def forward(self, signals: Tensor) -> Tensor:
                shown.append(signals.clone())
                return super().forward(signals)

        train(
            Looking(),
            Cosine(torch.ones(3, 10)),
            samples,
            Training(epochs=2, batch_size=300, gain=0.3),
            rng=stream(0),
        )
        first, second = shown
        assert torch.equal(first, first[:, :, :1].expand_as(first))
        logs = first[:, :, 0].log()
        assert abs(logs.mean()) < 0.05 and logs.std() == pytest.approx(0.3, abs=0.03)
        assert not torch.equal(first[:, 0], first[:, 1]) and not torch.equal(first, second)
        assert torch.equal(samples.values, torch.ones(300, 2, 5))

    def test_labels_go_with_their_samples(self) -> None:
        samples = numbered(10)
        network, head, _ = noted(samples, Training(epochs=2, batch_size=3))
        for shown, (targets, _) in zip(network.shown, head.asked, strict=True):
            assert torch.equal(targets, samples.labels[shown.long()])

    def test_the_order_depends_on_the_generator(self) -> None:
        shown = [torch.cat(noted(numbered(10), Training(epochs=1), seed=s)[0].shown) for s in (0, 0, 1)]
        assert torch.equal(shown[0], shown[1])
        assert not torch.equal(shown[0], shown[2])

    def test_no_class_weights_unless_asked_for(self) -> None:
        _, head, _ = noted(numbered(10), Training(epochs=1, batch_size=4))
        assert [weights for _, weights in head.asked] == [None] * 3

    def test_class_weights_are_those_of_the_whole_training_set(self) -> None:
        # Sizes 6, 3, 1: weights as 1 : 2 : 6, with mean 1, in every batch whatever it holds.
        _, head, _ = noted(numbered(10), Training(epochs=1, batch_size=4, class_weights=True))
        for _, weights in head.asked:
            assert weights is not None
            assert weights.tolist() == pytest.approx([1 / 3, 2 / 3, 2.0])

    def test_class_weights_by_given_sizes(self) -> None:
        _, head, _ = noted(numbered(10), Training(epochs=1, batch_size=4, class_weights=(1, 3, 2)))
        for _, weights in head.asked:
            assert weights is not None
            assert weights.tolist() == pytest.approx([18 / 11, 6 / 11, 9 / 11])
        with pytest.raises(ValueError, match="2 sizes for 3 base classes"):
            noted(numbered(10), Training(epochs=1, class_weights=(1, 3)))


def test_inverse() -> None:
    weights = inverse_frequency(torch.tensor([1, 3, 2]))
    assert weights.tolist() == pytest.approx([18 / 11, 6 / 11, 9 / 11])
    assert inverse_frequency(torch.tensor([2, 2, 2])).tolist() == [1.0] * 3


class TestPlan:
    def test_epochs_become_steps(self) -> None:
        plan = Training(epochs=7, lr=0.3, betas=(0.5, 0.9)).optimiser(4)
        assert plan == Optimiser(28, 0.3, (0.5, 0.9))

    def test_the_window_of_convergence_is_counted_in_epochs(self) -> None:
        rule = EarlyStopping(window=2, tolerance=0.2, patience=4, enough=0.1)
        assert Training(converged=rule).optimiser(5).stop == replace(rule, window=10)

    def test_training_ends_when_converged(self) -> None:
        rule = EarlyStopping(window=1, patience=2)
        plan = Training(epochs=50, batch_size=4, lr=1e-9, converged=rule)  # too slow to get better
        # Batches are shuffled, but they are of one size, so the mean over an epoch stays.
        _, _, curve = noted(numbered(12), plan)
        assert len(curve) == 3 * 3


def trained(
    samples: Batch, plan: Training, *, seed: int = 0, geometry: Geometry = SMALL
) -> tuple[Conformer, Cosine, Tensor]:
    """Train from the same start; the seed is that of training alone."""
    with scoped_seed(stream(99)):
        network, head = Conformer(geometry), Cosine.start(4, geometry.dim)
    network, head = network.to(samples.values), head.to(samples.values)
    curve = train(network, head, samples, plan, rng=stream(seed))
    return network, head, curve


class TestTrain:
    PLAN = Training(epochs=3, batch_size=10, lr=1e-3)

    def test_is_the_twins_training_step_by_step(self) -> None:
        # Full batches, because the twin does not know our order; no dropout, because masks differ.
        geometry = replace(SMALL, dropout=0.0)
        samples = toy()
        samples = samples.with_values(samples.values.double())
        network, head, curve = trained(
            samples, replace(self.PLAN, epochs=8, batch_size=99), geometry=geometry
        )

        with scoped_seed(stream(99)):
            start, weight = Conformer(geometry).double(), Cosine.start(4, geometry.dim).double()
        other = twin(geometry)
        other.load_state_dict(start.to_conv2d_state())
        classifier = nn.Parameter(weight.prototypes.detach().clone())
        optimizer = torch.optim.Adam([*other.parameters(), classifier], lr=1e-3)
        losses = [
            naive.train_step(other, classifier, optimizer, samples.values, samples.labels).item()
            for _ in range(8)
        ]
        assert curve.tolist() == pytest.approx(losses, rel=1e-8)
        torch.testing.assert_close(head.prototypes, classifier.detach(), rtol=0, atol=1e-8)
        assert_same_weights(network.to_conv2d_state(), other.state_dict(), atol=1e-8)

    def test_same_generator_same_bits(self) -> None:
        first = trained(toy(), self.PLAN)
        with scoped_seed(stream(1234)):  # another state of the global generator changes nothing
            second = trained(toy(), self.PLAN)
        assert same(weights_of(first[0]), weights_of(second[0]))
        assert same(weights_of(first[1]), weights_of(second[1]))
        assert torch.equal(first[2], second[2])
        other = trained(toy(), self.PLAN, seed=1)
        assert not torch.equal(first[2], other[2])

    def test_dropout_is_drawn_from_the_generator_too(self) -> None:
        # One full batch, so the order cannot make the difference: sums in another order are equal to 1e-6.
        plan = replace(self.PLAN, batch_size=99, epochs=1)
        losses = [trained(toy(), plan, seed=seed)[2].item() for seed in (0, 1)]
        assert abs(losses[0] - losses[1]) > 1e-3

    def test_global_generators_and_samples_are_untouched(self) -> None:
        samples = toy()
        with scoped_seed(stream(99)):
            network, head = Conformer(SMALL), Cosine.start(4, SMALL.dim)
        rng = stream(0)
        with untouched_generators():
            train(network, head, samples, self.PLAN, rng=rng)
        assert same((samples.values, samples.labels), (toy().values, toy().labels))

    def test_leaves_network_and_head_frozen(self) -> None:
        network, head, _ = trained(toy(), self.PLAN)
        assert not any(module.training for module in (*network.modules(), *head.modules()))
        assert not any(p.requires_grad for p in (*network.parameters(), *head.parameters()))

    def test_learns_what_can_be_learned(self) -> None:
        samples = toy(n_per_class=12)
        network, head, curve = trained(samples, Training(epochs=25, batch_size=16, lr=3e-3))
        assert curve[-3:].mean() < 0.5 * curve[:3].mean()
        fresh = toy(n_per_class=12, seed=1)
        accuracy = (encode(head, encode(network, fresh.values)).argmax(1) == fresh.labels).double().mean()
        assert accuracy > 0.85

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_class_weights_come_in_the_precision_of_the_signals(self, dtype: torch.dtype) -> None:
        samples = toy()
        _, _, curve = trained(
            samples.with_values(samples.values.to(dtype)), replace(self.PLAN, class_weights=True)
        )
        assert curve.dtype == dtype
        assert torch.isfinite(curve).all()

    def test_a_last_batch_of_one_sample_is_no_trouble(self) -> None:
        samples = toy(n_per_class=4)
        _, _, curve = trained(samples, replace(self.PLAN, batch_size=15))
        assert len(curve) == 6
        assert torch.isfinite(curve).all()

"""The experiment's draws: paired, distinct, of the right class, and indifferent to all the rest."""

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv.core.types import Batch
from anchorinv.study.runner import Protocol

quick = settings(max_examples=60)
PROTOCOL = Protocol(base_classes=(0, 1), sessions=(2, 3, 4, 5), shots=3, trials=10, seed=5)
#: At least three samples of each of six classes, in any order.
labels_of_all = st.lists(st.integers(0, 5), max_size=30).flatmap(
    lambda more: st.permutations([*range(6)] * 3 + more)
)
trials = st.integers(0, 500)
seeds = st.integers(0, 1000)
new_class = st.sampled_from(PROTOCOL.sessions)


def support(protocol: Protocol, labels: list[int], label: int, trial: int) -> list[int]:
    return protocol.support(torch.tensor(labels), label, trial).tolist()


def ranks(protocol: Protocol, labels: list[int], label: int, trial: int) -> list[int]:
    """Which members of its class are chosen: the first, the second, ..."""
    members = [index for index, other in enumerate(labels) if other == label]
    return [members.index(index) for index in support(protocol, labels, label, trial)]


class TestSupport:
    @quick
    @given(labels_of_all, new_class, trials, seeds)
    def test_is_distinct_samples_of_the_class(
        self, labels: list[int], label: int, trial: int, seed: int
    ) -> None:
        chosen = support(replace(PROTOCOL, seed=seed), labels, label, trial)
        assert len(chosen) == len(set(chosen)) == 3
        assert {labels[index] for index in chosen} == {label}

    @quick
    @given(labels_of_all, new_class, trials, seeds)
    def test_depends_on_seed_class_and_trial_alone(
        self, labels: list[int], label: int, trial: int, seed: int
    ) -> None:
        protocol = replace(PROTOCOL, seed=seed)
        chosen = support(protocol, labels, label, trial)
        others = [
            replace(protocol, trials=1000),
            replace(protocol, sessions=(5, 4, 3, 2)),
            replace(protocol, ways=2),
            replace(protocol, sessions=(label,), base_classes=(6, 7)),
        ]
        assert [support(other, labels, label, trial) for other in others] == [chosen] * 4

    @quick
    @given(labels_of_all, new_class, trials, st.randoms(use_true_random=False))
    def test_samples_of_other_classes_do_not_matter(
        self, labels: list[int], label: int, trial: int, random: Random
    ) -> None:
        # Others may come, go and change places: of the class itself the same ones are chosen.
        shuffled = list(labels)
        random.shuffle(shuffled)
        alone = [label] * labels.count(label)
        chosen = ranks(PROTOCOL, labels, label, trial)
        assert ranks(PROTOCOL, shuffled, label, trial) == chosen
        assert ranks(PROTOCOL, alone, label, trial) == chosen
        assert ranks(PROTOCOL, [0, *labels, 1, 1], label, trial) == chosen

    def test_differs_between_trials_classes_and_seeds(self) -> None:
        labels = [2, 3] * 30
        drawn = [ranks(PROTOCOL, labels, 2, trial) for trial in range(20)]
        assert len({tuple(chosen) for chosen in drawn}) > 15
        assert ranks(PROTOCOL, labels, 3, 0) != drawn[0]
        assert ranks(replace(PROTOCOL, seed=6), labels, 2, 0) != drawn[0]

    def test_every_sample_has_the_same_chance(self) -> None:
        labels = torch.full((10,), 2)
        drawn = torch.cat([PROTOCOL.support(labels, 2, trial) for trial in range(2000)])
        assert (drawn.bincount(minlength=10) - 600).abs().max() < 4 * (2000 * 0.3 * 0.7) ** 0.5

    def test_is_frozen(self) -> None:
        # Results of others can be compared only while trial 0 of seed 5 means these shots.
        assert support(replace(PROTOCOL, shots=5), [2] * 30, 2, 0) == [5, 6, 22, 23, 24]

    def test_a_class_with_just_enough_samples_gives_them_all(self) -> None:
        assert support(PROTOCOL, [2, 0, 2, 2], 2, 0) == [0, 2, 3]

    @pytest.mark.parametrize("n", [0, 2])
    def test_too_few_samples_are_told_with_both_numbers(self, n: int) -> None:
        with pytest.raises(ValueError, match=f"class 2 has {n} training samples, 3 shots needed") as error:
            support(PROTOCOL, [0, 1, *[2] * n], 2, 0)
        assert "lower shots or add samples" in str(error.value)


class TestDraw:
    @quick
    @given(labels_of_all, trials, st.sampled_from([1, 2, 4]))
    def test_sessions_bring_their_new_classes_and_nothing_else(
        self, labels: list[int], trial: int, ways: int
    ) -> None:
        protocol = replace(PROTOCOL, ways=ways)
        train = Batch(torch.arange(len(labels)), torch.tensor(labels))
        sessions = list(protocol.draw(train, trial))
        assert [session.index for session in sessions] == list(range(1, 4 // ways + 1))
        for session in sessions:
            expected = PROTOCOL.sessions[(session.index - 1) * ways : session.index * ways]
            assert session.train.classes == expected
            assert protocol.classes_of(session.index) == expected
            assert len(session.train) == 3 * ways
            for label in expected:
                drawn = session.train.of(label).values.tolist()  # values are the samples' own indices
                assert drawn == support(PROTOCOL, labels, label, trial)

    def test_number_of_sessions(self) -> None:
        assert [replace(PROTOCOL, ways=ways).n_sessions for ways in (1, 2, 4)] == [4, 2, 1]
        assert Protocol((0, 1), ()).n_sessions == 0


class TestErrors:
    def test_a_class_that_is_base_and_new(self) -> None:
        with pytest.raises(ValueError, match="class 1 is both a base and a new class"):
            Protocol((0, 1), (1, 2))

    @pytest.mark.parametrize(
        ("base_classes", "sessions", "ways"),
        [((0, 1), (2, 3, 2), 1), ((0, 1), (2, 2), 2), ((0, 1, 0), (2,), 1)],
    )
    def test_a_class_that_is_named_twice(
        self, base_classes: tuple[int, ...], sessions: tuple[int, ...], ways: int
    ) -> None:
        # Two ways of one class would be the same shots twice in one session.
        with pytest.raises(ValueError, match="name it once"):
            Protocol(base_classes, sessions, ways=ways)

    @pytest.mark.parametrize("name", ["shots", "trials", "ways"])
    def test_counts_below_one(self, name: str) -> None:
        with pytest.raises(ValueError, match=rf"{name} \(=0\) must be at least 1"):
            replace(PROTOCOL, **{name: 0})

    def test_sessions_that_are_not_full(self) -> None:
        with pytest.raises(ValueError, match="4 new classes do not fill sessions of 3"):
            replace(PROTOCOL, ways=3)

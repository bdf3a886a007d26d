"""How far to finetune is chosen from shots and replay alone, and chosen sensibly."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine, Head
from anchorinv.core.training import CrossValidatedFinetune
from anchorinv.core.types import Batch, scoped_seed, stream
from tests.core.small import SMALL, randn, same


class Line(nn.Module):
    """A tail with one weight matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4, dtype=torch.float64))

    def forward(self, latents: Tensor) -> Tensor:
        """Return latents, turned."""
        return latents @ self.weight


def samples(n: int, label: int, *, noise: float = 0.3, seed: int = 0) -> Batch:
    centre = torch.eye(4, dtype=torch.float64)[label]
    return Batch(centre + noise * randn(n, 4, seed=seed + label), torch.full((n,), label))


def task(noise: float = 0.3) -> tuple[Line, Cosine, Batch, Batch]:
    old = [samples(12, label, noise=noise) for label in (0, 1)]
    shots = samples(6, 2, noise=noise)
    fixed = torch.stack([batch.values.mean(0) for batch in old])
    replay = Batch(torch.cat([b.values for b in old]), torch.cat([b.labels for b in old]))
    return Line(), Cosine(shots.values.mean(0, keepdim=True), fixed), shots, replay


PLAN = CrossValidatedFinetune(lengths=(0, 5, 20), lrs=(1e-3, 1e-2), folds=3)


def test_is_a_finetuning_of_the_chosen_length_on_everything() -> None:
    tail, head, shots, replay = task()
    steps, lr = PLAN.choose(tail, head, shots, replay)
    found = PLAN(tail, head, shots, replay, session=3)
    alone = CrossValidatedFinetune(lengths=(steps,), lrs=(lr,))(tail, head, shots, replay, session=3)
    assert len(found[2]) == steps
    assert same(found[0].state_dict(), alone[0].state_dict())


def test_every_shot_is_kept_aside_once_and_never_learned_from_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tail, head, shots, replay = task()
    learned: list[set[float]] = []
    aside: list[set[float]] = []

    def spied(
        tail: nn.Module,
        head: Cosine,
        shots: Batch,
        replay: Batch,
        plan: object,
        *,
        watch: object,
        **_: object,
    ) -> None:
        # The new prototype starts from what is learned from alone.
        torch.testing.assert_close(head.free[0], shots.values.mean(0))
        learned.append({*shots.values[:, 0].tolist(), *replay.values[:, 0].tolist()})
        for step in (0, 5, 20):
            watch(step, tail, head)  # type: ignore[operator]

    def noted(tail: nn.Module, head: Head, kept: Batch) -> float:
        aside.append(set(kept.values[:, 0].tolist()))
        return 0.0

    monkeypatch.setattr("anchorinv.core.training.finetune", spied)
    monkeypatch.setattr("anchorinv.core.training._error_rate", noted)
    replace(PLAN, lrs=(1e-3,)).errors(tail, head, shots, replay)
    folds = aside[::3]
    assert len(folds) == len(learned) == 3
    assert all(not (mine & theirs) for mine, theirs in zip(folds, learned, strict=True))
    assert sum(len(fold) for fold in folds) == len(set.union(*folds))
    assert set(shots.values[:, 0].tolist()) <= set.union(*folds)


def test_moves_where_moving_helps_and_stays_where_it_harms() -> None:
    # A rotated tail mixes the classes' directions up; training turns it back.
    tail, head, shots, replay = task(noise=0.2)
    far = CrossValidatedFinetune(lengths=(0, 60), lrs=(3e-2,), folds=3)
    with torch.no_grad():
        tail.weight += 0.8 * randn(4, 4, seed=7)
    assert far.choose(tail, head, shots, replay)[0] == 60
    # Far too fast: what fits some shots throws the others about.
    wild = CrossValidatedFinetune(lengths=(0, 60), lrs=(5.0,), folds=3)
    assert wild.choose(Line(), head, shots, replay)[0] == 0


def test_of_settings_alike_the_one_that_moves_least() -> None:
    tail, head, shots, replay = task(noise=1e-9)  # perfect from the start
    head = Cosine(head.free.detach(), head.fixed, scale=200.0)
    assert PLAN.choose(tail, head, shots, replay) == (0, 1e-3)


def test_a_single_shot_cannot_be_kept_aside() -> None:
    tail, head, shots, replay = task()
    one = shots[torch.tensor([0])]
    assert PLAN.choose(tail, head, one, replay) == (0, 1e-3)
    assert PLAN.errors(tail, head, one, replay) is None


def test_without_replay_and_without_prototypes() -> None:
    with scoped_seed(stream(0)):
        network = Conformer(SMALL).double().eval()
    latents = network.trunk(randn(8, 3, 40, seed=1)).detach()
    head = Cosine(network.tail(latents).detach()[:2].clone())
    shots = Batch(latents, torch.arange(8) % 2)
    errors = CrossValidatedFinetune(lengths=(0, 2), lrs=(1e-3,), folds=4).errors(
        network.tail, head, shots, None
    )
    assert errors is not None and errors.shape == (2, 4) and errors.isfinite().all()


def test_leaves_what_it_is_given_alone() -> None:
    tail, head, shots, replay = task()
    before = [tail.weight.clone(), head.free.clone(), shots.values.clone(), replay.values.clone()]
    PLAN(tail, head, shots, replay, session=1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, [tail.weight, head.free, shots.values, replay.values], strict=True)
    )


@pytest.mark.parametrize(
    "wrong", [{"lengths": ()}, {"lrs": (0.0,)}, {"lengths": (-1,)}, {"folds": 1}, {"most": 1}]
)
def test_refuses_what_cannot_be_chosen_from(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="must be"):
        CrossValidatedFinetune(**wrong)  # type: ignore[arg-type]

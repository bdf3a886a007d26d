"""Choosing never touches the test part: a scorer that raises when it is read early."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anchorinv.core.inversion import Inversion
from anchorinv.core.prototypes import mean_of_shots
from anchorinv.core.recipe import BaseSpec, Recipe
from anchorinv.core.registry import METHODS
from anchorinv.core.training import CrossValidatedFinetune, Finetune
from anchorinv.core.types import Batch
from anchorinv.study.runner import InMemory, MethodRun, Protocol, Scorer
from tests.core.small import anchorinv, base_spec, toy

FOUNDATION = base_spec()
PROTOCOL = Protocol(base_classes=(0, 1), sessions=(2, 3), shots=4, trials=1)
CHOOSING = CrossValidatedFinetune(lengths=(0, 2, 4), lrs=(1e-3, 1e-2), folds=2, refresh=True)
SHORT: dict[str, Any] = {"adapt": Finetune(steps=(2,), lr=1e-3)}


def methods() -> dict[str, Recipe]:
    made = {}
    for name, make in ((n, spec.build) for n, spec in METHODS.items()):
        still = [other for other, spec in METHODS.items() if not spec.finetunes]
        options = {} if name in still else dict(SHORT)
        if name in ("anchorinv", "deepdream", "deepinv"):
            options["inversion"] = Inversion(steps=2)
        if name == "nc-fscil":
            options["n_all"] = 4
        made[name] = make(FOUNDATION, **options)
    validated = anchorinv(FOUNDATION, start=mean_of_shots, adapt=CHOOSING)
    return {**made, "validated": replace(validated, refresh=True)}


class Sealed:
    """Test samples that can be read while nobody learns, and are an error otherwise."""

    def __init__(self, samples: Batch) -> None:
        self._samples, self.learning, self.read = samples, 0, 0

    @property
    def values(self) -> Tensor:
        return self._open().values

    @property
    def labels(self) -> Tensor:
        return self._open().labels

    def _open(self) -> Batch:
        assert not self.learning, "the test part was read while a method was learning"
        self.read += 1
        return self._samples

    @contextmanager
    def closed(self) -> Iterator[None]:
        self.learning += 1
        try:
            yield
        finally:
            self.learning -= 1


def closing(sealed: Sealed, learn: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **options: Any) -> Any:
        with sealed.closed():
            return learn(*args, **options)

    return guarded


@pytest.mark.parametrize("name", [*METHODS, "validated"])
def test_the_test_part_is_not_read_before_a_session_is_learned(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = Sealed(toy(seed=5))
    for owner, part in (
        (BaseSpec, "fit"),
        (Recipe, "start"),
        (Recipe, "recall"),
        (Recipe, "learn_session"),
    ):
        monkeypatch.setattr(owner, part, closing(sealed, getattr(owner, part)))
    scorer = Scorer(sealed)  # type: ignore[arg-type]
    method_run = MethodRun(name, methods()[name], toy(), scorer, PROTOCOL, InMemory())
    assert sealed.read == 0
    assert [result.session for trial in (None, 0) for result in method_run.results(trial)] == [0, 1, 2]
    assert sealed.read > 0


def test_the_seal_breaks_a_method_that_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Sealed(toy(seed=5))
    honest = CrossValidatedFinetune.choose

    def peeking(self: CrossValidatedFinetune, *args: Any) -> Any:
        assert len(sealed.labels)
        return honest(self, *args)

    monkeypatch.setattr(CrossValidatedFinetune, "choose", peeking)
    monkeypatch.setattr(Recipe, "learn_session", closing(sealed, Recipe.learn_session))
    scorer = Scorer(sealed)  # type: ignore[arg-type]
    method_run = MethodRun("validated", methods()["validated"], toy(), scorer, PROTOCOL, InMemory())
    with pytest.raises(AssertionError, match="while a method was learning"):
        list(method_run.results(0))


def test_what_is_chosen_depends_on_no_class_to_come() -> None:
    train = toy()
    others = train.with_values(torch.where((train.labels == 3)[:, None, None], -train.values, train.values))
    chosen = []
    for samples in (train, others):
        method_run = MethodRun(
            "validated", methods()["validated"], samples, Scorer(toy(seed=5)), PROTOCOL, InMemory()
        )
        first, _ = method_run.results(0)
        chosen.append((first.facts["steps chosen"], first.confusion.tolist()))
    assert chosen[0] == chosen[1]

"""A state goes into tensors and facts and comes out the same, for every method; nothing else comes out."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from anchorinv.core.inversion import Inversion
from anchorinv.core.recipe import Recipe
from anchorinv.core.registry import METHODS
from anchorinv.core.training import Finetune
from anchorinv.core.types import State, stream
from anchorinv.persistence.format import packed, unpacked
from anchorinv.study.runner import Protocol
from tests.core.small import base_spec, same, snapshot, toy, untouched_generators

PROTOCOL = Protocol(base_classes=(0, 1), sessions=(2, 3), shots=3, trials=1)


def method(name: str) -> Recipe:
    spec = METHODS[name]
    options = {"adapt": Finetune(steps=(2,), lr=1e-3), "inversion": Inversion(steps=2), "n_all": 4}
    return spec.build(base_spec(), **{key: value for key, value in options.items() if key in spec.options})


def learned(recipe: Recipe) -> State:
    train = toy()
    state = recipe.fit_base(train.of(0, 1), rng=stream(0))
    for session in PROTOCOL.draw(train, 0):
        state = recipe.learn_session(state, session, rng=stream(1, session.index))
    return state


def through_bytes(state: State) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, facts = packed(state)
    return load(save(tensors)), json.loads(json.dumps(facts))


@pytest.mark.parametrize("name", METHODS)
def test_what_comes_out_is_what_went_in(name: str) -> None:
    recipe = method(name)
    state = learned(recipe)
    with untouched_generators():
        again = unpacked(*through_bytes(state), recipe.base_spec.backbone)
    assert same(snapshot(again), snapshot(state))
    signals = toy(seed=9).values
    assert torch.equal(recipe.predict(again, signals), recipe.predict(state, signals))
    frozen = [*again.trunk.parameters(), *again.tail.parameters(), *again.head.parameters()]
    assert not any(parameter.requires_grad for parameter in frozen)


def test_it_can_go_on_learning() -> None:
    recipe = method("anchorinv")
    state = recipe.fit_base(toy().of(0, 1), rng=stream(0))
    again = unpacked(*through_bytes(state), recipe.base_spec.backbone)
    session = next(PROTOCOL.draw(toy(), 0))
    one, other = (recipe.learn_session(s, session, rng=stream(1)) for s in (state, again))
    assert same(snapshot(one), snapshot(other))


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors, facts: tensors.pop("trunk.0.time_weight"),
        lambda tensors, facts: tensors.update({"tail.0.more": torch.zeros(1)}),
        lambda tensors, facts: tensors.update({"trunk.0.time_bias": torch.zeros(3)}),
        lambda tensors, facts: tensors.update({"replay.labels": torch.zeros(1, dtype=torch.long)}),
        lambda tensors, facts: tensors.pop("replay.labels"),
        lambda tensors, facts: tensors.pop("curves.0"),
        lambda tensors, facts: facts.pop("classes"),
        lambda tensors, facts: facts.update(head={"kind": "oracle"}),
        lambda tensors, facts: facts.update(shape=[3]),
        lambda tensors, facts: facts.update(curves=[1]),
    ],
)
def test_what_is_damaged_is_refused_in_words(damage: Any) -> None:
    recipe = method("latent-replay")
    tensors, facts = through_bytes(recipe.fit_base(toy().of(0, 1), rng=stream(0)))
    damage(tensors, facts)
    with pytest.raises(ValueError, match=r"weights|labels"):
        unpacked(tensors, facts, recipe.base_spec.backbone)

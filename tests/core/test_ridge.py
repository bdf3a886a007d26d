"""Ridge regression, on what is kept and on random projections, against scikit-learn."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge

from anchorinv.core import catalogue
from anchorinv.core.heads import Cosine, Mlp
from anchorinv.core.ridge import (
    HELD_OUT,
    PENALTIES,
    FitRidge,
    ProjectedRidge,
    RidgeStatistics,
    choose_penalty,
    rectified,
    ridge_weights,
)
from anchorinv.core.types import Batch, Session, State, stream
from tests.core.small import base_spec, randn, toy

FEATURES, TARGETS = randn(60, 7, seed=1), torch.arange(60) % 3
PROJECTION = randn(7, 25, seed=2)


def learned(penalty: float = 0.5) -> ProjectedRidge:
    return ProjectedRidge.empty(PROJECTION, penalty=penalty, scale=1.0).learned(FEATURES, TARGETS)


@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_outputs_are_scikit_learns(penalty: float) -> None:
    values, wanted = F.relu(FEATURES @ PROJECTION).numpy(), F.one_hot(TARGETS).double().numpy()
    theirs = Ridge(alpha=penalty, fit_intercept=False).fit(values, wanted)
    new = randn(9, 7, seed=3)
    outputs = learned(penalty)(new)
    expected = theirs.predict(F.relu(new @ PROJECTION).numpy())
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-8, atol=1e-9)


def test_the_order_and_grouping_of_examples_do_not_matter() -> None:
    order = torch.randperm(60, generator=stream(4))
    parts = ProjectedRidge.empty(PROJECTION, penalty=0.5, scale=1.0)
    for label in range(3):  # class by class, as sessions come, and each in pieces
        for part in order[TARGETS[order] == label].split(7):
            parts = parts.learned(FEATURES[part], TARGETS[part])
    whole, new = learned(), randn(9, 7, seed=3)
    assert parts.counts.tolist() == whole.counts.tolist() == [20, 20, 20]
    torch.testing.assert_close(parts(new), whole(new))


def test_second_moments_that_rounding_made_indefinite_are_solved_without_their_negative_part() -> None:
    directions = torch.linalg.qr(randn(6, 6, seed=5)).Q
    eigenvalues = torch.tensor([1000.0, 2.0, 1.0, 0.5, 0.0, -0.1]).double()
    gram, sums = directions * eigenvalues @ directions.T, randn(6, 2, seed=6)
    sound = directions * (eigenvalues.clamp(min=0) + 0.01) @ directions.T
    torch.testing.assert_close(ridge_weights(gram, sums, 0.01), torch.linalg.solve(sound, sums))


def test_other_outputs_stay_when_a_class_is_forgotten() -> None:
    head, new = learned(), randn(9, 7, seed=3)
    torch.testing.assert_close(head.without(1)(new), head(new)[:, [0, 2]])


def test_the_penalty_has_the_least_error_on_windows_kept_aside() -> None:
    values, rng = rectified(FEATURES, PROJECTION), stream(3)
    chosen = choose_penalty(values, TARGETS, rng=rng)
    order = torch.randperm(60, generator=stream(rng, "penalty"))
    aside, known = (part.numpy() for part in order.split([12, 48]))
    wanted = F.one_hot(TARGETS).double().numpy()
    errors = {}
    for penalty in PENALTIES:
        model = Ridge(alpha=penalty, fit_intercept=False, solver="cholesky").fit(
            values[known].numpy(), wanted[known]
        )
        errors[penalty] = np.square(model.predict(values[aside].numpy()) - wanted[aside]).mean()
    assert HELD_OUT == 0.2 and chosen == min(errors, key=lambda penalty: errors[penalty])


@pytest.mark.parametrize("n", [20, 200])
def test_both_ways_to_solve_agree(n: int) -> None:
    """More windows than projections, and fewer."""
    features, targets = randn(n, 7, seed=5), torch.arange(n) % 2
    projection = randn(7, 50, seed=6)
    chosen = choose_penalty(rectified(features, projection), targets, rng=stream(1))
    assert chosen in PENALTIES


def test_a_recipe_keeps_sums_of_all_windows_and_is_the_same_in_any_order_of_classes() -> None:
    recipe, data = catalogue.ranpac(base_spec(epochs=3), n_random=40), toy(8)
    base = recipe.fit_base(data.of(0, 1, 2), rng=stream(5))
    head = base.head
    assert isinstance(head, ProjectedRidge) and base.anchors is None and base.replay is None
    assert [curve.name for curve in base.curves] == ["base", "penalty"]
    assert head.counts.tolist() == [len(data.of(label)) for label in (0, 1, 2)]
    values = rectified(base.tail(base.trunk(data.of(0).values)), head.projection)
    torch.testing.assert_close(head.sums[0].double(), values.sum(0), rtol=1e-4, atol=1e-4)
    ends = []
    for order in ((3, 4), (4, 3)):
        state = base
        for index, label in enumerate(order, start=1):
            state = recipe.learn_session(state, Session(index, data.of(label)), rng=stream(6))
        logits = state.head(state.tail(state.trunk(toy(4, seed=1).values)))
        ends.append(logits[:, [state.classes.index(label) for label in (0, 1, 2, 3, 4)]])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-3)


def test_the_network_is_that_of_protonet_and_the_projection_that_of_the_seed() -> None:
    one, data = base_spec(epochs=3), toy(8).of(0, 1, 2)
    state = catalogue.protonet(one).fit_base(data, rng=stream(5))
    recipe = catalogue.ranpac(one, n_random=40)
    first, again = (recipe.start(state, data, rng=stream(5)) for _ in range(2))
    assert first.trunk is state.trunk and torch.equal(first.head.projection, again.head.projection)
    other = recipe.start(replace(state, seed=state.seed + 1), data, rng=stream(5))
    assert not torch.equal(first.head.projection, other.head.projection)
    assert RidgeStatistics().n_random == 2000


def test_features_of_nothing_are_told_apart_by_nothing() -> None:
    head = ProjectedRidge.empty(PROJECTION, penalty=1e-8).learned(torch.zeros(4, 7).double(), TARGETS[:4])
    assert head(torch.zeros(2, 7).double()).isfinite().all()
    assert math.isfinite(choose_penalty(torch.zeros(10, 25).double(), TARGETS[:10], rng=stream(0)))


def state(prototypes: torch.Tensor) -> State:
    fitted = catalogue.protonet(base_spec()).fit_base(toy().of(0, 1, 2), rng=stream(0))
    return replace(fitted, head=Cosine(prototypes[:0], prototypes))


@pytest.mark.parametrize("dim", [4, 60])
def test_is_weighted_ridge_regression(dim: int) -> None:
    labels = torch.tensor([0] * 20 + [1] * 5 + [2] * 10)
    known = Batch(randn(35, dim, seed=0) + 2 * randn(3, dim, seed=1)[labels], labels)
    head = FitRidge(0.3)(state(randn(3, dim, seed=2)), known)
    weights = 1 / (3 * np.array([20, 5, 10]))[labels.numpy()]
    X, Y = known.values.numpy(), np.eye(3)[labels.numpy()]
    centred = X - np.average(X, axis=0, weights=weights)
    penalty = 0.3 * (weights[:, None] * centred**2).sum() / 35
    expected = Ridge(alpha=penalty).fit(X, Y, sample_weight=weights)
    features = randn(9, dim, seed=3)
    np.testing.assert_allclose(head(features).numpy() / 16, expected.predict(features.numpy()), atol=1e-9)


def test_needs_prototypes_to_place_new_classes_by() -> None:
    odd = replace(state(randn(3, 4, seed=0)), head=Mlp.start(3, 4))
    with pytest.raises(TypeError, match="Cosine"):
        FitRidge()(odd, Batch(randn(6, 4, seed=1), torch.arange(6) % 3))

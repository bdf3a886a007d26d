"""Every head owns its facts: it packs itself, knows what is sound, loses a class, bounds its size."""

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.heads import (
    HEADS,
    Cosine,
    DotRegression,
    Expected,
    Head,
    HeadFacts,
    Mlp,
    PrototypeHead,
    Scale,
    simplex_etf,
)
from anchorinv.core.mahalanobis import CovarianceHead, FitMahalanobis, fit_covariance_head
from anchorinv.core.memory import without_class
from anchorinv.core.networks import frozen
from anchorinv.core.ridge import FitRidge, ProjectedRidge
from anchorinv.core.riemannian import RiemannianMeans
from anchorinv.core.types import Batch, State, scoped_seed, stream
from anchorinv.persistence.format import packed, unpacked
from tests.core.small import base_spec, randn, same, toy, weights_of

DIM, N_CLASSES, N_BASE = 6, 4, 3
LABELS = torch.arange(40) % N_CLASSES
FEATURES = Batch(randn(40, DIM, seed=1) + 2 * randn(N_CLASSES, DIM, seed=2)[LABELS], LABELS)
EXPECTED = Expected(N_CLASSES, N_BASE, (DIM,), len(FEATURES))


@lru_cache
def base() -> State:
    return base_spec().fit(toy(), rng=stream(0))


def with_prototypes() -> State:
    means = torch.stack([FEATURES.of(c).values.mean(0) for c in range(N_CLASSES)])
    return replace(base(), head=Cosine(means[3:], means[:3]), n_base=N_BASE, anchors=FEATURES)


def heads() -> list[Head]:
    state = with_prototypes()
    with scoped_seed(stream(0)):
        mlp = Mlp.start(N_CLASSES, DIM).double().eval()
        vertices = simplex_etf(5, DIM).double()
    statistics = [
        Discriminant.empty(DIM, n_base=N_BASE, shrinkage=0.2, centring=0.1),
        ProjectedRidge.empty(randn(DIM, 9, seed=3), penalty=0.5),
        RiemannianMeans.empty(DIM),
    ]
    return [
        state.head,
        mlp,
        DotRegression(vertices, N_CLASSES),
        FitMahalanobis(30.0)(state, FEATURES),
        FitMahalanobis(by_angle=True)(state, FEATURES),
        FitRidge()(state, FEATURES),
        *(head.double().learned(FEATURES.values / 9, LABELS) for head in statistics),
    ]


EACH = pytest.mark.parametrize("head", heads(), ids=lambda head: head.kind)


def test_all_kinds_that_files_may_hold_are_here() -> None:
    assert {head.kind for head in heads()} == set(HEADS)
    assert all(type(head) is HEADS[head.kind] for head in heads())
    assert HEADS["spread"] is HEADS["mahalanobis"]  # as files of former versions say


@EACH
def test_comes_back_as_it_was_and_fits(head: Head) -> None:
    tensors, facts = head.packed()
    again = frozen(HEADS[facts["kind"]].unpacked(tensors, json.loads(json.dumps(facts))))
    again.prepare()
    assert same(weights_of(again), weights_of(head)) and again.packed()[1] == facts
    assert torch.equal(again(FEATURES.values), head(FEATURES.values))
    assert type(head).Facts(**{name: value for name, value in facts.items() if name != "kind"})
    assert again.fits(EXPECTED)


@EACH
@pytest.mark.parametrize(
    "change", [{"n_classes": 5}, {"n_classes": 3}, {"sizes": (DIM + 1,)}, {"sizes": (DIM - 2,)}], ids=str
)
def test_fits_nothing_else(head: Head, change: dict[str, Any]) -> None:
    assert not head.fits(replace(EXPECTED, **change))


@EACH
@pytest.mark.parametrize("column", [0, 2, 3])
def test_loses_a_class_and_leaves_the_others(head: Head, column: int) -> None:
    before = weights_of(head)
    less = head.without(column, FEATURES[column != LABELS])
    others = [c for c in range(N_CLASSES) if c != column]
    assert type(less) is type(head) and same(weights_of(head), before)
    assert less.fits(replace(EXPECTED, n_classes=3, n_base=N_BASE - (column < N_BASE)))
    if not isinstance(head, CovarianceHead | Discriminant):  # theirs is a covariance of all classes
        torch.testing.assert_close(less(FEATURES.values), head(FEATURES.values)[:, others])


@EACH
def test_holds_no_more_numbers_than_it_says(head: Head) -> None:
    tensors, _ = head.packed()
    room = head.n_values(DIM, N_CLASSES, len(FEATURES)) + 64
    assert sum(tensor.numel() for tensor in tensors.values()) <= room


@EACH
def test_a_fitted_head_places_new_classes_as_the_head_that_learns_does(head: Head) -> None:
    if isinstance(head, PrototypeHead):
        rows = randn(1, DIM, seed=5)
        grown, learner = head.add_classes(rows), Cosine(rows, head.prototypes, scale=head.scale)
        assert type(grown) is Cosine
        torch.testing.assert_close(grown(FEATURES.values), learner(FEATURES.values))
        moved = head.with_prototypes(head.prototypes + 1)
        assert type(moved) is type(head) and torch.equal(moved.prototypes, head.prototypes + 1)


def test_the_columns_that_are_compared_are_not_forgotten_in_a_file() -> None:
    state = replace(with_prototypes(), anchors=None)
    narrow = replace(state, head=Cosine(state.head.prototypes, scale=9.0, width=2))
    tensors, facts = packed(narrow)
    again = unpacked(tensors, facts, base_spec().backbone)
    assert isinstance(again.head, Cosine) and again.head.width == 2
    assert torch.equal(again.head(FEATURES.values), narrow.head(FEATURES.values))
    assert "width" not in packed(state)[1]["head"]  # files of all columns are as they were


@pytest.mark.parametrize("by_angle", [False, True])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_forgetting_shrinks_as_the_method_does(by_angle: bool, through_a_file: bool) -> None:
    fit, state = FitMahalanobis(7.0, by_angle), with_prototypes()
    state = replace(state, head=fit(state, FEATURES))
    if through_a_file:
        tensors, facts = packed(state)
        state = unpacked(tensors, json.loads(json.dumps(facts)), base_spec().backbone)
    less = without_class(state, 3)
    assert isinstance(less.head, CovarianceHead) and less.anchors is not None
    expected = fit_covariance_head(
        less.head.prototypes,
        less.anchors,
        shot_correction=less.head.shot_correction,
        shrinkage=7.0,
        kind=type(less.head),
    )
    assert torch.equal(less.head(FEATURES.values), expected(FEATURES.values))
    default = fit_covariance_head(less.head.prototypes, less.anchors, shot_correction=torch.ones(3))
    assert "shrinkage" not in default.packed()[1]  # files of the usual one are as they were


class Largest(Head):
    """A head of somebody else."""

    kind, parts = "largest", ("rows",)

    class Facts(HeadFacts):
        """The scale."""

        scale: Scale

    def __init__(self, rows: Tensor, *, scale: float = 2.0) -> None:
        super().__init__()
        self.rows: Tensor
        self.register_buffer("rows", rows)
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Return products."""
        return self.scale * features @ self.rows.T

    def without(self, column: int, anchors: Batch | None = None) -> "Largest":
        """Return the other rows."""
        return Largest(self.rows[torch.arange(len(self.rows)) != column], scale=self.scale)

    def fits(self, expected: Expected) -> bool:
        """Return whether there is a row for each class."""
        return self.rows.shape == (expected.n_classes, expected.dim)

    @classmethod
    def n_values(cls, dim: int, n_classes: int, n_anchors: int) -> int:
        """Return those of the rows."""
        return n_classes * dim


@pytest.fixture
def largest() -> Any:
    HEADS.register("largest", Largest)
    yield
    HEADS.unregister("largest")


@pytest.mark.usefixtures("largest")
def test_a_head_from_elsewhere_goes_through_a_state() -> None:
    state = replace(with_prototypes(), head=Largest(randn(N_CLASSES, DIM, seed=8)))
    again = unpacked(*packed(state), base_spec().backbone)
    assert isinstance(again.head, Largest) and again.head.fits(EXPECTED)
    others = state.head(FEATURES.values)[:, [0, 2, 3]]
    torch.testing.assert_close(without_class(again, 1).head(FEATURES.values), others)

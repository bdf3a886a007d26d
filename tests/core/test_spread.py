"""The head that knows the spread: Mahalanobis distance, as the textbook writes it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import shrunk_covariance
from torch import Tensor

from anchorinv.core.heads import class_means
from anchorinv.core.spread import Spread, spread_of
from anchorinv.core.types import Batch
from tests.core.small import randn


def samples(n: int, dim: int, n_classes: int = 3) -> Batch:
    labels = torch.arange(n) % n_classes
    stretched = randn(n, dim, seed=1) * torch.logspace(-1, 1, dim)
    return Batch(stretched + 3 * randn(n_classes, dim, seed=2)[labels], labels)


def textbook(prototypes: Tensor, known: Batch, features: Tensor, shrinkage: float) -> Tensor:
    apart = torch.cat([known.of(c).values - known.of(c).values.mean(0) for c in known.classes])
    covariance = torch.tensor(shrunk_covariance((apart.T @ apart / len(apart)).numpy(), shrinkage))
    away = features[:, None] - prototypes
    inverse = torch.linalg.inv(covariance)
    typical = torch.einsum("nd,de,ne->n", apart, inverse, apart).mean()
    return -0.5 * 16 * torch.einsum("ncd,de,nce->nc", away, inverse, away) / typical


@pytest.mark.parametrize(("n", "dim"), [(60, 7), (9, 20)])  # more samples than dimensions, and fewer
@pytest.mark.parametrize("shrinkage", [0.02, 0.5, 1.0])
def test_is_mahalanobis_distance_by_the_shrunk_covariance(n: int, dim: int, shrinkage: float) -> None:
    known, features = samples(n, dim), randn(11, dim, seed=3)
    prototypes = class_means(known.values, known.labels)
    head = spread_of(prototypes, known, shrinkage=shrinkage)
    expected = textbook(prototypes, known, features, shrinkage)
    torch.testing.assert_close(head(features), expected, rtol=1e-9, atol=1e-9)


def test_a_direction_in_which_classes_are_wide_counts_little() -> None:
    values = torch.tensor([[-10.0, 0.0], [10, 0], [-10, 1], [10, 1]], dtype=torch.float64)
    known = Batch(values, torch.tensor([0, 0, 1, 1]))
    head = spread_of(torch.tensor([[0.0, 0], [0, 1]], dtype=torch.float64), known)
    assert head(torch.tensor([[9.0, 0.2], [9.0, 0.8]], dtype=torch.float64)).argmax(1).tolist() == [0, 1]


@given(st.floats(-1e3, 1e3), st.floats(0.01, 100))
def test_does_not_depend_on_origin_or_unit(shift: float, unit: float) -> None:
    known, features = samples(30, 4), randn(8, 4, seed=4)
    moved = known.with_values(unit * known.values + shift)
    first = spread_of(class_means(known.values, known.labels), known)
    second = spread_of(class_means(moved.values, moved.labels), moved)
    torch.testing.assert_close(second(unit * features + shift), first(features), rtol=1e-5, atol=1e-5)


def test_forgets_a_prototype_and_keeps_the_spread() -> None:
    known = samples(30, 4)
    head = spread_of(class_means(known.values, known.labels), known)
    fewer, features = head.with_prototypes(head.prototypes[1:]), randn(5, 4, seed=5)
    assert isinstance(fewer, Spread)
    torch.testing.assert_close(fewer(features), head(features)[:, 1:])


@pytest.mark.parametrize("shrinkage", [0.0, -1.0, 1.5])
def test_refuses_a_shrinkage_that_is_none(shrinkage: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        spread_of(randn(3, 4, seed=0), samples(9, 4), shrinkage=shrinkage)


def test_refuses_samples_without_a_spread() -> None:
    with pytest.raises(ValueError, match="keep more anchors"):
        spread_of(randn(3, 4, seed=0), Batch(randn(3, 4, seed=1), torch.arange(3)))

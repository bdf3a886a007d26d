"""Mahalanobis distance to prototypes, as the textbook writes it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import shrunk_covariance
from torch import Tensor

from anchorinv.core.heads import Cosine, class_means
from anchorinv.core.mahalanobis import WhitenedHead, fit_covariance_head, shot_correction
from anchorinv.core.types import Batch, stream
from tests.core.small import randn


def samples(n: int, dim: int, n_classes: int = 3) -> Batch:
    labels = torch.arange(n) % n_classes
    stretched = randn(n, dim, seed=1) * torch.logspace(-1, 1, dim)
    return Batch(stretched + 3 * randn(n_classes, dim, seed=2)[labels], labels)


def even(n_classes: int = 3) -> Tensor:
    return torch.ones(n_classes, dtype=torch.float64)


def textbook(prototypes: Tensor, known: Batch, features: Tensor, shrinkage: float) -> Tensor:
    residuals = torch.cat([known.of(c).values - known.of(c).values.mean(0) for c in known.classes])
    weight = shrinkage / (shrinkage + len(residuals))
    covariance = torch.tensor(shrunk_covariance((residuals.T @ residuals / len(residuals)).numpy(), weight))
    away = features[:, None] - prototypes
    inverse = torch.linalg.inv(covariance)
    typical = torch.einsum("nd,de,ne->n", residuals, inverse, residuals).mean()
    return -0.5 * 16 * torch.einsum("ncd,de,nce->nc", away, inverse, away) / typical


@pytest.mark.parametrize(("n", "dim"), [(60, 7), (9, 20)])  # more samples than dimensions, and fewer
@pytest.mark.parametrize("shrinkage", [1.0, 100.0, 1e6])
def test_is_mahalanobis_distance_by_the_shrunk_covariance(n: int, dim: int, shrinkage: float) -> None:
    known, features = samples(n, dim), randn(11, dim, seed=3)
    prototypes = class_means(known.values, known.labels)
    head = fit_covariance_head(prototypes, known, shot_correction=even(), shrinkage=shrinkage)
    expected = textbook(prototypes, known, features, shrinkage)
    torch.testing.assert_close(head(features), expected, rtol=1e-9, atol=1e-9)


def test_views_are_measured_apart_and_have_the_same_vote() -> None:
    known, features = samples(30, 9), randn(8, 9, seed=4)
    known = known.with_values(known.values * torch.tensor([1.0] * 4 + [1e3] * 3 + [1e-3] * 2))
    prototypes = class_means(known.values, known.labels)
    whole = fit_covariance_head(prototypes, known, shot_correction=even(), views=(3, 2))
    parts = [
        fit_covariance_head(
            prototypes[:, at], known.with_values(known.values[:, at]), shot_correction=even()
        )(features[:, at])
        for at in (slice(0, 4), slice(4, 7), slice(7, 9))
    ]
    assert whole.sizes == [4, 3, 2]
    torch.testing.assert_close(whole(features), torch.stack(parts).mean(0))


def test_whitened_is_cosine_in_the_same_space() -> None:
    known, features = samples(30, 4), randn(8, 4, seed=4)
    prototypes = class_means(known.values, known.labels)
    head = fit_covariance_head(prototypes, known, shot_correction=even(), kind=WhitenedHead)
    residuals = torch.cat([known.of(c).values - known.of(c).values.mean(0) for c in known.classes])
    covariance = torch.tensor(shrunk_covariance((residuals.T @ residuals / 30).numpy(), 100 / 130))
    root = torch.linalg.cholesky(torch.linalg.inv(covariance))
    own, theirs = ((values - prototypes.mean(0)) @ root for values in (features, prototypes))
    torch.testing.assert_close(head(features), 16 * F.normalize(own) @ F.normalize(theirs).T)
    assert isinstance(head.with_prototypes(prototypes), WhitenedHead)


def test_new_prototypes_are_trained_by_the_features_alone() -> None:
    known = samples(30, 9)
    prototypes = class_means(known.values, known.labels)
    head = fit_covariance_head(prototypes, known, shot_correction=even(), views=(3, 2)).add_classes(
        randn(1, 9, seed=6)
    )
    features = randn(5, 9, seed=5)
    only = Cosine(prototypes[:0, :4], torch.cat([prototypes, randn(1, 9, seed=6)])[:, :4])
    torch.testing.assert_close(head(features), only(features[:, :4]))


def test_the_mean_of_few_shots_is_nearer_than_it_looks() -> None:
    assert shot_correction(torch.tensor([50, 5, 1, 10]), 2).tolist() == pytest.approx([1, 1, 1 / 2, 10 / 11])
    # Gaussian classes of the same shape in 40 dimensions; the second mean is known from 4 samples only.
    rng = stream(0, "gauss")
    centres = torch.stack([torch.zeros(40), 0.7 * torch.ones(40)]).double()
    few = centres[1] + torch.randn(4, 40, generator=rng, dtype=torch.float64)
    prototypes = torch.stack([centres[0], few.mean(0)])
    around = Batch(torch.randn(400, 40, generator=rng, dtype=torch.float64), torch.zeros(400).long())
    tests = centres.repeat_interleave(2000, 0) + torch.randn(4000, 40, generator=rng, dtype=torch.float64)
    predictions = {
        n: fit_covariance_head(
            prototypes, around, shot_correction=shot_correction(torch.tensor([400, n]), 1)
        )(tests).argmax(1)
        for n in (4, 10**9)
    }
    missed = {n: float((predicted[2000:] == 0).double().mean()) for n, predicted in predictions.items()}
    assert missed[4] < 0.5 * missed[10**9]


def test_a_direction_in_which_classes_are_wide_counts_little() -> None:
    values = torch.tensor([[-10.0, 0.0], [10, 0], [-10, 1], [10, 1]], dtype=torch.float64)
    known = Batch(values, torch.tensor([0, 0, 1, 1]))
    prototypes = torch.tensor([[0.0, 0], [0, 1]], dtype=torch.float64)
    head = fit_covariance_head(prototypes, known, shot_correction=even(2), shrinkage=0.4)
    assert head(torch.tensor([[9.0, 0.2], [9.0, 0.8]], dtype=torch.float64)).argmax(1).tolist() == [0, 1]


@given(st.floats(-1e3, 1e3), st.floats(0.01, 100))
def test_does_not_depend_on_origin_or_unit(shift: float, unit: float) -> None:
    known, features = samples(30, 4), randn(8, 4, seed=4)
    moved = known.with_values(unit * known.values + shift)
    first = fit_covariance_head(class_means(known.values, known.labels), known, shot_correction=even())
    second = fit_covariance_head(class_means(moved.values, moved.labels), moved, shot_correction=even())
    torch.testing.assert_close(second(unit * features + shift), first(features), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shrinkage", [0.0, -1.0])
def test_refuses_a_shrinkage_that_is_none(shrinkage: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        fit_covariance_head(randn(3, 4, seed=0), samples(9, 4), shot_correction=even(), shrinkage=shrinkage)


def test_of_single_samples_the_spread_is_unknown_and_distance_is_distance() -> None:
    prototypes, features = randn(3, 4, seed=0), randn(7, 4, seed=1)
    head = fit_covariance_head(
        prototypes, Batch(prototypes, torch.arange(3)), shot_correction=even(), views=(1,)
    )
    distances = [torch.cdist(features[:, at], prototypes[:, at]) ** 2 for at in (slice(0, 3), slice(3, 4))]
    sizes = [prototypes[:, at].var(0, unbiased=False).sum() for at in (slice(0, 3), slice(3, 4))]
    expected = -0.5 * 16 * sum(a / s for a, s in zip(distances, sizes, strict=True)) / 2
    torch.testing.assert_close(head(features), expected)
    same = torch.zeros(3, 4, dtype=torch.float64)
    assert (
        fit_covariance_head(same, Batch(same, torch.arange(3)), shot_correction=even())(features)
        .isfinite()
        .all()
    )

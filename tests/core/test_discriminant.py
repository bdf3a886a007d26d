"""The discriminant: the textbook's where it is one, exact whatever the order, and never NaN."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.posterior import _determinant_weights
from tests.core.small import randn


def gaussians(
    n_classes: int = 4, n_each: int = 30, dim: int = 6, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Classes around means of their own, with one covariance."""
    mixing = randn(dim, dim, seed=seed, dtype=dtype)
    means = 3 * randn(n_classes, dim, seed=seed + 1, dtype=dtype)
    targets = torch.arange(n_classes * n_each) % n_classes
    noise = randn(len(targets), dim, seed=seed + 2, dtype=dtype) @ mixing
    return means[targets] + noise, targets


def learned(features: Tensor, targets: Tensor, **options: Any) -> Discriminant:
    settings = {"n_base": int(targets.max()) + 1, "shrinkage": 0.1} | options
    return Discriminant.empty(features.shape[1], **settings).to(features).learned(features, targets)


class TestTextbook:
    def test_without_prior_and_shrinkage_it_is_linear_discriminant_analysis(self) -> None:
        features, targets = gaussians()
        head = learned(features, targets, shrinkage=0.0, prior=False)
        oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=[0.25] * 4)
        oracle.fit(features.numpy(), targets.numpy())
        test, _ = gaussians(seed=9)
        assert head(test).argmax(1).tolist() == oracle.predict(test.numpy()).tolist()

    def test_distances_are_mahalanobis_times_n_over_n_plus_one(self) -> None:
        features, targets = gaussians(n_classes=2, n_each=10)
        head = learned(features, targets, shrinkage=0.3, prior=False)
        means = [features[targets == c].mean(0) for c in (0, 1)]
        residuals = torch.cat([features[targets == c] - means[c] for c in (0, 1)])
        pooled = residuals.T @ residuals / (len(features) - 2)
        shrunk = 0.7 * pooled + 0.3 * pooled.trace() / 6 * torch.eye(6, dtype=torch.float64)
        x = randn(5, 6, seed=3)
        expected = torch.stack(
            [-0.5 * 10 / 11 * ((x - m) @ shrunk.inverse() * (x - m)).sum(1) for m in means], dim=1
        )
        torch.testing.assert_close(head(x), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("student", [True, False])
    def test_with_a_prior_it_is_the_predictive_density(self, student: bool) -> None:
        """The formula written out with whole matrices; a Gaussian is what former model files have."""
        features, targets = gaussians(n_classes=4, n_each=12)
        more = randn(3, 6, seed=8)
        head = learned(features, targets, student=student).learned(more, torch.full((3,), 4))
        x = randn(7, 6, seed=4)
        expected = written_out(features, targets, more, x, student=student)
        torch.testing.assert_close(head(x), expected, rtol=1e-5, atol=1e-5)

    def test_with_very_many_examples_students_density_is_the_gaussian(self) -> None:
        features, targets = gaussians(n_each=20_000)
        x, _ = gaussians(seed=5)
        student, gaussian = (learned(features, targets, student=each)(x) for each in (True, False))
        torch.testing.assert_close(student.softmax(1), gaussian.softmax(1), rtol=0, atol=5e-3)

    @settings(max_examples=50, deadline=None)
    @given(st.floats(0.001, 0.02), st.floats(1.5, 6.0), st.integers(3, 40))
    def test_determinants_that_are_fair_make_margins_equal(self, level: float, ratio: float, n: int) -> None:
        """Squared distances of windows to means known from n and from very many, on average, per feature."""
        prior = ratio * level
        kept, wide = n * prior / (1 + n * prior), 1 + prior / (1 + n * prior)
        of_many = (1 + level + kept**2 * (level + 1 / n)) / wide - 1
        of_few = 1 + 2 * level - (1 + (1 - kept) ** 2 * level + kept**2 / n) / wide
        fair = (of_few - of_many) / 2 / math.log(wide)
        weight = _determinant_weights(*torch.tensor([[level], [prior], [float(n)]], dtype=torch.float64))
        assert float(weight) == pytest.approx(min(0.6, 0.75 * fair), rel=0.06)

    def test_with_very_many_examples_the_prior_does_not_matter(self) -> None:
        features, targets = gaussians(n_each=5000)
        x, _ = gaussians(seed=5)
        with_prior, without = (learned(features, targets, prior=prior)(x) for prior in (True, False))
        torch.testing.assert_close(with_prior.softmax(1), without.softmax(1), rtol=0, atol=5e-3)


def written_out(features: Tensor, targets: Tensor, more: Tensor, x: Tensor, *, student: bool) -> Tensor:
    """Log-densities by textbook matrices: whiten, a normal prior for means, its posterior, the predictive."""
    groups = [features[targets == c] for c in range(4)] + [more]
    means = torch.stack([g.mean(0) for g in groups])
    residuals = torch.cat([g - g.mean(0) for g in groups])
    pooled = residuals.T @ residuals / (len(residuals) - 5)
    eye = torch.eye(6, dtype=torch.float64)
    shrunk = 0.9 * pooled + (0.1 + 1e-6) * pooled.trace() / 6 * eye
    factor = torch.linalg.cholesky(shrunk).inverse().T
    centre = means[:4].mean(0)
    placed, base = (means - centre) @ factor, (means[:4] - centre) @ factor
    between = base.T @ base / 3
    level = (between.trace() / 6 - 1 / 12).clamp(min=1e-3)
    prior = 4.0 * (0.5 * between + 0.5 * level * eye)  # drawn by 2 / 4 classes
    z, densities = (x - centre) @ factor, []
    for group, mean in zip(groups, placed, strict=True):
        n = len(group)
        gain = prior @ (prior + eye / n).inverse()
        predictive = eye + prior - gain @ prior
        d = z - gain @ mean
        squares, weight = (d @ predictive.inverse() * d).sum(1), 0.5
        if student:
            freedom = len(residuals) - 5 - 6 + 1
            squares = (freedom + 6) * torch.log(1 + squares / freedom)
            weight = min(0.6, 0.75 * float((1 + n * level) / (1 + n * 4.0 * 0.5 * level)))
        densities.append(-0.5 * (squares + weight * torch.logdet(predictive)))
    return torch.stack(densities, dim=1)


class TestStatistics:
    @settings(max_examples=25, deadline=None)
    @given(st.permutations(range(40)), st.lists(st.integers(1, 39), max_size=4, unique=True))
    def test_neither_order_nor_grouping_matters(self, order: list[int], cuts: list[int]) -> None:
        features, targets = gaussians(n_each=10)
        whole = learned(features, targets)
        head = Discriminant.empty(6, n_base=4, shrinkage=0.1).double()
        # A class is known by its column, so all columns are there before parts come.
        head = head.learned(features[:0], targets[:0])
        for part in torch.tensor_split(torch.tensor(order), sorted(cuts)):
            head = head.learned(features[part], targets[part])
        assert torch.equal(head.counts, whole.counts)
        torch.testing.assert_close(head.means, whole.means, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(head.scatters, whole.scatters, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("column", [0, 2, 3])
    def test_forgetting_is_exact(self, column: int) -> None:
        features, targets = gaussians()
        others = targets != column
        renumbered = targets[others] - (targets[others] > column).long()
        never = learned(features[others], renumbered, n_base=3)
        forgot = learned(features, targets).without(column)
        x, _ = gaussians(seed=5)
        torch.testing.assert_close(forgot(x), never(x))

    def test_learning_leaves_the_old_one_alone(self) -> None:
        features, targets = gaussians()
        head = learned(features, targets)
        before = [tensor.clone() for tensor in head.buffers()]
        head.learned(features[:3], torch.tensor([0, 4, 4]))
        assert all(torch.equal(a, b) for a, b in zip(before, head.buffers(), strict=True))

    def test_invertible_maps_of_the_features_change_nothing_without_shrinkage(self) -> None:
        features, targets = gaussians()
        x, _ = gaussians(seed=5)
        turned = randn(6, 6, seed=7)
        plain, mapped = (
            learned(features @ m, targets, shrinkage=0.0)(x @ m).softmax(1)
            for m in (torch.eye(6, dtype=torch.float64), turned)
        )
        torch.testing.assert_close(plain, mapped, rtol=1e-3, atol=1e-3)


class TestOddData:
    @pytest.mark.parametrize("prior", [True, False])
    def test_one_window_a_class(self, prior: bool) -> None:
        features = torch.eye(3, 5)
        head = learned(features, torch.arange(3), prior=prior)
        assert head(features).isfinite().all()
        assert head(features).argmax(1).tolist() == [0, 1, 2]

    def test_identical_windows(self) -> None:
        features = torch.ones(6, 4)
        assert learned(features, torch.arange(6) % 2)(features).isfinite().all()

    def test_more_features_than_windows(self) -> None:
        features, targets = gaussians(n_classes=3, n_each=4, dim=50)
        assert (learned(features, targets)(features).argmax(1) == targets).all()

    def test_constant_and_duplicate_features(self) -> None:
        features, targets = gaussians()
        odd = torch.cat([features, features[:, :1], torch.zeros(len(features), 1)], dim=1)
        assert learned(odd, targets, shrinkage=0.0)(odd).isfinite().all()

    def test_statistics_that_are_no_covariance_are_refused(self) -> None:
        features, targets = gaussians()
        head = learned(features, targets)
        head.scatters[1] *= -5
        with pytest.raises(ValueError, match=r"no covariance.*earlier copy"):
            head(features)

    def test_float32_is_float64_to_four_digits(self) -> None:
        features, targets = gaussians(dim=40, n_each=100)
        x, _ = gaussians(dim=40, seed=5)
        double = learned(features, targets)(x).softmax(1)
        single = learned(features.float(), targets)(x.float()).softmax(1)
        torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-4)


def test_more_uncertain_means_make_wider_classes() -> None:
    features, targets = gaussians()
    head = learned(features, targets)
    few = head.learned(features[:2] + 1, torch.full((2,), 4)).posterior.across
    many = head.learned(features[:40] + 1, torch.full((40,), 4)).posterior.across
    assert few[4] > many[4] > 1
    assert few[0] == pytest.approx(float(many[0]), rel=1e-2)

"""The posterior of class means: densities and novelty against scipy, leading directions against eigh."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.posterior import BETWEEN, FIRST, LEADING, TRAILING, Posterior, _leading, _trailing
from tests.core.small import randn

DIM, N_BASE, FEW = 12, 4, 3


def head(**settings: bool) -> Discriminant:
    """Four base classes of twenty windows, and one taught with three."""
    means, mixing = 3 * randn(5, DIM, seed=1), randn(DIM, DIM, seed=0)
    targets = torch.cat([torch.arange(80) % N_BASE, torch.full((FEW,), N_BASE)])
    features = means[targets] + randn(len(targets), DIM, seed=2) @ mixing
    return (
        Discriminant.empty(DIM, n_base=N_BASE, shrinkage=0.1, **settings).double().learned(features, targets)
    )


def predictive(posterior: Posterior, column: int) -> np.ndarray:
    """The covariance of a window of a class, whitened, as a whole matrix."""
    axes = posterior.axes.numpy()
    inside = axes.T @ np.diag(posterior.along[column].numpy()) @ axes
    return inside + float(posterior.across[column]) * (np.eye(DIM) - axes.T @ axes)


def whitened(posterior: Posterior, features: Tensor) -> np.ndarray:
    return ((features - posterior.centre) @ posterior.whitening).numpy()


def test_densities_are_students_t() -> None:
    """Up to a constant and to how much of the determinant counts, which is the same for all windows."""
    posterior, x = head().posterior, 4 * randn(6, DIM, seed=3)
    assert posterior.freedom == 80 + FEW - 5 - DIM + 1
    ours = posterior.log_densities(posterior.distances(x))
    for column in range(5):
        mean, shape = posterior.means[column].numpy(), predictive(posterior, column)
        oracle = stats.multivariate_t(mean, shape, df=posterior.freedom).logpdf(whitened(posterior, x))
        constant = ours[:, column].numpy() - oracle
        np.testing.assert_allclose(constant, constant[0], rtol=0, atol=1e-8)


def test_the_first_statistic_is_the_log_likelihood_ratio_of_an_unknown_class() -> None:
    """Of a class anywhere around the base classes, as far as these are apart, and of the nearest."""
    posterior, x = head().posterior, 4 * randn(40, DIM, seed=3)
    statistics, nearest = posterior.novelty(posterior.distances(x))
    z, axes = whitened(posterior, x), posterior.axes.numpy()
    between = axes.T @ np.diag(posterior.between.numpy()) @ axes
    between += float(posterior.elsewhere) * (np.eye(DIM) - axes.T @ axes)
    anywhere = stats.multivariate_normal(np.zeros(DIM), np.eye(DIM) + between).logpdf(z)
    each = np.stack(
        [
            stats.multivariate_normal(posterior.means[c].numpy(), predictive(posterior, c)).logpdf(z)
            for c in range(5)
        ],
        axis=1,
    )
    assert nearest.tolist() == each.argmax(1).tolist() and len(set(nearest.tolist())) > 1
    np.testing.assert_allclose(statistics[:, 0].numpy(), anywhere - each.max(1), rtol=0, atol=1e-8)


def test_the_others_are_distances_in_all_directions_in_leading_and_in_trailing_ones() -> None:
    posterior, x = head().posterior, 4 * randn(10, DIM, seed=3)
    statistics, nearest = posterior.novelty(posterior.distances(x))
    for row, z, column in zip(statistics, whitened(posterior, x), nearest.tolist(), strict=True):
        off = z - posterior.means[column].numpy()
        square = off @ np.linalg.inv(predictive(posterior, column)) @ off
        assert float(row[1]) == pytest.approx(math.log(square))
        leading, trailing = (
            np.square(each.numpy() @ off) / float(posterior.across[column])
            for each in (posterior.leading, posterior.trailing)
        )
        wanted = [leading.sum(), leading[:FIRST].sum(), trailing.sum()]
        assert row[2:].tolist() == pytest.approx(np.log(wanted).tolist())


def test_unknown_classes_lie_as_far_apart_as_base_classes_do() -> None:
    """The prior of taught classes is wider than that, by a factor that was chosen for accuracy."""
    posterior = head().posterior
    variances = BETWEEN * posterior.between / (1 + FEW * BETWEEN * posterior.between)
    torch.testing.assert_close(posterior.along[N_BASE], 1 + variances)


def test_without_a_prior_only_distances_tell() -> None:
    posterior, x = head(prior=False).posterior, 4 * randn(10, DIM, seed=3)
    statistics, nearest = posterior.novelty(posterior.distances(x))
    assert statistics.isfinite().all()
    torch.testing.assert_close(statistics[:, 0], 0.5 * statistics[:, 1].exp())
    assert nearest.tolist() == posterior.distances(x)[2].argmin(1).tolist()


def test_at_a_mean_itself_all_is_finite() -> None:
    known = head()
    statistics, nearest = known.novelty(known.posterior.means[:0].new_zeros(1, DIM) + known.means[2])
    assert statistics.isfinite().all() and nearest.tolist() == [2]


class TestLeadingDirections:
    def spectrum(self, variances: Tensor) -> tuple[Tensor, Tensor]:
        rotation, _ = torch.linalg.qr(randn(len(variances), len(variances), seed=5))
        covariance = rotation @ variances.diag() @ rotation.T
        return covariance, torch.linalg.cholesky(covariance)

    def test_they_are_those_of_eigh(self) -> None:
        covariance, factor = self.spectrum(torch.logspace(6, -2, 40).double())
        ours = _leading(covariance, factor)
        _, vectors = np.linalg.eigh(covariance.numpy())
        # An eigenvector v is whitened by the inverse factor: a window x is far off along factor.T @ v there.
        theirs = torch.linalg.qr(factor.T @ torch.from_numpy(vectors[:, ::-1][:, :LEADING].copy()))[0]
        torch.testing.assert_close(ours @ ours.T, torch.eye(LEADING).double(), rtol=0, atol=1e-10)
        angles = torch.linalg.svdvals(ours @ theirs)
        assert angles.min() > 0.999

    def test_where_variances_are_close_they_hold_nearly_as_much(self) -> None:
        covariance, factor = self.spectrum(torch.linspace(1, 2, 40).double())
        ours = torch.linalg.qr(torch.linalg.solve(factor.T, _leading(covariance, factor).T))[0]
        most = torch.linspace(1, 2, 40)[-LEADING:].sum()
        assert (ours.T @ covariance @ ours).trace() > 0.93 * most

    @pytest.mark.parametrize("dim", [1, 3, LEADING])
    def test_of_few_features_they_are_all(self, dim: int) -> None:
        covariance, factor = self.spectrum(torch.linspace(1, 2, dim).double())
        ours = _leading(covariance, factor)
        torch.testing.assert_close(ours @ ours.T, torch.eye(dim).double(), rtol=0, atol=1e-10)

    def test_a_window_far_off_in_one_of_them_is_far_off_by_their_statistic(self) -> None:
        """Among sixty features its distance in all directions hardly grows."""
        spread = torch.logspace(1.5, -1, 60)
        features = randn(400, 60, seed=1, dtype=torch.float32) * spread
        targets = torch.arange(400) % 2
        known = Discriminant.empty(60, n_base=2, shrinkage=0.01).learned(features, targets)
        odd = known.means[:1].clone()
        odd[0, 0] += 5 * spread[0]
        (_, everywhere, leading, *_), usual = known.novelty(odd)[0][0], known.novelty(features)[0]
        assert leading > usual[:, 2].quantile(0.95) and everywhere < usual[:, 1].quantile(0.5)


class TestTrailingDirections:
    spectrum = TestLeadingDirections.spectrum

    def of(self, covariance: Tensor, factor: Tensor) -> Tensor:
        return _trailing(torch.linalg.inv(factor).T, factor).double()

    @pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
    def test_they_hold_nearly_the_least_variance_there_is(self, scale: float) -> None:
        variances = torch.logspace(2, -2, 60).double()
        covariance, factor = self.spectrum(scale * variances)
        ours = self.of(covariance, factor)
        n = round(60 * TRAILING)
        torch.testing.assert_close(ours @ ours.T, torch.eye(n).double(), rtol=0, atol=1e-5)
        basis = torch.linalg.qr(torch.linalg.solve(factor.T, ours.T))[0]
        assert (basis.T @ covariance @ basis).trace() < 1.5 * scale * variances[-n:].sum()

    def test_the_first_leading_directions_have_most_of_all(self) -> None:
        """The order matters: two of them are looked at by themselves."""
        covariance, factor = self.spectrum(torch.logspace(3, -1, 40).double())
        first = _leading(covariance, factor)[:FIRST]
        basis = torch.linalg.qr(torch.linalg.solve(factor.T, first.T))[0]
        most = torch.logspace(3, -1, 40)[:FIRST].sum()
        assert (basis.T @ covariance @ basis).trace() > 0.99 * most

    @pytest.mark.parametrize("dim", [1, 3, 8])
    def test_of_few_features_there_is_one(self, dim: int) -> None:
        covariance, factor = self.spectrum(torch.linspace(1, 2, dim).double())
        assert self.of(covariance, factor).shape == (1, dim)

    def test_what_breaks_a_relation_that_always_holds_is_far_off_by_the_last_statistic(self) -> None:
        """The last feature is the sum of the others, but for a little; a window breaks that, no more."""
        features = randn(200, DIM, seed=1)
        features[:, -1] = features[:, :-1].sum(1) + 0.01 * randn(200, seed=2)
        known = Discriminant.empty(DIM, n_base=2, shrinkage=1e-4).double()
        known = known.learned(features[:180], torch.arange(180) % 2)
        broken = features[180:].clone()
        broken[:, -1] += 0.3
        as_ever, off = (known.novelty(each)[0][:, -1] for each in (features[180:], broken))
        assert off.min() > as_ever.max()

"""The posterior of class means: densities and novelty against scipy, leading directions against eigh."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.posterior import (
    BETWEEN,
    FIRST,
    LEADING,
    TRAILING,
    Eigenvectors,
    Posterior,
    Statistics,
    _Dense,
    posterior_of,
)
from tests import naive
from tests.core.small import randn

DIM, N_BASE, FEW = 12, 4, 3


def head(**options: bool) -> Discriminant:
    """Four base classes of twenty windows, and one taught with three."""
    means, mixing = 3 * randn(5, DIM, seed=1), randn(DIM, DIM, seed=0)
    targets = torch.cat([torch.arange(80) % N_BASE, torch.full((FEW,), N_BASE)])
    features = means[targets] + randn(len(targets), DIM, seed=2) @ mixing
    return (
        Discriminant.empty(DIM, n_base=N_BASE, shrinkage=0.1, **options).double().learned(features, targets)
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
            for each in (posterior.directions[:LEADING], posterior.directions[LEADING:])
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
    assert nearest.tolist() == posterior.distances(x)[1][:, :-1].argmin(1).tolist()


@pytest.mark.parametrize("prior", [True, False])
def test_one_window_is_as_novel_as_among_others(prior: bool) -> None:
    """It has a way of its own, which is faster."""
    posterior, x = head(prior=prior).posterior, 4 * randn(20, DIM, seed=3)
    statistics, nearest = posterior.novelty(posterior.distances(x))
    one_by_one = [posterior.novelty_of_one(posterior.distances(row[None])) for row in x]
    each = torch.tensor([numbers for numbers, _ in one_by_one], dtype=statistics.dtype)
    torch.testing.assert_close(each, statistics, rtol=1e-9, atol=1e-9)
    assert [column for _, column in one_by_one] == nearest.tolist()


def test_one_window_beyond_all_numbers_gives_no_warning() -> None:
    known = head().float()
    _, statistics, _ = known.answers_of_one(torch.full((1, DIM), 1e30))
    assert not np.isfinite(statistics).all()


def test_at_a_mean_itself_all_is_finite() -> None:
    known = head()
    statistics, nearest = known.novelty(known.posterior.means[:0].new_zeros(1, DIM) + known.means[2])
    assert statistics.isfinite().all() and nearest.tolist() == [2]
    _, numbers, column = known.answers_of_one(known.means[2:3])
    assert np.isfinite(numbers).all() and column == 2


class TestLeadingDirections:
    def spectrum(self, variances: Tensor) -> tuple[Tensor, Tensor]:
        rotation, _ = torch.linalg.qr(randn(len(variances), len(variances), seed=5))
        covariance = rotation @ variances.diag() @ rotation.T
        return covariance, torch.linalg.cholesky(covariance)

    def test_they_are_those_of_eigh(self) -> None:
        covariance, factor = self.spectrum(torch.logspace(6, -2, 40).double())
        ours = _Dense.of(covariance).leading()
        _, vectors = np.linalg.eigh(covariance.numpy())
        # An eigenvector v is whitened by the inverse factor: a window x is far off along factor.T @ v there.
        theirs = torch.linalg.qr(factor.T @ torch.from_numpy(vectors[:, ::-1][:, :LEADING].copy()))[0]
        torch.testing.assert_close(ours @ ours.T, torch.eye(LEADING).double(), rtol=0, atol=1e-10)
        angles = torch.linalg.svdvals(ours @ theirs)
        assert angles.min() > 0.999

    def test_where_variances_are_close_they_hold_nearly_as_much(self) -> None:
        covariance, factor = self.spectrum(torch.linspace(1, 2, 40).double())
        ours = torch.linalg.qr(torch.linalg.solve(factor.T, _Dense.of(covariance).leading().T))[0]
        most = torch.linspace(1, 2, 40)[-LEADING:].sum()
        assert (ours.T @ covariance @ ours).trace() > 0.93 * most

    @pytest.mark.parametrize("dim", [1, 3, LEADING])
    def test_of_few_features_they_are_all(self, dim: int) -> None:
        covariance, _ = self.spectrum(torch.linspace(1, 2, dim).double())
        ours = _Dense.of(covariance).leading()
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
        return _Dense.of(covariance).trailing().double()

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
        first = _Dense.of(covariance).leading()[:FIRST]
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


class TestFewerWindowsThanFeatures:
    """The covariance by the eigenvectors of few windows, against whole matrices."""

    @settings(max_examples=30, deadline=None)
    @given(
        n_classes=st.integers(2, 5),
        n_each=st.integers(2, 6),
        n_shots=st.integers(0, 3),
        more=st.integers(0, 40),
        shrinkage=st.sampled_from([0.01, 0.1, 0.6, 0.9]),
        seed=st.integers(0, 2**16),
    )
    def test_it_is_the_textbook_discriminant(
        self, n_classes: int, n_each: int, n_shots: int, more: int, shrinkage: float, seed: int
    ) -> None:
        targets = torch.cat([torch.arange(n_classes * n_each) % n_classes, torch.full((n_shots,), n_classes)])
        dim = 2 * len(targets) + more
        spread = torch.logspace(1, -1, dim).double()
        features = spread * (randn(n_classes + 1, dim, seed=seed)[targets] + randn(len(targets), dim, seed=1))
        windows = spread * 2 * randn(9, dim, seed=3)
        known = Statistics.of(features, targets, n_classes)
        assert isinstance(known.scatter, Eigenvectors)
        posterior = posterior_of(known, shrinkage=shrinkage, prior=True, student=True)
        logits, novelty = naive.discriminant(features, targets, n_classes, shrinkage, windows)
        torch.testing.assert_close(posterior.logits(windows), logits, rtol=1e-9, atol=1e-9)
        statistics, _ = posterior.novelty(posterior.distances(windows))
        torch.testing.assert_close(statistics, novelty, rtol=1e-7, atol=1e-7)

    @pytest.mark.parametrize("prior", [True, False])
    def test_it_is_the_discriminant_of_their_scatter(self, prior: bool) -> None:
        targets, x = torch.arange(24) % 4, 4 * randn(6, 60, seed=3)
        features = randn(4, 60, seed=1)[targets] + randn(24, 60, seed=2) @ randn(60, 60, seed=0)
        by_scatter = Discriminant.empty(60, n_base=4, shrinkage=0.2, prior=prior).double()
        by_scatter = by_scatter.learned(features, targets)
        known = Statistics.of(features, targets, 4)
        posterior = posterior_of(known, shrinkage=0.2, prior=prior, student=prior)
        logits, statistics, nearest = by_scatter.answers(x)
        torch.testing.assert_close(posterior.logits(x), logits, rtol=1e-9, atol=1e-9)
        ours, ours_nearest = posterior.novelty(posterior.distances(x))
        torch.testing.assert_close(ours, statistics, rtol=1e-4, atol=1e-4)
        assert nearest.tolist() == ours_nearest.tolist()
        inverse = posterior.whitening @ posterior.whitening.T
        theirs = by_scatter.posterior.whitening @ by_scatter.posterior.whitening.T
        torch.testing.assert_close(inverse, theirs, rtol=1e-8, atol=1e-8)

    def test_single_and_identical_windows(self) -> None:
        for features in (torch.eye(3, 20), torch.ones(6, 20)):
            known = Statistics.of(features, torch.arange(len(features)) % 3, 3)
            posterior = posterior_of(known, shrinkage=0.1, prior=True, student=True)
            assert posterior.logits(features).isfinite().all()
            assert posterior.novelty(posterior.distances(features))[0].isfinite().all()

    def test_without_directions_there_is_no_novelty(self) -> None:
        known = Statistics.of(randn(12, 40, seed=1), torch.arange(12) % 2, 2)
        posterior = posterior_of(known, shrinkage=0.1, prior=True, student=True, directions=False)
        with pytest.raises(ValueError, match="directions=True"):
            posterior.novelty(posterior.distances(randn(2, 40, seed=2)))

"""Differential privacy: accounting by published values, sensitivity by search, and what is refused."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import AnchorInvClassifier, Privacy
from anchorinv.core.discriminant import Discriminant, square_of
from anchorinv.core.privacy import (
    NoisyAnchors,
    anchor_clip,
    clipped,
    gaussian_delta,
    gaussian_sigma,
    grouped_means,
    noisy_anchors,
    noisy_moments,
    private_statistics,
    sensitivity,
    unknown_generator,
)
from anchorinv.core.prototypes import aggregated
from anchorinv.core.types import Batch, stream
from tests.models import windows

# Small sets and much noise, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:with this noise")


@pytest.mark.parametrize(
    ("epsilon", "sigma", "l2", "delta"),
    [
        # Published with Google's differential-privacy library (go/noise/gaussian_noise_test.go).
        (0.1, 20.0, 2.0, 0.008751768145810),
        (math.log(3), 10.0, 5.0, 0.004159742234000802),
        (0.0, 0.5, 1.0, 0.6826894921370859),
    ],
)
def test_delta_is_that_of_a_published_calculator(epsilon, sigma, l2, delta):
    assert gaussian_delta(epsilon, sigma, l2) == pytest.approx(delta, abs=1e-10)


@given(st.floats(0.01, 50), st.floats(-9, -1), st.floats(0.1, 100))
@settings(max_examples=40, deadline=None)
def test_sigma_is_the_smallest_that_suffices(epsilon, exponent, l2):
    delta = 10**exponent
    sigma = gaussian_sigma(epsilon, delta, l2)
    assert gaussian_delta(epsilon, sigma, l2) <= delta * (1 + 1e-6)
    assert gaussian_delta(epsilon, 0.999 * sigma, l2) > delta


def test_delta_by_simulation():
    """The largest share of outputs by which exp(epsilon) does not do, counted."""
    rng, sigma, epsilon = np.random.default_rng(0), 1.2, 1.0
    drawn = rng.normal(0, sigma, 400_000)
    # Loss of an output of the first data set against the second, which lies one away.
    loss = ((drawn - 1) ** 2 - drawn**2) / (2 * sigma**2)
    counted = np.maximum(0, 1 - np.exp(epsilon - loss)).mean()
    assert gaussian_delta(epsilon, sigma) == pytest.approx(counted, abs=2e-3)


def moments(values, targets, weight):
    """All that noise is added to, as one vector."""
    sums = [values[targets == label].sum(0) for label in range(2)]
    return torch.cat([*sums, weight * (values.T @ values).flatten()])


@given(st.integers(0, 10_000), st.floats(0.3, 4.0), st.floats(0.05, 3.0))
@settings(max_examples=60, deadline=None)
def test_no_window_moves_statistics_further_than_the_sensitivity(seed, clip, weight):
    rng = stream(seed)
    values = clipped(10 * torch.randn(6, 2, generator=rng), clip).double()
    targets = torch.arange(6) % 2
    other = values.clone()
    # The worst are long, and opposite to each other as far as second moments allow.
    other[3] = clipped(-values[3:4] + torch.rand(1, 2, generator=rng).double(), clip)[0]
    moved = (moments(values, targets, weight) - moments(other, targets, weight)).norm()
    assert moved <= sensitivity(targets, None, Privacy(1.0, clip=clip), weight=weight) * (1 + 1e-9)


@given(st.integers(0, 10_000), st.floats(0.05, 3.0))
@settings(max_examples=40, deadline=None)
def test_no_person_moves_statistics_further_than_the_sensitivity(seed, weight):
    rng = stream(seed)
    values = clipped(5 * torch.randn(8, 2, generator=rng), 1.5).double()
    targets, people = torch.arange(8) % 2, torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    other = values.clone()
    other[people == 0] = clipped(5 * torch.randn(5, 2, generator=rng), 1.5).double()
    moved = (moments(values, targets, weight) - moments(other, targets, weight)).norm()
    bound = sensitivity(targets, people, Privacy(1.0, clip=1.5, unit="person"), weight=weight)
    assert moved <= bound * (1 + 1e-9)


def test_with_hardly_any_noise_statistics_are_those_of_all_windows():
    features = clipped(torch.randn(400, 3, generator=stream(0)), 1.9)
    targets = torch.arange(400) % 2
    features = features + targets[:, None] * 0.05
    empty = Discriminant.empty(3, n_base=2, shrinkage=0.1)
    exact = empty.learned(features, targets)
    noisy = private_statistics(empty, features, targets, None, Privacy(1000.0, 0.5), rng=stream(1))
    assert torch.allclose(noisy.means, exact.means, atol=0.01)
    pooled, known = (square_of(head.scatters.sum(0), 3) for head in (noisy, exact))
    assert torch.allclose(pooled, known, rtol=0.05, atol=5.0)


def test_noise_is_as_large_as_said():
    features, targets = torch.zeros(1000, 40), torch.arange(1000) % 2
    privacy, weight = Privacy(1.0, clip=2.0), math.sqrt(2) / 2.0
    empty = Discriminant.empty(40, n_base=2, shrinkage=0.1)
    head = private_statistics(empty, features, targets, None, privacy, rng=stream(0))
    sums = 500 * head.means
    wanted = privacy.noise * sensitivity(targets, None, privacy, weight=weight)
    assert float(sums.std()) == pytest.approx(wanted, rel=0.2)


def test_neighbours_are_told_apart_no_better_than_epsilon_allows():
    """The best test there is, a likelihood ratio of the release, on the two data sets farthest apart."""
    privacy, clip = Privacy(1.0, 0.01), 2.0
    weight = math.sqrt(2) / clip
    targets, n = torch.zeros(2, dtype=torch.int64), 20_000
    # By the sensitivity's own bound: ⟨x, y⟩ = -1 / (2 weight²) is the worst there is.
    angle = math.acos(-1 / (2 * weight**2) / clip**2)
    one = torch.tensor([[clip, 0.0], [0.0, 0.0]]).double()
    other = torch.tensor([[clip * math.cos(angle), clip * math.sin(angle)], [0.0, 0.0]]).double()
    reach = sensitivity(targets, None, privacy, weight=weight)
    assert moments_apart(one, other, weight) == pytest.approx(reach, rel=1e-6)
    sigma, rng = privacy.noise * reach, stream(0)
    towards = scaled_moments(other, weight) - scaled_moments(one, weight)
    towards = towards / towards.norm()
    told = [
        torch.stack([towards @ released(each, targets, sigma, weight, rng) for _ in range(n // 10)])
        for each in (one, other)
    ]
    for threshold in torch.linspace(-20, 20, 41):
        first, second = (float((each > threshold).double().mean()) for each in told)
        assert second <= math.exp(1.0) * first + 0.01 + 3 * math.sqrt(0.25 / (n // 10)) * 2


def scaled_moments(values, weight):
    """Sums and weighted second moments of one class, as one vector."""
    return torch.cat([values.sum(0), weight * (values.T @ values).flatten()])


def moments_apart(one, other, weight):
    return float((scaled_moments(one, weight) - scaled_moments(other, weight)).norm())


def released(values, targets, sigma, weight, rng):
    sums, second = noisy_moments(values, targets, sigma=sigma, weight=weight, rng=rng)
    return torch.cat([sums[0], weight * second.flatten()])


def test_noise_of_second_moments_is_as_large_as_said_and_symmetric():
    values, targets = torch.zeros(4, 60).double(), torch.zeros(4, dtype=torch.int64)
    sums, second = noisy_moments(values, targets, sigma=3.0, weight=0.5, rng=stream(0))
    assert torch.equal(second, second.T) and float(sums.std()) == pytest.approx(3.0, rel=0.3)
    assert float(second.diag().std()) == pytest.approx(6.0, rel=0.3)
    assert float(second[torch.triu_indices(60, 60, 1).unbind()].std()) == pytest.approx(6 / 2**0.5, rel=0.06)


def test_noise_is_not_repeated_by_a_seed():
    X, y = windows(60)
    some, same = (AnchorInvClassifier(privacy=Privacy(1.0), random_state=0).fit(X, y) for _ in range(2))
    assert not torch.equal(some.state_.head.means, same.state_.head.means)
    assert torch.equal(some.state_.trunk.components, same.state_.trunk.components)
    assert unknown_generator().initial_seed() != unknown_generator().initial_seed()


def test_a_private_model_goes_through_a_file_and_says_what_it_is(tmp_path):
    from anchorinv.persistence.bundle import read_facts
    from anchorinv.persistence.manifest import manifest, manifest_lines

    X, y = windows(60)
    model = AnchorInvClassifier(privacy=Privacy(2.0, 1e-6, unit="window"), random_state=0).fit(X, y)
    model.partial_fit(*windows(10, classes=("tongue",), seed=1))
    model.save(tmp_path / "m.anchorinv")
    loaded = AnchorInvClassifier.load(tmp_path / "m.anchorinv")
    assert loaded.privacy == Privacy(2.0, 1e-6) and (loaded.predict(X) == model.predict(X)).all()
    text = "\n".join(manifest_lines(manifest(*read_facts(tmp_path / "m.anchorinv"))))
    assert "epsilon 2, delta 1e-06 for each window" in text and "Not covered" in text
    assert not any("fingerprint" in line for line in loaded.history_)
    with pytest.raises(ValueError, match="forget the class and teach it anew"):
        loaded.add_shots(*windows(4))


@given(st.integers(0, 10_000), st.floats(0.3, 4.0), st.integers(1, 5), st.sampled_from(["window", "person"]))
@settings(max_examples=60, deadline=None)
def test_no_window_and_no_person_moves_anchors_further_than_the_sensitivity(seed, clip, quota, unit):
    rng, privacy = stream(seed), Privacy(1.0, unit=unit)
    labels = torch.tensor([0] * 13 + [1] * 11)
    people = torch.randint(0, 3, (24,), generator=rng)
    values = 5 * torch.randn(24, 2, generator=rng)
    other, whose = values.clone(), people == people[3] if unit == "person" else torch.arange(24) == 3
    other[whose] = -values[whose]  # the worst of long ones
    means = [
        grouped_means(Batch(each, labels, people), quota, privacy, clip=clip, rng=stream(seed, "groups"))
        for each in (values, other)
    ]
    moved = (means[0][0].values - means[1][0].values).norm()
    assert 0 < moved <= means[0][1] * (1 + 1e-9)


def test_groups_hold_every_window_and_noise_is_as_large_as_said():
    labels, privacy = torch.arange(120) % 2, Privacy(1.0)
    values = torch.randn(120, 30, generator=stream(0))
    exact, reach = grouped_means(Batch(values, labels), 6, privacy, clip=100.0, rng=stream(1))
    assert exact.labels.tolist() == [0] * 6 + [1] * 6 and reach == pytest.approx(2 * 100 / 10)
    for label in (0, 1):
        mean = exact.of(label).values.mean(0)
        assert torch.allclose(mean.float(), values[labels == label].mean(0), atol=1e-5)
    nothing = Batch(torch.zeros(1000, 400), torch.zeros(1000, dtype=torch.int64))
    noisy = noisy_anchors(nothing, 50, privacy, clip=3.0, rng=stream(2)).values
    assert noisy.shape == (50, 400)
    assert float(noisy.std()) == pytest.approx(privacy.noise * 2 * 3.0 / 20, rel=0.03)


def private_fecam(epsilon=8.0, method="fecam", **settings):
    settings = {
        "n_anchors": 4,
        "epochs": 1,
        "random_state": 0,
        "inversion_steps": 2,
        "finetune_steps": 2,
    } | settings
    return AnchorInvClassifier(method=method, privacy=Privacy(epsilon), **settings)


@pytest.mark.parametrize("method", ["fecam", "ridge", "anchorinv", "anchorinv-plus"])
def test_prototypes_of_all_classes_are_means_of_noisy_anchors(method):
    X, y = windows(60)
    model = private_fecam(method=method).fit(X, y).partial_fit(*windows(10, classes=("tongue",), seed=1))
    state = model.state_
    assert len(state.anchors.of(state.classes[-1])) == 2  # of ten shots
    for prototype, label in zip(state.head.prototypes, state.classes, strict=True):
        own = state.anchors.of(label).values
        assert 2 <= len(own) <= 4
        assert torch.allclose(prototype, own.mean(0), atol=1e-4)
    again = private_fecam(method=method).fit(X, y)
    assert not torch.equal(again.state_.head.prototypes[:2], state.head.prototypes[:2])


def test_with_hardly_any_noise_anchors_are_means_of_features():
    X, y = windows(60)
    model = private_fecam(1000.0)
    model.set_params(privacy=Privacy(1000.0, 0.9, clip=4.0), n_anchors=1).fit(X, y)
    features, recipe = model.transform(X), model._recipe(60)
    assert isinstance(recipe.memory.release, NoisyAnchors)
    for column, name in enumerate(model.classes_):
        mean = features[y == name].mean(0)
        near = model.state_.head.prototypes[column].numpy()
        assert np.linalg.norm(near - mean) < 0.2 * np.linalg.norm(mean)


def test_the_length_that_anchors_are_clipped_to_is_that_of_noise_not_of_recordings():
    X, y = windows(40)
    state = private_fecam().fit(X, y).state_
    assert anchor_clip(state, Privacy(1.0, clip=4.0)) == pytest.approx(2 * anchor_clip(state, Privacy(1.0)))
    assert anchor_clip(state, Privacy(1.0)) > 0


@pytest.mark.filterwarnings("default:with this noise")
@pytest.mark.parametrize("method", ["fecam", "discriminant"])
def test_whoever_trains_is_warned_of_noise_that_leaves_nothing(method):
    X, y = windows(80, classes=tuple("abcd"))
    settings = {"method": method, "epochs": 8, "random_state": 0, "n_anchors": 1}
    with pytest.warns(UserWarning, match=r"with this noise, .* of the 80 windows .*\(chance: 25%\)"):
        AnchorInvClassifier(privacy=Privacy(0.05), **settings).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AnchorInvClassifier(privacy=Privacy(1000.0, 0.9), **settings).fit(X, y)
    with pytest.warns(UserWarning, match="of the 6 windows just learned"):
        model.set_params(privacy=Privacy(0.05)).partial_fit(*windows(6, classes=("tongue",)))


def test_no_quantiles_of_held_out_windows_are_kept_beside_noisy_anchors(monkeypatch):
    """Methods with a network measure novelty on the windows that early stopping held out."""
    monkeypatch.setattr("anchorinv.settings.STEPS", range(1, 31))
    X, y = windows(210)
    plain = AnchorInvClassifier(method="fecam", random_state=0).fit(X, y)
    assert plain.state_.confidence is not None
    assert private_fecam(epochs=None).fit(X, y).state_.confidence is None
    with pytest.raises(ValueError, match="without differential privacy"):
        private_fecam(epochs=None, reject=0.05).fit(X, y)


def test_a_file_with_noisy_anchors_says_what_it_is_and_takes_no_more_shots(tmp_path):
    from anchorinv.persistence.bundle import read_facts
    from anchorinv.persistence.manifest import manifest, manifest_lines

    X, y = windows(60)
    model = private_fecam(2.0).fit(X, y)
    model.save(tmp_path / "m.anchorinv")
    loaded = AnchorInvClassifier.load(tmp_path / "m.anchorinv")
    assert (loaded.predict(X) == model.predict(X)).all()
    text = " ".join("\n".join(manifest_lines(manifest(*read_facts(tmp_path / "m.anchorinv")))).split())
    assert "Given the weights of the network, anchors and class means are differentially private" in text
    assert "epsilon 2, delta 1e-05 for each window" in text and "Not covered: the weights" in text
    assert not any("fingerprint" in line for line in loaded.history_)
    with pytest.raises(ValueError, match="forget the class and teach it anew"):
        loaded.add_shots(*windows(4))
    with pytest.raises(ValueError, match="4 windows has too few for a mean of 5"):
        loaded.partial_fit(*windows(4, classes=("tongue",)))


def test_what_cannot_be_private_is_refused():
    X, y = windows(24)
    with pytest.raises(ValueError, match="what protonet keeps would not be covered"):
        AnchorInvClassifier(method="protonet", privacy=Privacy(1.0)).fit(X, y)
    with pytest.raises(ValueError, match="pass groups to fit"):
        AnchorInvClassifier(method="fecam", privacy=Privacy(1.0, unit="person"), epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="keeps single samples"):
        AnchorInvClassifier(method="latent-replay", privacy="aggregate").fit(X, y)
    with pytest.raises(ValueError, match=r"privacy .*must be 'aggregate', a Privacy or None"):
        AnchorInvClassifier(privacy="much").fit(X, y)
    with pytest.raises(ValueError, match="pass groups to fit"):
        AnchorInvClassifier(privacy=Privacy(1.0, unit="person")).fit(X, y)
    with pytest.raises(ValueError, match="leave out sample_weight"):
        AnchorInvClassifier(privacy=Privacy(1.0)).fit(X, y, sample_weight=np.full(24, 2.0))
    with pytest.raises(ValueError, match="epsilon"):
        Privacy(-1.0)


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(6, 40))
@settings(max_examples=30, deadline=None)
def test_aggregates_hold_every_window_once(seed, size, n):
    values = torch.randn(n, 3, generator=stream(seed))
    groups = torch.randint(0, 4, (n,), generator=stream(seed))
    means = aggregated(Batch(values, groups, groups), size, rng=stream(seed, "order"))
    assert len(means) == n // size
    sizes = torch.full((n // size,), float(size))
    sizes[-1] += n % size
    assert torch.allclose(sizes @ means, values.sum(0), atol=1e-4)


def test_too_few_for_an_aggregate_are_refused():
    with pytest.raises(ValueError, match="4 windows has too few"):
        aggregated(Batch(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), 5, rng=None)

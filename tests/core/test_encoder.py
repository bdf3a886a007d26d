"""The encoder: blocks evened out, features bounded by windows, the same whatever the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv.core.blocks import BLOCKS
from anchorinv.core.encoder import MOST_FEATURES, Encoder, fit_encoder, suitable
from anchorinv.core.networks import encode
from anchorinv.core.types import stream
from tests.core.small import randn, untouched_generators


def windows(n: int = 60, n_chans: int = 3, n_times: int = 40, *, seed: int = 0) -> torch.Tensor:
    return randn(n, n_chans, n_times, seed=seed, dtype=torch.float32).cumsum(2) * 0.3


def test_every_block_has_its_name_and_source() -> None:
    for name, block in BLOCKS.items():
        assert block.name == name
        assert block.citation


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 80), st.sampled_from([1, 2, 5]), st.integers(16, 70))
def test_sizes_are_what_comes_out(n: int, n_chans: int, n_times: int) -> None:
    signals = windows(n, n_chans, n_times)
    encoder = fit_encoder(signals, rng=stream(0))
    features = encoder(signals)
    assert features.shape == (n, encoder.dim)
    assert features.isfinite().all()
    assert encoder.dim <= max(8, n // 2)


def test_blocks_count_alike_and_features_of_a_block_too() -> None:
    signals = windows(1000)
    encoder = fit_encoder(signals, most_random=0, rng=stream(0))
    variances = encoder(signals).double().var(0, correction=0)
    for part, size in zip(variances.split(list(encoder.sizes.values())), encoder.sizes.values(), strict=True):
        torch.testing.assert_close(part, torch.full_like(part, 1 / size), rtol=1e-3, atol=0)


def test_components_are_the_principal_ones() -> None:
    signals = windows(60)
    few = fit_encoder(signals, most_features=8, rng=stream(0))
    many = fit_encoder(signals, share=1e9, most_random=0, rng=stream(0))
    whole = many(signals).double()
    lengths = torch.linalg.svdvals(whole - whole.mean(0))[:8]
    found = few(signals).double()
    torch.testing.assert_close((found - found.mean(0)).norm(dim=0), lengths, rtol=1e-3, atol=1e-4)


def test_few_and_many_windows_give_the_same_components() -> None:
    """Of the two Gram matrices either may be the smaller."""
    signals = windows(120)
    n_columns = fit_encoder(signals, share=1e9, rng=stream(0)).n_columns
    assert 60 < n_columns < 120
    wide, tall = (fit_encoder(s, most_features=5, rng=stream(0)) for s in (signals[: n_columns - 9], signals))
    for encoder in (wide, tall):
        gram = encoder.components @ encoder.components.T
        torch.testing.assert_close(gram, torch.eye(5), rtol=0, atol=1e-4)


def test_random_projections_come_where_windows_are_many() -> None:
    assert fit_encoder(windows(40), rng=stream(0)).random.shape[1] == 0
    rich = fit_encoder(windows(1000), rng=stream(0))
    assert rich.random.shape[1] > 0
    assert (rich(windows(5))[:, -1] >= 0).all()


def test_the_same_generator_gives_the_same_encoder_and_no_global_one_is_touched() -> None:
    signals = windows(300)
    with untouched_generators():
        one, two, other = (fit_encoder(signals, rng=stream(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))
    assert not torch.equal(one.random, other.random)


def test_a_window_is_seen_alike_alone_and_among_others() -> None:
    signals = windows(100)
    encoder = fit_encoder(signals, rng=stream(0))
    alone = torch.cat([encoder(signal[None]) for signal in signals])
    torch.testing.assert_close(alone, encode(encoder, signals), rtol=1e-4, atol=1e-5)


def test_float32_agrees_with_float64() -> None:
    signals = windows(100).double()
    double = fit_encoder(signals, rng=stream(0))(signals)
    single = fit_encoder(signals.float(), rng=stream(0))(signals.float())
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["constant channel", "twice the same channel", "silence", "one value"])
def test_odd_channels_give_numbers(kind: str) -> None:
    signals = windows(40)
    match kind:
        case "constant channel":
            signals[:, 1] = 3.0
        case "twice the same channel":
            signals[:, 1] = signals[:, 0]
        case "silence":
            signals[:7] = 0.0
        case "one value":
            signals[:] = 1.0
    assert fit_encoder(signals, rng=stream(0))(signals).isfinite().all()


def test_three_hundred_channels_are_bounded() -> None:
    signals = windows(24, 300, 50)
    encoder = fit_encoder(signals, rng=stream(0))
    assert encoder.sizes["covariance"] == 32 * 33 // 2
    assert encoder.dim == 12 < MOST_FEATURES
    assert encoder(signals).isfinite().all()


def test_waveforms_are_for_one_or_two_channels() -> None:
    assert "waveform" in suitable((2, 64))
    assert "waveform" not in suitable((3, 64))
    assert "waveform" not in suitable((1, 16))


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="components"):
        Encoder((3, 40), ["covariance"], 7, 0)

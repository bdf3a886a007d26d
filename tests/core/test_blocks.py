"""Each block of single channels against a plain computation by numpy and scipy, window by window."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import signal, stats
from torch import Tensor

from anchorinv.core.blocks import (
    BANDS,
    FLOOR,
    Autocorrelation,
    Block,
    Envelope,
    Moments,
    Spectrum,
    TimeDomain,
    Waveform,
)
from tests.core.small import randn

BLOCKS = (TimeDomain, Spectrum, Autocorrelation, Moments, Envelope, Waveform)


def windows(n: int, n_chans: int, n_times: int) -> Tensor:
    """Coloured noise with an offset, of another strength in each channel."""
    drawn = randn(n, n_chans, n_times, seed=4).cumsum(2) * 0.3 + randn(n, n_chans, n_times, seed=5)
    return drawn * torch.logspace(-0.5, 0.5, n_chans)[:, None] + randn(1, n_chans, 1, seed=6)


def time_domain(channel: np.ndarray) -> list[float]:
    x = channel - channel.mean()
    d = [b - a for a, b in pairwise(x)]
    crossings = sum(a * b < 0 for a, b in pairwise(x)) / (len(x) - 1)
    turns = sum(a * b < 0 for a, b in pairwise(d)) / (len(d) - 1)
    length = np.mean(np.abs(d))
    return [math.log(np.abs(x).mean() + FLOOR), math.log(length + FLOOR), crossings, turns]


def spectrum(channel: np.ndarray) -> list[float]:
    length = len(channel) // 4
    window = signal.windows.hann(length, sym=True)
    _, power = signal.welch(
        channel,
        window=window,
        noverlap=length - max(1, length // 2),
        detrend="constant",
        return_onesided=False,
        scaling="spectrum",
    )
    power = power[1 : length // 2 + 1] * window.sum() ** 2  # without the mean; welch divides by it
    n = len(power)
    bands = []
    for i in range(BANDS):
        low = min(round(i * n / BANDS), n - 1)
        bands.append(power[low : max(low + 1, round((i + 1) * n / BANDS))].mean())
    return [math.log(band + 1e-3 * np.mean(bands) + 1e-8) for band in bands]


def autocorrelation(channel: np.ndarray) -> list[float]:
    x = channel - channel.mean()
    power = np.mean(x**2) + FLOOR**2
    return [np.mean([x[t] * x[t + lag] for t in range(len(x) - lag)]) / power for lag in (1, 2, 3, 5, 8)]


def moments(channel: np.ndarray) -> list[float]:
    deviation = channel.std()
    share = deviation / (deviation + FLOOR)
    kurtosis = stats.kurtosis(channel, fisher=False) * share**4
    ratio = np.abs(channel - channel.mean()).mean() / (deviation + FLOOR)
    return [stats.skew(channel) * share**3, math.log(kurtosis + FLOOR), ratio]


def parts(values: np.ndarray, n_parts: int) -> list[np.ndarray]:
    n = len(values)
    return [values[i * n // n_parts : -(-(i + 1) * n // n_parts)] for i in range(n_parts)]


def envelope(channel: np.ndarray) -> list[float]:
    strength = np.abs(channel - channel.mean())
    return [math.log(part.mean() + 10 * FLOOR) for part in parts(strength, 4)]


def waveform(channel: np.ndarray) -> list[float]:
    return [part.mean() for part in parts(channel, 32)]


#: Of one channel; and whether the features of a channel stand side by side, or channels of a feature do.
PLAIN: dict[type[Block], tuple[Callable[[np.ndarray], list[float]], bool]] = {
    TimeDomain: (time_domain, False),
    Spectrum: (spectrum, True),
    Autocorrelation: (autocorrelation, False),
    Moments: (moments, False),
    Envelope: (envelope, True),
    Waveform: (waveform, True),
}


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(("n_chans", "n_times"), [(1, 64), (2, 100), (2, 257)])
def test_is_what_a_plain_computation_says(kind: type[Block], n_chans: int, n_times: int) -> None:
    signals = windows(3, n_chans, n_times)
    compute, side_by_side = PLAIN[kind]
    found = kind(n_chans, n_times).double().fitted(signals)(signals)
    each = np.array([[compute(channel) for channel in window] for window in signals.numpy()])
    expected = each if side_by_side else each.swapaxes(1, 2)
    np.testing.assert_allclose(found.numpy(), expected.reshape(3, -1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(("n_chans", "n_times"), [(1, 16), (1, 500), (300, 64), (300, 16)])
def test_shapes(kind: type[Block], n_chans: int, n_times: int) -> None:
    if not kind.suits(n_chans, n_times):
        assert kind is Waveform
        return
    block, signals = kind(n_chans, n_times), windows(2, n_chans, n_times).float()
    features = block.fitted(signals)(signals)
    assert features.shape == (2, block.size) and features.isfinite().all()
    assert features.dtype == torch.float32


def test_the_waveform_suits_few_channels_of_enough_samples() -> None:
    suits = {shape: Waveform.suits(*shape) for shape in [(1, 32), (2, 500), (3, 500), (1, 31)]}
    assert suits == {(1, 32): True, (2, 500): True, (3, 500): False, (1, 31): False}


@pytest.mark.parametrize("kind", BLOCKS)
def test_silence_a_flat_channel_and_loud_ones_are_finite(kind: type[Block]) -> None:
    signals = windows(4, 2, 64).float()
    signals[0], signals[1, 0], signals[2] = 0.0, 3.0, signals[2] * 1e5
    assert kind(2, 64)(signals).isfinite().all()


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_window_does_not_depend_on_its_neighbours(kind: type[Block]) -> None:
    signals = windows(9, 2, 80)
    block = kind(2, 80).double()
    whole = block(signals)
    for size in (1, 4):
        split = torch.cat([block(part) for part in signals.split(size)])
        torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", BLOCKS)
def test_single_precision_is_enough(kind: type[Block]) -> None:
    signals = windows(9, 2, 128)
    double, single = kind(2, 128).double()(signals), kind(2, 128)(signals.float())
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


def test_amplitudes_are_levels_and_the_rest_does_not_know_them() -> None:
    signals = windows(5, 1, 128)
    louder = 10 * signals
    time = TimeDomain(1, 128)
    torch.testing.assert_close(time(louder)[:, 2:], time(signals)[:, 2:])
    torch.testing.assert_close(
        time(louder)[:, :2] - time(signals)[:, :2],
        torch.full((5, 2), math.log(10)).double(),
        atol=0.02,
        rtol=0,
    )
    for block in (Autocorrelation(1, 128), Moments(1, 128)):
        torch.testing.assert_close(block(louder), block(signals), rtol=0.01, atol=0.01)

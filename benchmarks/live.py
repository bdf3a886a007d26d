"""The signal path of a live source: what a window costs before it is classified, against two plain ways."""

import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace

import numpy as np

from anchorinv import GEOMETRIES, AnchorInvClassifier, Filter, Preprocessing, StreamingPredictor
from anchorinv.signal.pipeline import Pipeline, Window, Windows
from benchmarks.latency import RATE, STEP
from benchmarks.timing import Side, timed
from tests import naive

BAND = Filter(4, 40)
#: Windows of ours in one measurement; microseconds of one alone say little.
N_WINDOWS = 500


def recording(seconds: float) -> np.ndarray:
    """Return noise (22, n) with an offset."""
    n_chans = GEOMETRIES["bci2a"].n_chans
    return np.random.default_rng(5).normal(size=(n_chans, round(seconds * RATE))) + 20


def chunked(signals: np.ndarray) -> list[np.ndarray]:
    """Return them as they come, a tenth of a second at a time."""
    return np.split(signals, range(STEP, signals.shape[1], STEP), axis=1)


def our_windows(chunks: list[np.ndarray]) -> Iterator[Window]:
    """Yield the windows of a live source."""
    path = Windows(Pipeline(Preprocessing(filter=BAND, sfreq=RATE)), GEOMETRIES["bci2a"].n_times, STEP)
    for chunk in chunks:
        yield from path.push(chunk)


def against_filtering_anew(seconds: float) -> tuple[Side, Side]:
    """Time a window after so many seconds; the twin filters all of them for each, as scripts do."""
    sections, so_far, n_times = BAND.sections(RATE), recording(seconds), GEOMETRIES["bci2a"].n_times
    return _microseconds(lambda: naive.refiltered_window(sections, so_far, n_times), 1), _ours()


def against_the_least() -> tuple[Side, Side]:
    """Time a window where the twin does no more than it must: no gaps, names, units or rates."""
    sections, chunks, n_times = BAND.sections(RATE), _many_chunks(), GEOMETRIES["bci2a"].n_times
    return _microseconds(lambda: _run(naive.live_windows(sections, chunks, n_times)), len(chunks)), _ours()


def with_confidence(n_windows: int) -> tuple[Side, Side]:
    """Time a window with calibrated probabilities, p-value, rejection and smoothing; the twin has none."""
    rng = np.random.default_rng(5)
    signals, labels = rng.normal(size=(480, 8, 300)), np.arange(480) % 8
    signals *= 1 + 0.2 * rng.normal(size=(8, 8, 1))[labels]
    plain = AnchorInvClassifier(sfreq=200, random_state=5, network="never").fit(signals, labels)
    sure = copy(plain).set_params(reject=0.05)
    plain.state_ = replace(plain.state_, confidence=None)
    chunks = np.split(
        rng.normal(size=(8, 300 + 10 * n_windows)), range(300, 300 + 10 * n_windows, 10), axis=1
    )

    def run(model: AnchorInvClassifier, steady: str | None) -> Side:
        def work() -> None:
            live = StreamingPredictor(model, step=10, steady=steady)
            for chunk in chunks:
                live.feed(chunk)

        return _microseconds(work, len(chunks))

    return run(plain, None), run(sure, "balanced")


def _ours() -> Side:
    chunks = _many_chunks()
    # By chunks, not by windows: those before the first window take their time, too.
    return _microseconds(lambda: _run(our_windows(chunks)), len(chunks))


def _many_chunks() -> list[np.ndarray]:
    return chunked(recording((GEOMETRIES["bci2a"].n_times + (N_WINDOWS - 1) * STEP) / RATE))


def _run(windows: Iterator[object]) -> None:
    for _ in windows:  # let go one by one, as a live source does
        pass


def _microseconds(work: Callable[[], object], units: float) -> Side:
    # Of the processor: so short a side is slowed by whatever else runs, and not the next one alike.
    return timed(work, units / 1000, clock=time.process_time)

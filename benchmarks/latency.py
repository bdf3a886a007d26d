"""How long a live window takes, from the last sample to the probabilities, on one core."""

import time
from statistics import median, quantiles

import numpy as np
import torch

from anchorinv import GEOMETRIES, AnchorInvClassifier, Filter, Preprocessing, StreamingPredictor

#: Milliseconds asked for, per window of BCI shape on one core.
TARGET = 10.0
RATE, STEP = 250, 25


def latency(repeats: int) -> list[float]:
    """Return the milliseconds of each of so many windows (22, 1000), one every tenth of a second."""
    geometry, rng = GEOMETRIES["bci2a"], np.random.default_rng(5)
    shape = (8, geometry.n_chans, geometry.n_times)
    model = AnchorInvClassifier(
        sfreq=RATE,
        preprocessing=Preprocessing(filter=Filter(4, 40)),
        epochs=1,
        n_anchors=1,
        inversion_steps=0,
    ).fit(rng.normal(size=shape), [0, 1, 2, 3] * 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        live = StreamingPredictor(model, step=STEP)
        live.feed(rng.normal(size=shape[1:]))
        return [_milliseconds(live, rng.normal(size=(geometry.n_chans, STEP))) for _ in range(repeats + 5)][
            5:
        ]
    finally:
        torch.set_num_threads(threads)


def told(times: list[float]) -> str:
    """Return the figures as a sentence."""
    late = quantiles(times, n=20)[-1]
    return (
        f"window-latency-bci: {median(times):.1f} ms per live window on one core, 95 % within {late:.1f} ms "
        f"(asked: < {TARGET:g} ms)"
    )


def _milliseconds(live: StreamingPredictor, chunk: np.ndarray) -> float:
    start = time.perf_counter()
    found = live.feed(chunk)
    assert len(found) == 1
    return 1000 * (time.perf_counter() - start)

"""Windows out of a stream of samples, gaps and all."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anchorinv.stages import BLOCK, Stage


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A window (n_chans, n_times), where it starts in samples, and whether all of it was recorded."""

    start: int
    values: np.ndarray
    whole: bool


class Windows:
    """Chunks in, windows out: fill gaps, pass all stages, cut.

    Parameters
    ----------
    stages : see above.
    n_times, step : of the windows, in samples after the stages.
    ratio : samples after the stages per sample before them.
    """

    def __init__(self, stages: list[Stage], n_times: int, step: int, ratio: float = 1.0) -> None:
        self._stages, self._n_times, self._step, self._ratio = stages, n_times, step, ratio
        self._held: np.ndarray | None = None
        self._first = 0  # sample after the stages with which `held` starts
        self._next = 0  # where the next window starts
        self._seen = 0  # samples before the stages
        self._gaps: list[tuple[int, int]] = []  # missing stretches that a window may still touch
        self._last: np.ndarray | None = None

    def push(self, samples: np.ndarray) -> Iterator[Window]:
        """Take the next samples (n_chans, n), missing ones as NaN; yield the windows that are complete."""
        for start in range(0, samples.shape[1], BLOCK):
            piece = self._filled(samples[:, start : start + BLOCK])
            for stage in self._stages:
                piece = stage.push(piece)
            yield from self._cut(piece)

    def finish(self) -> Iterator[Window]:
        """Yield the last windows of a recording."""
        for i, stage in enumerate(self._stages):
            rest = stage.finish()
            for later in self._stages[i + 1 :]:
                rest = later.push(rest)
            yield from self._cut(rest)

    def _filled(self, samples: np.ndarray) -> np.ndarray:
        """Hold the last value through gaps, which keeps filters calm, and remember where they are."""
        missing = ~np.isfinite(samples)
        bad = np.flatnonzero(missing.any(axis=0))
        if len(bad):
            cuts = np.flatnonzero(np.diff(bad) > 1)
            firsts, lasts = bad[np.r_[0, cuts + 1]], bad[np.r_[cuts, len(bad) - 1]]
            here = zip((firsts + self._seen).tolist(), (lasts + self._seen + 1).tolist(), strict=True)
            self._gaps += here
            before = np.zeros(len(samples)) if self._last is None else self._last
            samples = np.concatenate([before[:, None], samples], axis=1)
            known = np.where(np.isfinite(samples), np.arange(samples.shape[1]), 0)
            latest = np.maximum.accumulate(known, axis=1)[:, 1:]
            samples = np.take_along_axis(samples, latest, axis=1)
        self._seen += samples.shape[1]
        self._last = samples[:, -1].copy()
        return samples

    def _cut(self, samples: np.ndarray) -> Iterator[Window]:
        if samples.shape[1] == 0:
            return
        held = samples if self._held is None else np.concatenate([self._held, samples], axis=1)
        end = self._first + held.shape[1]
        while self._next + self._n_times <= end:
            at = self._next - self._first
            yield Window(self._next, held[:, at : at + self._n_times].copy(), self._whole(self._next))
            self._next += self._step
        keep = min(max(self._next - self._first, 0), held.shape[1])
        self._held, self._first = held[:, keep:].copy(), self._first + keep
        before = self._first / self._ratio
        self._gaps = [gap for gap in self._gaps if gap[1] > before]

    def _whole(self, start: int) -> bool:
        first, last = start / self._ratio, (start + self._n_times) / self._ratio
        return not any(gap[0] < last and gap[1] > first for gap in self._gaps)

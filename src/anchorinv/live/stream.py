"""A stream on a thread of its own: windows classified, the signal for a display, the contact of channels."""

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorinv.errors import listed
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.live.lessons import Version, Versions
from anchorinv.live.sources import Chunk, StreamSource
from anchorinv.serving.streaming import Prediction, StreamingPredictor
from anchorinv.signal.pipeline import Window
from anchorinv.signal.readers import Inputs, Recording, select_inputs

#: A decision that is later than this, in seconds, leaves out the windows before it.
LATE = 0.5
#: Seconds without a sample after which a stream counts as lost.
QUIET = 2.0
#: Seconds between looks at the contact of channels.
_CONTACT = 0.5
#: States of a stream; from the last three no sample comes any more.
WAITING, STREAMING, ENDED, STOPPED, FAILED = "waiting", "streaming", "ended", "stopped", "failed"
OVER = (ENDED, STOPPED, FAILED)
#: Columns a second that a display draws, and seconds that are kept for one that falls behind or joins.
COLUMNS = 200.0
KEPT = 8.0
#: Seconds of samples by which contact is told.
LOOKED = 1.0
#: Share of a channel's power at 50 or 60 Hz that is mains hum rather than signal.
HUM = 0.5
#: Share of samples at the largest or smallest value that no signal has by chance.
CLIPPED = 0.02

OK, FLAT, SATURATED, MAINS, MISSING = "ok", "flat", "saturated", "mains hum", "missing"


class Scope:
    """The latest samples as a display needs them: smallest and largest of each short stretch.

    No peak is lost, however few columns there are; memory is that of a few seconds.

    Examples
    --------
    >>> scope = Scope(1, sfreq=1000)
    >>> scope.push(np.arange(12.0)[None])
    >>> first, columns = scope.since(0)
    >>> first, columns[:, 0].tolist()
    (0, [[0.0, 4.0], [5.0, 9.0]])
    """

    def __init__(self, n_chans: int, sfreq: float) -> None:
        self._each = max(1, round(sfreq / COLUMNS))  # samples
        self.rate = sfreq / self._each
        n_kept = max(1, math.ceil(KEPT * self.rate))
        self._ring = np.zeros((n_kept, n_chans, 2), dtype=np.float32)
        self._rest = np.zeros((n_chans, 0))
        self.n_columns = 0

    def push(self, samples: np.ndarray) -> None:
        """Take the next samples (n_chans, n)."""
        held = np.concatenate([self._rest, samples], axis=1) if self._rest.shape[1] else samples
        n, kept = held.shape[1] // self._each, len(self._ring)
        stretches = held[:, : n * self._each].reshape(len(held), n, self._each)
        self._rest = held[:, n * self._each :].copy()
        # NaN stays: a gap is drawn as one.
        columns = np.stack([stretches.min(2), stretches.max(2)], axis=2).transpose(1, 0, 2)[-kept:]
        places = (self.n_columns + n - len(columns) + np.arange(len(columns))) % kept
        self._ring[places] = columns
        self.n_columns += n

    def since(self, column: int) -> tuple[int, np.ndarray]:
        """Return the columns (n, n_chans, 2) from one on, or the oldest there are, and the first's number."""
        now, kept = self.n_columns, len(self._ring)
        first = max(column, now - kept, 0)
        return first, self._ring[np.arange(first, max(first, now)) % kept].copy()


class Contact:
    """How each channel's electrode seems to lie, by the last second of samples as recorded.

    Examples
    --------
    >>> contact = Contact(3, sfreq=200)
    >>> t = np.arange(200) / 200
    >>> noise = np.random.default_rng(0).normal(size=200)
    >>> contact.push(np.stack([noise, np.zeros(200), 5 * np.sin(2 * np.pi * 50 * t) + noise]))
    >>> contact.verdicts()
    ['ok', 'flat', 'mains hum']
    """

    def __init__(self, n_chans: int, sfreq: float) -> None:
        self._held = np.full((n_chans, max(8, round(LOOKED * sfreq))), np.nan)
        self._n_seen = 0
        n = self._held.shape[1]
        frequencies = np.fft.rfftfreq(n, 1 / sfreq)
        self._taper = np.hanning(n)
        self._above = frequencies >= 1
        # Below 125 Hz of rate there is no telling hum from what the signal itself has there.
        lines = [f for f in (50, 60) if f < 0.45 * sfreq]
        self._lines = [np.abs(frequencies - line) <= 1.5 for line in lines]

    def push(self, samples: np.ndarray) -> None:
        """Take the next samples (n_chans, n)."""
        n = self._held.shape[1]
        self._held = np.concatenate([self._held, samples], axis=1)[:, -n:]
        self._n_seen = min(n, self._n_seen + samples.shape[1])

    def verdicts(self) -> list[str]:
        """Return a word for each channel; ``ok`` until there are enough samples to tell."""
        if self._n_seen < self._held.shape[1]:
            return [OK] * len(self._held)
        return [self._verdict(channel) for channel in self._held]

    def _verdict(self, channel: np.ndarray) -> str:
        if np.isnan(channel).mean() > 0.1:
            return MISSING
        values = np.where(np.isnan(channel), np.nanmean(channel), channel)
        low, high = values.min(), values.max()
        if not high - low > 1e-9 * max(abs(low), abs(high)):
            return FLAT
        at_ends = max((values == low).sum(), (values == high).sum())
        # Coarse converters repeat values, too: only a run at the end of the range is a limit.
        if at_ends > max(3, CLIPPED * len(values)) and len(np.unique(values)) > 8:
            return SATURATED
        power = np.abs(np.fft.rfft((values - values.mean()) * self._taper)) ** 2
        total = power[self._above].sum()
        hum = max((power[line].sum() for line in self._lines), default=0.0)
        return MAINS if total > 0 and hum > HUM * total else OK


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """A window of a stream and its class."""

    start: int  # its first sample at the model's rate, counted over all beginnings of the stream
    window: Window
    prediction: Prediction
    version: Version  # of the model
    taken: float  # when its last sample was taken, as time.time() counts


class ClassifiedStream:
    """Windows of a source, a decision every ``step`` seconds by the latest of the session's models.

    ``on_window`` is called with each :class:`Classified` window; ``on_status`` with what the stream does now,
    and with the exception if it has failed; ``on_chunk`` when samples were taken, and whether the contact of
    a channel has changed. Samples are multiplied by ``scale``, channels renamed, and ``options`` are those of
    :class:`~anchorinv.serving.streaming.StreamingPredictor`.
    """

    def __init__(
        self,
        source: StreamSource,
        versions: Versions,
        *,
        step: float,
        on_window: Callable[[Classified], None],
        on_status: Callable[[str, Exception | None], None],
        on_chunk: Callable[[bool], None],
        scale: float = 1.0,
        rename: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        model = versions.now.model
        self.source, self._versions = source, versions
        self._on_window, self._on_status, self._on_chunk = on_window, on_status, on_chunk
        self.rate = float(model.sfreq_ or source.sfreq)
        self._inputs = _inputs(source, model, scale, rename)
        self.ch_names = tuple(source.ch_names[i] for i in self._inputs.channels)
        step_samples = max(1, round(step * self.rate))
        self._predictor = StreamingPredictor(model, step=step_samples, sfreq=source.sfreq, **options)
        self.scope = Scope(len(self.ch_names), source.sfreq)
        self._contact, self._contact_due = Contact(len(self.ch_names), source.sfreq), 0.0
        self.contact = [""] * len(self.ch_names)
        # Samples at the model's rate, so far and where the stream last began; at the source's, since then.
        self.position = self._origin = self._n_arrived = 0
        self._status, self._heard = WAITING, time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read the source, on a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="stream", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Read the source to its end, or until :meth:`stop`."""
        try:
            for chunk in self.source.chunks(self._stopped):
                self.take(chunk)
            self._now(STOPPED if self._stopped.is_set() else ENDED)
        except Exception as error:  # whatever a source raises, pages are told
            self._now(FAILED, error)

    def stop(self) -> None:
        """End, and release the source."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    @property
    def status(self) -> str:
        """What the stream does; one from which nothing has come for a while is waited for."""
        silent = self._status == STREAMING and time.monotonic() - self._heard > QUIET
        return WAITING if silent else self._status

    def _now(self, status: str, error: Exception | None = None) -> None:
        self._status, self._heard = status, time.monotonic()
        self._on_status(status, error)

    def take(self, chunk: Chunk) -> None:
        """Take samples in, and classify the windows that they complete."""
        if self.status != STREAMING:
            self._now(STREAMING)
        samples = chunk.samples[self._inputs.channels] * self._inputs.factors
        if chunk.begins and self.position:
            self._predictor.reset()
            self._origin, self._n_arrived = self.position, 0
        self._n_arrived += samples.shape[1]
        # The decision first: what pages show beside it can wait, and the contact of 64 channels takes longer.
        windows = self._predictor.cut(samples)
        windows = windows[-1:] if time.time() - chunk.time > LATE else windows
        version = self._versions.now
        self._predictor.model = version.model
        for window, prediction in zip(windows, self._predictor.predict(windows), strict=True):
            self._decided(window, prediction, version, chunk.time)
        self._heard = time.monotonic()
        self.scope.push(samples)
        self._contact.push(samples)
        before = self.contact
        # Not in the turn of a decision, which pages wait for; a stream that decides all the time has to.
        late = chunk.time >= self._contact_due + _CONTACT
        if chunk.time >= self._contact_due and (late or not windows):
            self._contact_due = chunk.time + _CONTACT
            self.contact = self._contact.verdicts()
        self._on_chunk(self.contact != before)

    def _decided(self, window: Window, prediction: Prediction, version: Version, arrived: float) -> None:
        n_times = version.model.n_times_
        # What has arrived since its last sample is the delay of resampling, and the rest of the chunk.
        after = self._n_arrived / self.source.sfreq - (window.start + n_times) / self.rate
        start = self._origin + window.start
        self.position = max(self.position, start + n_times)
        self._on_window(Classified(start, window, prediction, version, arrived - max(0.0, after)))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep decisions from waiting for other threads of this process; all is as it was afterwards.

    torch computes on one thread: a second one is not worth it for a window, and where a browser has its core
    it is waited for. The garbage collector, which stops all threads, leaves out what is there by now, most of
    it modules.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        torch.set_num_threads(n_threads)


def _inputs(
    source: StreamSource, model: AnchorInvClassifier, scale: float, rename: dict[str, str] | None
) -> Inputs:
    """Return which channels of a source the model takes, by name, and what brings them to its unit."""
    recording = Recording(Path(source.name), source.ch_names, source.units, source.sfreq, 0, _no_file)
    how = model.preprocessing_
    inputs = select_inputs(recording.renamed(rename), how, n_chans=model.n_chans_, scale=scale)
    units = {source.ch_names[i]: source.units[i] for i in inputs.channels}
    others = [f"{name} ({unit})" for name, unit in units.items() if unit not in ("", "V")]
    if how.unit is not None and others and scale == 1:
        raise ValueError(
            f"{source.name}: the model takes {how.unit}, and these channels are in another unit: "
            f"{listed(others)}; choose another stream, or give the factor to {how.unit} by --scale"
        )
    return inputs


def _no_file(start: int, stop: int, channels: list[int]) -> np.ndarray:
    raise TypeError("a live source is not read like a file")

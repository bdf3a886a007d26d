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

from anchorinv.core.networks import torch_threads
from anchorinv.errors import listed
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.live.lessons import Version, Versions
from anchorinv.live.sources import Chunk, StreamSource
from anchorinv.serving.streaming import Prediction, StreamingPredictor
from anchorinv.signal.pipeline import Window
from anchorinv.signal.readers import Inputs, Recording, select_inputs

#: Windows that are later than this, in seconds, are skipped up to the latest one.
LATE = 0.5
#: Seconds without a sample after which a stream counts as lost.
QUIET = 2.0
#: Status of a stream; after the last three no more samples come.
WAITING, STREAMING, ENDED, STOPPED, FAILED = "waiting", "streaming", "ended", "stopped", "failed"
OVER = (ENDED, STOPPED, FAILED)
#: Columns of a display per second, and seconds of them that are kept for a page that is late or new.
COLUMNS, KEPT = 200.0, 8.0
#: Seconds of samples from which the contact of channels is judged, and between judgements.
CONTACT_SECONDS, _CONTACT_EVERY = 1.0, 0.5
#: A channel has mains hum if more than this share of its power is at 50 or 60 Hz.
HUM = 0.5
#: A channel is saturated if more than this share of its samples equals the largest or smallest value.
CLIPPED = 0.02
OK, FLAT, SATURATED, MAINS, MISSING = "ok", "flat", "saturated", "mains hum", "missing"


class Scope:
    """The latest samples for a display: minimum and maximum of each column, so that no peak is lost.

    Examples
    --------
    >>> scope = Scope(1, sfreq=1000)
    >>> scope.push(np.arange(12.0)[None])
    >>> first, columns = scope.since(0)
    >>> first, columns[:, 0].tolist()
    (0, [[0.0, 4.0], [5.0, 9.0]])
    """

    def __init__(self, n_chans: int, sfreq: float) -> None:
        self._width = max(1, round(sfreq / COLUMNS))  # samples of a column
        self.rate = sfreq / self._width  # columns per second
        n_kept = max(1, math.ceil(KEPT * self.rate))
        self._ring = np.zeros((n_kept, n_chans, 2), dtype=np.float32)
        self._rest = np.zeros((n_chans, 0))
        self.n_columns = 0

    def push(self, samples: np.ndarray) -> None:
        """Take the next samples (n_chans, n)."""
        held = np.concatenate([self._rest, samples], axis=1) if self._rest.shape[1] else samples
        n, kept = held.shape[1] // self._width, len(self._ring)
        complete = held[:, : n * self._width].reshape(len(held), n, self._width)
        self._rest = held[:, n * self._width :].copy()
        # NaN stays: a gap is drawn as one.
        columns = np.stack([complete.min(2), complete.max(2)], axis=2).transpose(1, 0, 2)[-kept:]
        places = (self.n_columns + n - len(columns) + np.arange(len(columns))) % kept
        self._ring[places] = columns
        self.n_columns += n

    def since(self, column: int) -> tuple[int, np.ndarray]:
        """Return columns (n, n_chans, 2) from ``column`` on, if they are kept, and the first's number."""
        now, kept = self.n_columns, len(self._ring)
        first = max(column, now - kept, 0)
        return first, self._ring[np.arange(first, max(first, now)) % kept].copy()


class Contact:
    """The contact of each channel's electrode, judged from the last second of samples.

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
        self._held = np.full((n_chans, max(8, round(CONTACT_SECONDS * sfreq))), np.nan)
        self._n_seen = 0
        n = self._held.shape[1]
        frequencies = np.fft.rfftfreq(n, 1 / sfreq)
        self._taper = np.hanning(n)
        self._above = frequencies >= 1
        # At lower rates hum cannot be distinguished from the signal.
        lines = [f for f in (50, 60) if f < 0.45 * sfreq]
        self._lines = [np.abs(frequencies - line) <= 1.5 for line in lines]

    def push(self, samples: np.ndarray) -> None:
        """Take the next samples (n_chans, n)."""
        n = self._held.shape[1]
        self._held = np.concatenate([self._held, samples], axis=1)[:, -n:]
        self._n_seen = min(n, self._n_seen + samples.shape[1])

    def verdicts(self) -> list[str]:
        """Return a word for each channel; "ok" until there are enough samples."""
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
        n_clipped = max((values == low).sum(), (values == high).sum())
        # A coarse converter has few values, and repeats them without clipping.
        if n_clipped > max(3, CLIPPED * len(values)) and len(np.unique(values)) > 8:
            return SATURATED
        power = np.abs(np.fft.rfft((values - values.mean()) * self._taper)) ** 2
        total = power[self._above].sum()
        hum = max((power[line].sum() for line in self._lines), default=0.0)
        return MAINS if total > 0 and hum > HUM * total else OK


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """A window of a stream and its class."""

    start: int  # its first sample at the model's rate, counted over all restarts of the stream
    window: Window
    prediction: Prediction
    version: Version  # of the model
    taken: float  # when its last sample was taken, as time.time()


class ClassifiedStream:
    """Windows of a source, one every ``step`` seconds, classified by the latest of the session's models.

    ``on_window`` is called with each :class:`Classified` window; ``on_status`` with a new status, and the
    exception if the stream failed; ``on_chunk`` after each chunk, with whether the contact of a channel has
    changed. Samples are multiplied by ``scale``, channels renamed, and ``options`` are those of
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
        self.position = 0  # in samples at the model's rate
        self._origin = 0  # the position at the last restart
        self._n_arrived = 0  # samples at the source's rate since then
        self._status, self._heard = WAITING, time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the source on a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="stream", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Read the source to its end, or until :meth:`stop`."""
        try:
            for chunk in self.source.chunks(self._stopped):
                self.take(chunk)
            self._set_status(STOPPED if self._stopped.is_set() else ENDED)
        except Exception as error:  # a source may raise anything, and pages show it
            self._set_status(FAILED, error)

    def stop(self) -> None:
        """Stop reading, and release the source."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    @property
    def status(self) -> str:
        """One of the constants above; "waiting" if no sample has come for a while."""
        silent = self._status == STREAMING and time.monotonic() - self._heard > QUIET
        return WAITING if silent else self._status

    def _set_status(self, status: str, error: Exception | None = None) -> None:
        self._status, self._heard = status, time.monotonic()
        self._on_status(status, error)

    def take(self, chunk: Chunk) -> None:
        """Classify the windows that the next samples complete, and update the display."""
        if self.status != STREAMING:
            self._set_status(STREAMING)
        samples = chunk.samples[self._inputs.channels] * self._inputs.factors
        if chunk.begins and self.position:
            self._predictor.reset()
            self._origin, self._n_arrived = self.position, 0
        self._n_arrived += samples.shape[1]
        # Predictions first: the display can wait, and judging the contact of 64 channels takes longer.
        windows = self._predictor.cut(samples)
        windows = windows[-1:] if time.time() - chunk.time > LATE else windows
        version = self._versions.now
        self._predictor.model = version.model
        for window, prediction in zip(windows, self._predictor.predict(windows), strict=True):
            self._emit(window, prediction, version, chunk.time)
        self._heard = time.monotonic()
        self.scope.push(samples)
        self._contact.push(samples)
        before = self.contact
        # Not after a prediction, which pages wait for, unless every chunk has one.
        overdue = chunk.time >= self._contact_due + _CONTACT_EVERY
        if chunk.time >= self._contact_due and (overdue or not windows):
            self._contact_due = chunk.time + _CONTACT_EVERY
            self.contact = self._contact.verdicts()
        self._on_chunk(self.contact != before)

    def _emit(self, window: Window, prediction: Prediction, version: Version, arrived: float) -> None:
        n_times = version.model.n_times_
        # Samples after its last one: the delay of resampling, and the rest of the chunk.
        after = self._n_arrived / self.source.sfreq - (window.start + n_times) / self.rate
        start = self._origin + window.start
        self.position = max(self.position, start + n_times)
        self._on_window(Classified(start, window, prediction, version, arrived - max(0.0, after)))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep predictions from waiting for other threads of this process, until the end of the context.

    torch computes on one thread: a second one does not pay for a window, and if a browser uses its core, the
    first waits for it. The garbage collector, which stops all threads, skips the objects that exist by now,
    mostly modules.
    """
    gc.collect()
    gc.freeze()
    try:
        with torch_threads(1):
            yield
    finally:
        gc.unfreeze()


def _inputs(
    source: StreamSource, model: AnchorInvClassifier, scale: float, rename: dict[str, str] | None
) -> Inputs:
    """Return the model's channels of a source, by name, and their factors to its unit."""
    recording = Recording(Path(source.name), source.ch_names, source.units, source.sfreq, 0, _no_file)
    unit = model.preprocessing_.unit
    inputs = select_inputs(
        recording.renamed(rename), model.preprocessing_, n_chans=model.n_chans_, scale=scale
    )
    units = {source.ch_names[i]: source.units[i] for i in inputs.channels}
    others = [f"{name} ({other})" for name, other in units.items() if other not in ("", "V")]
    if unit is not None and others and scale == 1:
        raise ValueError(
            f"{source.name}: the model takes {unit}, and these channels are in another unit: "
            f"{listed(others)}; choose another stream, or give the factor to {unit} by --scale"
        )
    return inputs


def _no_file(start: int, stop: int, channels: list[int]) -> np.ndarray:
    raise TypeError("a live source is not read like a file")

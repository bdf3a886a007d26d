"""A stream as a model sees it: read, cut into windows and classified, on a thread of its own."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.errors import listed
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.live.monitor import Contact, Scope
from anchorinv.live.record import Version, Versions
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


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """A window of a stream and its class."""

    start: int  # its first sample at the model's rate, counted over all beginnings of the stream
    window: Window
    prediction: Prediction
    version: Version  # of the model
    taken: float  # when its last sample was taken, as time.time() counts


class ClassifiedStream:
    """Windows of a source, classified by whichever model is in use.

    Parameters
    ----------
    source : StreamSource
        Its channels are matched by name and unit, as those of files.
    versions : Versions
        Whose latest model classifies.
    step : float
        Seconds between decisions.
    on_window : callable
        Called with each :class:`Classified` window.
    on_status : callable
        Called with what the stream does now, and with the exception if it has failed.
    on_chunk : callable
        Called when samples were taken, and whether the contact of a channel has changed.
    scale : float, default=1.0
        What samples are multiplied by.
    rename : mapping or None, default=None
        Names of channels in the source, and those that the model knows.
    **options : object
        Of :class:`~anchorinv.serving.streaming.StreamingPredictor`.
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
        self.scope.push(samples)
        self._contact.push(samples)
        before = self.contact
        if chunk.time >= self._contact_due:
            self._contact_due = chunk.time + _CONTACT
            self.contact = self._contact.verdicts()
        windows = self._predictor.cut(samples)
        windows = windows[-1:] if time.time() - chunk.time > LATE else windows
        version = self._versions.now
        self._predictor.model = version.model
        for window, prediction in zip(windows, self._predictor.predict(windows), strict=True):
            self._decided(window, prediction, version, chunk.time)
        self._heard = time.monotonic()
        self._on_chunk(self.contact != before)

    def _decided(self, window: Window, prediction: Prediction, version: Version, arrived: float) -> None:
        n_times = version.model.n_times_
        # What has arrived since its last sample is the delay of resampling, and the rest of the chunk.
        after = self._n_arrived / self.source.sfreq - (window.start + n_times) / self.rate
        start = self._origin + window.start
        self.position = max(self.position, start + n_times)
        self._on_window(Classified(start, window, prediction, version, arrived - max(0.0, after)))


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

"""Sources of samples as they arrive: an iterable, a recording replayed, a board, Lab Streaming Layer.

Predictions are sent by Lab Streaming Layer, too, as a stream of markers.
"""

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

import numpy as np

from anchorinv.errors import import_extra, listed
from anchorinv.signal.preprocessing import UNITS, unit_of
from anchorinv.signal.readers import Recording

#: Seconds of samples in a chunk: short compared with a window, long compared with a call.
CHUNK = 0.02
#: Seconds by which time stamps may deviate before samples count as lost.
TOLERANCE = 0.25
#: Up to this many seconds of missing samples are filled with NaN; after a longer gap the source restarts.
LONGEST_GAP = 10.0
#: Time constant in seconds with which a device's clock that is fast or slow is followed.
_DRIFT = 10.0
#: Timeout in seconds for a stream of Lab Streaming Layer to be found, and for its samples to arrive.
WAIT = 5.0
#: Maximum number of samples pulled from it at once.
_MOST = 1 << 16
#: Units as the outlets of common recorders spell them.
_SPELLINGS = {"microvolts": "µV", "microvolt": "µV", "millivolts": "mV", "millivolt": "mV", "volts": "V"}


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Samples that arrived together.

    Parameters
    ----------
    samples : ndarray, shape (n_chans, n)
        Voltages in volts, others as the source has them; NaN where samples were lost.
    time : float
        When the last of them was taken, as ``time.time()``.
    begins : bool, default=False
        Whether the source restarts here, so that they do not continue the previous chunk.

    Examples
    --------
    >>> Chunk(np.zeros((8, 10)), time=0.0).samples.shape
    (8, 10)
    """

    samples: np.ndarray
    time: float
    begins: bool = False


class StreamSource(Protocol):
    """A source of samples; it is read when :meth:`chunks` is called."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def ch_names(self) -> tuple[str, ...]:
        """Names of the channels, in the order of the samples."""

    @property
    def units(self) -> tuple[str, ...]:
        """Of each channel: "V" for voltages, which must be in volts; another unit, or "" if unknown."""

    @property
    def sfreq(self) -> float:
        """Nominal sampling rate in Hz."""

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield samples as they arrive, until the source ends or ``stopped`` is set."""


class Iterated:
    """Chunks (n_chans, n) of any iterable, as fast as they come.

    Parameters
    ----------
    chunks : iterable of array_like
        Samples, channels first; missing ones as NaN.
    sfreq : float
        Their rate in Hz.
    ch_names : sequence of str or None, default=None
        None numbers them: ch1, ch2 ...
    unit : str, default=""
        "V" if they are in volts.
    name : str, default="samples"
        For messages.

    Examples
    --------
    >>> source = Iterated([np.zeros((2, 5)), np.ones((2, 5))], sfreq=100)
    >>> [chunk.samples.mean() for chunk in source.chunks(Event())]
    [np.float64(0.0), np.float64(1.0)]
    """

    def __init__(
        self,
        chunks: Iterable[Any],
        *,
        sfreq: float,
        ch_names: Sequence[str] | None = None,
        unit: str = "",
        name: str = "samples",
    ) -> None:
        self._chunks = iter(chunks)
        self._first = np.asarray(next(self._chunks, np.zeros((0, 0))), dtype=np.float64)
        if self._first.ndim != 2 or not len(self._first):
            raise ValueError(f"a chunk must have shape (n_chans, n), got {self._first.shape}")
        self.name, self.sfreq = name, float(sfreq)
        self.ch_names = tuple(ch_names or (f"ch{i}" for i in range(1, len(self._first) + 1)))
        self.units = (unit,) * len(self.ch_names)

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield the chunks of the iterable."""
        for chunk in itertools.chain([self._first], self._chunks):
            if stopped.is_set():
                return
            samples = np.asarray(chunk, dtype=np.float64)
            if samples.ndim != 2 or len(samples) != len(self.ch_names):
                raise ValueError(f"a chunk must have shape ({len(self.ch_names)}, n), got {samples.shape}")
            yield Chunk(samples, time.time())


class Replay:
    """A recording, replayed in real time or faster.

    Parameters
    ----------
    recording : Recording
        As :func:`~anchorinv.signal.readers.open_recording` opens it.
    speed : float, default=1.0
        Factor to real time; infinite for as fast as samples are processed.
    loop : bool, default=False
        Start again at the end.
    sfreq : float or None, default=None
        Sampling rate in Hz of a file that does not state it.

    Examples
    --------
    >>> from pathlib import Path
    >>> silence = Recording(Path("a.npy"), ("C3",), ("",), 100.0, 20, lambda a, b, c: np.zeros((1, b - a)))
    >>> [chunk.samples.shape[1] for chunk in Replay(silence, speed=10).chunks(Event())]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """

    def __init__(
        self, recording: Recording, *, speed: float = 1.0, loop: bool = False, sfreq: float | None = None
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed (={speed:g}) must be above 0; 1 is as it was recorded")
        if not recording.n_times:
            raise ValueError(f"{recording.path} holds no samples to replay")
        rate = recording.sfreq or sfreq
        if not rate:
            raise ValueError(f"{recording.path} does not say its rate; give it by --sfreq")
        self.name, self.ch_names, self.units = recording.path.name, recording.ch_names, recording.units
        self.sfreq, self._recording, self._speed, self._loop = float(rate), recording, speed, loop

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield its samples when they are due."""
        # Above ten times real time chunks become longer instead of more frequent, up to a second.
        size = max(1, round(self.sfreq * min(1.0, CHUNK * max(1.0, self._speed / 10))))
        due = time.monotonic()
        for turn in itertools.count() if self._loop else (0,):
            begins = turn > 0
            for piece in self._recording.pieces(range(len(self.ch_names))):
                for start in range(0, piece.shape[1], size):
                    samples = piece[:, start : start + size]
                    due += samples.shape[1] / self.sfreq / self._speed
                    # Stopping ends the wait; a source that is late does not wait.
                    if stopped.wait(max(0.0, due - time.monotonic())):
                        return
                    yield Chunk(samples, time.time(), begins=begins)
                    begins = False


class Timeline:
    """Detects lost samples by the time stamps of the others.

    Stamps jitter, and the clock of a device is a little fast or slow: both are followed slowly. A jump
    forwards is a gap of missing samples; a jump far forwards, or backwards, is a restart.

    Examples
    --------
    >>> line = Timeline(100.0)
    >>> stamps = np.r_[0:50, 150:200] / 100
    >>> [chunk.samples[0, :2].tolist() for chunk in line.filled(np.ones((1, 100)), stamps)]
    [[1.0, 1.0], [nan, nan], [1.0, 1.0]]
    """

    def __init__(self, sfreq: float) -> None:
        self._sfreq = sfreq
        self._next: float | None = None  # when the next sample is due

    def filled(self, samples: np.ndarray, stamps: np.ndarray, *, age: float = 0.0) -> Iterator[Chunk]:
        """Yield samples (n_chans, n) with NaN where some are missing between their stamps (n,).

        ``age`` is how many seconds ago the last one was taken.
        """
        start, begins, last = 0, self._next is None, time.time() - age
        while start < len(stamps):
            stop, jump = self._until_jump(stamps, start)
            if stop > start:
                yield Chunk(samples[:, start:stop], last - (stamps[-1] - stamps[stop - 1]), begins)
                begins = False
            if stop < len(stamps):
                begins = not 0 <= jump <= LONGEST_GAP
                if not begins:
                    gap = np.full((len(samples), round(jump * self._sfreq)), np.nan)
                    yield Chunk(gap, last - (stamps[-1] - stamps[stop]))
                self._next = float(stamps[stop])
            start = stop

    def _until_jump(self, stamps: np.ndarray, start: int) -> tuple[int, float]:
        """Return the end of the stamps without a jump, and the jump after them in seconds."""
        first = float(stamps[start]) if self._next is None else self._next
        late = stamps[start:] - (first + np.arange(len(stamps) - start) / self._sfreq)
        jumps = np.flatnonzero(np.abs(late) > TOLERANCE)
        n = int(jumps[0]) if len(jumps) else len(late)
        if n:
            weight = 1 - math.exp(-n / self._sfreq / _DRIFT)
            self._next = first + n / self._sfreq + weight * float(late[:n].mean())
        return start + n, float(late[n]) if n < len(late) else 0.0


class Board:
    """A board supported by BrainFlow: a name of ``brainflow.BoardIds`` without ``_BOARD``, or its number.

    Some have a serial ``port``, some a Bluetooth address (``mac``).
    """

    def __init__(self, board: str, *, port: str = "", mac: str = "") -> None:
        import_extra("brainflow", extra="boards")
        flow = import_extra("brainflow.board_shim", extra="boards")
        self._flow, self._number = flow, _board_number(flow, board)
        parameters = flow.BrainFlowInputParams()
        parameters.serial_port, parameters.mac_address = port, mac
        with warnings.catch_warnings():  # its first call imports pkg_resources, which is deprecated
            warnings.simplefilter("ignore")
            flow.BoardShim.disable_board_logger()
        self._shim = flow.BoardShim(self._number, parameters)
        self._rows = list(flow.BoardShim.get_exg_channels(self._number))
        self._clock = flow.BoardShim.get_timestamp_channel(self._number)
        self.name = f"{board} board"
        self.sfreq = float(flow.BoardShim.get_sampling_rate(self._number))
        self.ch_names = self._names()
        self.units = ("V",) * len(self._rows)

    def _names(self) -> tuple[str, ...]:
        try:
            names = list(self._flow.BoardShim.get_eeg_names(self._number))
        except self._flow.BrainFlowError:
            names = []
        if len(names) == len(self._rows):
            return tuple(names)
        return tuple(f"ch{i}" for i in range(1, len(self._rows) + 1))

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield samples until stopped."""
        line, problem = (
            Timeline(self.sfreq),
            "does not answer ({}); is it switched on, and is its port right?",
        )
        try:
            self._shim.prepare_session()
            self._shim.start_stream()
            problem = "was lost ({}); start again when it is back"
            while not stopped.wait(CHUNK):
                values = np.asarray(self._shim.get_board_data(), dtype=np.float64)
                if values.shape[1]:
                    stamps = values[self._clock]
                    # BrainFlow has voltages in microvolts.
                    yield from line.filled(values[self._rows] * 1e-6, stamps, age=time.time() - stamps[-1])
        except self._flow.BrainFlowError as error:
            raise OSError(f"{self.name} {problem.format(error)}") from None
        finally:
            for end in (self._shim.stop_stream, self._shim.release_session):
                with contextlib.suppress(self._flow.BrainFlowError):  # of a board that was lost
                    end()


def _board_number(flow: Any, board: str) -> int:
    known = {kind.name.removesuffix("_BOARD").lower(): int(kind.value) for kind in flow.BoardIds}
    number = int(board) if board.lstrip("-").isdigit() else known.get(board.lower().replace("-", "_"))
    if number is None or number not in known.values():
        raise ValueError(f"BrainFlow knows no board {board!r}; it knows {', '.join(sorted(known))}")
    return number


class LslSource:
    """A stream of Lab Streaming Layer, by its name, which must be found within ``wait`` seconds.

    Clocks are synchronised and lost samples are marked. A stream that ends or is silent is searched for
    again; when it is back with the same channels, reading continues.
    """

    def __init__(self, name: str, *, wait: float = WAIT) -> None:
        self._lsl = import_extra("pylsl", extra="live")
        self.name, self._wait = name, wait
        info = self._find(wait)
        if info is None:
            names = sorted({stream.name() for stream in self._lsl.resolve_streams(wait_time=1.0)})
            others = f"there is {listed(names)}" if names else "there is none at all; is its sender running?"
            raise ValueError(f"no stream of Lab Streaming Layer is called {name!r}; {others}")
        if info.channel_format() == self._lsl.cf_string or not info.nominal_srate() > 0:
            raise ValueError(f"stream {name!r} holds markers or events, not samples at a rate; name another")
        self.sfreq = float(info.nominal_srate())
        self.ch_names, self.units, self._factors = self._describe(info)

    def _describe(self, info: Any) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
        """Return names, units and factors of the channels, which are known once connected."""
        inlet = self._lsl.StreamInlet(info, recover=False)
        try:
            return _channels(inlet.info(timeout=self._wait))
        except (self._lsl.util.LostError, TimeoutError):
            raise OSError(f"stream {self.name!r} does not answer; is its sender still running?") from None
        finally:
            inlet.close_stream()

    def _find(self, wait: float) -> Any:
        streams = self._lsl.resolve_byprop("name", self.name, timeout=wait)
        return streams[0] if streams else None

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield samples until stopped, whenever the stream is available."""
        line = Timeline(self.sfreq)
        while not stopped.is_set():
            info = self._find(min(1.0, self._wait))
            if info is not None and self._is_readable(info):
                yield from self._pull(info, line, stopped)

    def _is_readable(self, info: Any) -> bool:
        """Return whether a stream answers; one with other channels than before is refused."""
        try:
            names, units, factors = self._describe(info)
        except OSError:
            return False  # lost again
        rate = info.nominal_srate()
        if (names, units, rate) != (self.ch_names, self.units, self.sfreq):
            raise ValueError(
                f"stream {self.name!r} came back with other channels: {listed(names)} at {rate:g} Hz, it "
                f"had {listed(self.ch_names)} at {self.sfreq:g} Hz; start again"
            )
        if not np.array_equal(factors, self._factors):
            raise ValueError(f"stream {self.name!r} came back in another unit; start again")
        return True

    def _pull(self, info: Any, line: Timeline, stopped: Event) -> Iterator[Chunk]:
        lsl = self._lsl
        flags = lsl.proc_clocksync | lsl.proc_monotonize
        inlet = lsl.StreamInlet(info, max_buflen=60, recover=False, processing_flags=flags, as_numpy=True)
        last = time.monotonic()
        try:
            # A failure of the sender's machine or network is not announced: silence ends a connection, too.
            while not stopped.is_set() and time.monotonic() - last < self._wait:
                rows, stamps = inlet.pull_chunk(timeout=CHUNK, max_samples=_MOST)
                if len(stamps):
                    last = time.monotonic()
                    samples = np.asarray(rows, dtype=np.float64).T * self._factors
                    yield from line.filled(samples, np.asarray(stamps), age=lsl.local_clock() - stamps[-1])
        except lsl.util.LostError:
            return  # to be found again
        finally:
            inlet.close_stream()


def _channels(info: Any) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Return names, units and factors (n_chans, 1) to volts from a description; channels may be unnamed."""
    names, units, factors = [], [], []
    channel = info.desc().child("channels").child("channel")
    for i in range(1, info.channel_count() + 1):
        described = channel.child_value("unit").strip()
        unit = unit_of(_SPELLINGS.get(described.lower(), described))
        names.append(channel.child_value("label") or f"ch{i}")
        units.append("V" if unit else described)
        factors.append(1 / UNITS[unit] if unit else 1.0)
        channel = channel.next_sibling("channel")
    return tuple(names), tuple(units), np.array(factors)[:, None]


class MarkerOutlet:
    """A stream of markers for predictions; each marker is the class, or the label of rejected windows.

    Its time stamp is that of the last sample of the window, not of the prediction, so that a recorder aligns
    it with the signal.
    """

    def __init__(self, name: str) -> None:
        self._lsl = import_extra("pylsl", extra="live")
        info = self._lsl.StreamInfo(name, "Markers", 1, 0, self._lsl.cf_string, f"anchorinv-{name}")
        self._outlet = self._lsl.StreamOutlet(info)

    def push(self, label: str, taken: float) -> None:
        """Send a class; ``taken`` is the ``time.time()`` of the last sample."""
        self._outlet.push_sample([label], self._lsl.local_clock() - (time.time() - taken))

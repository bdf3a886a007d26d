"""Sources of samples as they arrive: an iterable, a recording replayed, a board, Lab Streaming Layer.

Predictions leave by the last of them, too: as a stream of markers.
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

#: Seconds of samples that a source hands on at once: short against a window, long against a call.
CHUNK = 0.02
#: A stream that is further from its own clock than this, in seconds, has lost samples.
TOLERANCE = 0.25
#: Missing samples of so many seconds are marked as a gap; after more of them the source begins anew.
LONGEST_GAP = 10.0
#: Seconds in which the clock of a device that runs fast or slow is followed.
_DRIFT = 10.0
#: Seconds that a stream of Lab Streaming Layer is looked for, at the start and once it was lost.
WAIT = 5.0
#: Samples taken from it at once, at the most.
_MOST = 1 << 16
#: How the outlets of common recorders spell units.
_SPELLINGS = {"microvolts": "µV", "microvolt": "µV", "millivolts": "mV", "millivolt": "mV", "volts": "V"}


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Samples that arrived together.

    Parameters
    ----------
    samples : ndarray, shape (n_chans, n)
        Voltages in volts, others as the source has them; NaN where samples were lost.
    time : float
        When the last of them was taken, in seconds as ``time.time()`` counts.
    begins : bool, default=False
        Whether they do not follow what came before: a source that was lost for long, or starts again.

    Examples
    --------
    >>> Chunk(np.zeros((8, 10)), time=0.0).samples.shape
    (8, 10)
    """

    samples: np.ndarray
    time: float
    begins: bool = False


class StreamSource(Protocol):
    """Where samples come from; a value until :meth:`chunks` is called."""

    @property
    def name(self) -> str:
        """How people know it."""

    @property
    def ch_names(self) -> tuple[str, ...]:
        """Names of the channels, in the order of the samples."""

    @property
    def units(self) -> tuple[str, ...]:
        """Of each channel: "V" for voltages, which come in volts; otherwise whatever is known, or ""."""

    @property
    def sfreq(self) -> float:
        """Samples a second, as the source states it."""

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
        How people know it.

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
        """Yield what the iterable gives."""
        for chunk in itertools.chain([self._first], self._chunks):
            if stopped.is_set():
                return
            samples = np.asarray(chunk, dtype=np.float64)
            if samples.ndim != 2 or len(samples) != len(self.ch_names):
                raise ValueError(f"a chunk must have shape ({len(self.ch_names)}, n), got {samples.shape}")
            yield Chunk(samples, time.time())


class Replay:
    """A recording in its own time, or faster.

    Parameters
    ----------
    recording : Recording
        As :func:`~anchorinv.signal.readers.open_recording` opens it.
    speed : float, default=1.0
        Times as fast; infinite for as fast as samples are taken.
    loop : bool, default=False
        Begin again at the end.
    sfreq : float or None, default=None
        Rate in Hz of a file that does not say its own.

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
        """Yield its samples when their time has come."""
        # Faster than ten times, chunks grow rather than become more: up to a second of the recording.
        size = max(1, round(self.sfreq * min(1.0, CHUNK * max(1.0, self._speed / 10))))
        due = time.monotonic()
        for turn in itertools.count() if self._loop else (0,):
            begins = turn > 0
            for piece in self._recording.pieces(range(len(self.ch_names))):
                for start in range(0, piece.shape[1], size):
                    samples = piece[:, start : start + size]
                    due += samples.shape[1] / self.sfreq / self._speed
                    # Waiting is interrupted by the end; a source that is late does not wait.
                    if stopped.wait(max(0.0, due - time.monotonic())):
                        return
                    yield Chunk(samples, time.time(), begins=begins)
                    begins = False


class Timeline:
    """Which samples were lost, by the time stamps of those that came.

    Stamps jitter, and the clock of a device runs a little fast or slow: both are followed slowly. A jump is
    neither; forwards it is so many samples that are missing, far forwards or backwards a new beginning.

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

    def filled(self, samples: np.ndarray, stamps: np.ndarray, *, behind: float = 0.0) -> Iterator[Chunk]:
        """Yield samples (n_chans, n) with NaN where some are missing between their stamps (n,).

        ``behind`` is how long ago the last one was taken, in seconds.
        """
        start, begins, last = 0, self._next is None, time.time() - behind
        while start < len(stamps):
            stop, jump = self._until_jump(stamps, start)
            if stop > start:
                done = last - (stamps[-1] - stamps[stop - 1])
                yield Chunk(samples[:, start:stop], done, begins)
                begins = False
            if stop < len(stamps):
                begins = not 0 <= jump <= LONGEST_GAP
                if not begins:
                    gap = np.full((len(samples), round(jump * self._sfreq)), np.nan)
                    yield Chunk(gap, last - (stamps[-1] - stamps[stop]))
                self._next = float(stamps[stop])
            start = stop

    def _until_jump(self, stamps: np.ndarray, start: int) -> tuple[int, float]:
        """Return how far stamps follow each other, and the jump that comes then, in seconds."""
        first = float(stamps[start]) if self._next is None else self._next
        late = stamps[start:] - (first + np.arange(len(stamps) - start) / self._sfreq)
        odd = np.flatnonzero(np.abs(late) > TOLERANCE)
        n = int(odd[0]) if len(odd) else len(late)
        if n:
            followed = 1 - math.exp(-n / self._sfreq / _DRIFT)
            self._next = first + n / self._sfreq + followed * float(late[:n].mean())
        return start + n, float(late[n]) if n < len(late) else 0.0


class Board:
    """A board that BrainFlow knows: a name of ``brainflow.BoardIds`` without ``_BOARD``, or its number.

    Some have a serial ``port``, some a Bluetooth address (``mac``).
    """

    def __init__(self, board: str, *, port: str = "", mac: str = "") -> None:
        import_extra("brainflow", extra="boards")
        flow = import_extra("brainflow.board_shim", extra="boards")
        self._flow, self._number = flow, _board_number(flow, board)
        parameters = flow.BrainFlowInputParams()
        parameters.serial_port, parameters.mac_address = port, mac
        with warnings.catch_warnings():  # its first call imports pkg_resources, which says that it will go
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
        """Yield samples until stopped; a board that cannot be reached is an error in one sentence."""
        line, what = Timeline(self.sfreq), "does not answer ({}); is it switched on, and is its port right?"
        try:
            self._shim.prepare_session()
            self._shim.start_stream()
            what = "was lost ({}); start again when it is back"
            while not stopped.wait(CHUNK):
                values = np.asarray(self._shim.get_board_data(), dtype=np.float64)
                if values.shape[1]:
                    stamps = values[self._clock]
                    # BrainFlow has voltages in microvolts.
                    yield from line.filled(values[self._rows] * 1e-6, stamps, behind=time.time() - stamps[-1])
        except self._flow.BrainFlowError as error:
            raise OSError(f"{self.name} {what.format(error)}") from None
        finally:
            for end in (self._shim.stop_stream, self._shim.release_session):
                with contextlib.suppress(self._flow.BrainFlowError):  # it may be gone
                    end()


def _board_number(flow: Any, board: str) -> int:
    known = {kind.name.removesuffix("_BOARD").lower(): int(kind.value) for kind in flow.BoardIds}
    number = int(board) if board.lstrip("-").isdigit() else known.get(board.lower().replace("-", "_"))
    if number is None or number not in known.values():
        raise ValueError(f"BrainFlow knows no board {board!r}; it knows {', '.join(sorted(known))}")
    return number


class LslSource:
    """A stream of Lab Streaming Layer, by its name; it is looked for, for ``wait`` seconds.

    Clocks of other machines are brought to this one's and samples that were lost are marked. A stream that
    ends or falls silent is looked for again; once it is back, with the same channels, it goes on.
    """

    def __init__(self, name: str, *, wait: float = WAIT) -> None:
        self._lsl = import_extra("pylsl", extra="live")
        self.name, self._wait = name, wait
        info = self._look(wait)
        if info is None:
            there = sorted({each.name() for each in self._lsl.resolve_streams(wait_time=1.0)})
            seen = f"there is {listed(there)}" if there else "there is none at all; is its sender running?"
            raise ValueError(f"no stream of Lab Streaming Layer is called {name!r}; {seen}")
        if info.channel_format() == self._lsl.cf_string or not info.nominal_srate() > 0:
            raise ValueError(f"stream {name!r} holds markers or events, not samples at a rate; name another")
        self.sfreq = float(info.nominal_srate())
        self.ch_names, self.units, self._factors = self._described(info)

    def _described(self, info: Any) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
        """Return what the sender says of its channels, which comes with the connection, not before."""
        inlet = self._lsl.StreamInlet(info, recover=False)
        try:
            return _channels(inlet.info(timeout=self._wait))
        except (self._lsl.util.LostError, TimeoutError):
            raise OSError(f"stream {self.name!r} does not answer; is its sender still running?") from None
        finally:
            inlet.close_stream()

    def _look(self, wait: float) -> Any:
        found = self._lsl.resolve_byprop("name", self.name, timeout=wait)
        return found[0] if found else None

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield samples until stopped, whenever the stream is there."""
        line = Timeline(self.sfreq)
        while not stopped.is_set():
            info = self._look(min(1.0, self._wait))
            if info is not None and self._is_same(info):
                yield from self._connected(info, line, stopped)

    def _is_same(self, info: Any) -> bool:
        """Say whether a stream can be read now; one with other channels than before is refused."""
        try:
            names, units, factors = self._described(info)
        except OSError:
            return False  # gone again
        now, before = (names, units, info.nominal_srate()), (self.ch_names, self.units, self.sfreq)
        if now != before:
            raise ValueError(
                f"stream {self.name!r} came back with other channels: {listed(names)} at {now[2]:g} Hz, it "
                f"had {listed(self.ch_names)} at {self.sfreq:g} Hz; start again"
            )
        if not np.array_equal(factors, self._factors):  # of volts, which all voltages are brought to
            raise ValueError(f"stream {self.name!r} came back in another unit; start again")
        return True

    def _connected(self, info: Any, line: Timeline, stopped: Event) -> Iterator[Chunk]:
        lsl = self._lsl
        flags = lsl.proc_clocksync | lsl.proc_monotonize
        inlet = lsl.StreamInlet(info, max_buflen=60, recover=False, processing_flags=flags, as_numpy=True)
        heard = time.monotonic()
        try:
            # A sender whose machine or network fails does not say so: silence ends a connection, too.
            while not stopped.is_set() and time.monotonic() - heard < self._wait:
                rows, stamps = inlet.pull_chunk(timeout=CHUNK, max_samples=_MOST)
                if len(stamps):
                    heard = time.monotonic()
                    samples = np.asarray(rows, dtype=np.float64).T * self._factors
                    behind = lsl.local_clock() - stamps[-1]
                    yield from line.filled(samples, np.asarray(stamps), behind=behind)
        except lsl.util.LostError:
            return  # it is looked for again
        finally:
            inlet.close_stream()


def _channels(info: Any) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Return names, units and factors (n_chans, 1) to volts, as the description says; numbers without one."""
    names, units, factors = [], [], []
    channel = info.desc().child("channels").child("channel")
    for i in range(1, info.channel_count() + 1):
        spelled = channel.child_value("unit").strip()
        unit = unit_of(_SPELLINGS.get(spelled.lower(), spelled))
        names.append(channel.child_value("label") or f"ch{i}")
        units.append("V" if unit else spelled)
        factors.append(1 / UNITS[unit] if unit else 1.0)
        channel = channel.next_sibling("channel")
    return tuple(names), tuple(units), np.array(factors)[:, None]


class MarkerOutlet:
    """Predictions as a new stream of markers, a text each: the class, or the word for windows that fit none.

    A marker is stamped with the time at which the last sample of its window was taken, not with that of the
    decision, so that a recorder aligns it with the signal.
    """

    def __init__(self, name: str) -> None:
        self._lsl = import_extra("pylsl", extra="live")
        info = self._lsl.StreamInfo(name, "Markers", 1, 0, self._lsl.cf_string, f"anchorinv-{name}")
        self._outlet = self._lsl.StreamOutlet(info)

    def push(self, label: str, taken: float) -> None:
        """Send a class; ``taken`` in seconds as ``time.time()`` counts."""
        self._outlet.push_sample([label], self._lsl.local_clock() - (time.time() - taken))

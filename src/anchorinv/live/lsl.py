"""Lab Streaming Layer: its streams as a source of samples, and predictions as a stream of markers."""

import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import numpy as np

from anchorinv.errors import import_extra, listed
from anchorinv.live.sources import CHUNK, Chunk, Timeline
from anchorinv.signal.preprocessing import UNITS, unit_of

#: Seconds that a stream is looked for, at the start and once it was lost.
WAIT = 5.0
#: Samples taken at once, at the most.
_MOST = 1 << 16
#: How the outlets of common recorders spell units.
_SPELLINGS = {"microvolts": "µV", "microvolt": "µV", "millivolts": "mV", "millivolt": "mV", "volts": "V"}


class LslSource:
    """A stream of Lab Streaming Layer, by its name.

    Clocks of other machines are brought to this one's and samples that were lost are marked. A stream that
    ends or falls silent is looked for again; once it is back, with the same channels, it goes on.

    Parameters
    ----------
    name : str
        Of the stream.
    wait : float, default=5.0
        Seconds to look for it.
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
    """Predictions as a stream of markers, a text each: the class, or the word for windows that fit none.

    Parameters
    ----------
    name : str
        Of the stream that is made.

    Notes
    -----
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

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

    Clocks of other machines are brought to this one's, samples that were lost are marked, and a stream that
    ends is waited for; once it is there again, with the same channels, it goes on.

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
        # The description comes with the connection, not with the announcement.
        inlet = self._lsl.StreamInlet(info, recover=False)
        try:
            self.ch_names, self.units, self._factors = _channels(inlet.info(timeout=wait))
        finally:
            inlet.close_stream()

    def _look(self, wait: float) -> Any:
        found = self._lsl.resolve_byprop("name", self.name, timeout=wait)
        return found[0] if found else None

    def chunks(self, stopped: Event) -> Iterator[Chunk]:
        """Yield samples until stopped, whenever the stream is there."""
        line = Timeline(self.sfreq)
        while not stopped.is_set():
            if (info := self._look(min(1.0, self._wait))) is None:
                continue
            if info.channel_count() != len(self.ch_names) or info.nominal_srate() != self.sfreq:
                raise ValueError(
                    f"stream {self.name!r} came back with {info.channel_count()} channels at "
                    f"{info.nominal_srate():g} Hz, it had {len(self.ch_names)} at {self.sfreq:g} Hz; "
                    f"start again"
                )
            yield from self._connected(info, line, stopped)

    def _connected(self, info: Any, line: Timeline, stopped: Event) -> Iterator[Chunk]:
        lsl = self._lsl
        flags = lsl.proc_clocksync | lsl.proc_monotonize
        inlet = lsl.StreamInlet(info, max_buflen=60, recover=False, processing_flags=flags, as_numpy=True)
        try:
            while not stopped.is_set():
                rows, stamps = inlet.pull_chunk(timeout=CHUNK, max_samples=_MOST)
                if len(stamps):
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
    """Predictions as a stream of markers, one text a prediction: the class, or nothing that is known.

    Parameters
    ----------
    name : str
        Of the stream that is made.

    Notes
    -----
    A marker is stamped with the time at which the last sample of its window was taken, not with that of the
    decision, so that a recorder can put both beside each other.
    """

    def __init__(self, name: str) -> None:
        self._lsl = import_extra("pylsl", extra="live")
        info = self._lsl.StreamInfo(name, "Markers", 1, 0, self._lsl.cf_string, f"anchorinv-{name}")
        self._outlet = self._lsl.StreamOutlet(info)

    def push(self, label: str, taken: float) -> None:
        """Send a class; ``taken`` in seconds as ``time.time()`` counts."""
        self._outlet.push_sample([label], self._lsl.local_clock() - (time.time() - taken))

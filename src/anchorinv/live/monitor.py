"""What is shown of the signal: extremes of short stretches for a display, and the contact of each channel."""

import math

import numpy as np

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

    Parameters
    ----------
    n_chans : int
    sfreq : float
        Samples a second.

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

    Parameters
    ----------
    n_chans : int
    sfreq : float
        Samples a second.

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

"""Predictions steady over time: vote, averaging, hysteresis and dwell, each from the past alone.

An *outcome* of a window is one of the model's classes or "unknown", if the window was rejected. Each window
goes through what is switched on, in this order:

1. *averaging* of the shares of all outcomes: a window's probabilities, or everything for unknown if it was
   rejected, so that the averaged share of unknown is the share of rejected windows;
2. a *majority vote* among the outcomes with the largest shares, whose own shares are those of the votes;
3. *hysteresis*: another outcome needs a larger share than the one that holds, by a margin;
4. *dwell*: it needs to do so for some time without interruption.

What is not switched on changes nothing. The first window decides at once.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from anchorinv.errors import raise_if_any
from anchorinv.estimator import AnchorInvClassifier

#: The label of rejected windows, unless the model has another one.
UNKNOWN = "unknown"
#: Seconds without a whole window that never end what was held before.
SHORT_GAP = 1.0


@dataclass(frozen=True, slots=True)
class Smoothing:
    """How predictions of successive windows are made steady; each setting is off if it is None.

    Parameters
    ----------
    vote : float or None, default=None
        Majority vote [1]_ among the windows of so many seconds, this one included. A tie is decided for the
        outcome that holds, otherwise for the latest.
    time_constant : float or None, default=None
        Exponential averaging of the probabilities: a window that is so many seconds old weighs 1/e of the
        newest. The probabilities themselves, not their logarithms: windows that overlap are no independent
        evidence, and a single one must not veto a class.
    hysteresis : float or None, default=None
        Margin in [0, 1): another outcome takes over if its share exceeds that of the one that holds by more
        than this, as in a Schmitt trigger [2]_.
    dwell : float or None, default=None
        Seconds for which another outcome has to win without interruption until it takes over [3]_
        (debouncing).

    See Also
    --------
    Smoother : Applies them, window by window.

    References
    ----------
    .. [1] K. Englehart, B. Hudgins (2003). A robust, real-time control scheme for multifunction myoelectric
       control. IEEE Transactions on Biomedical Engineering 50(7), 848-854.
    .. [2] O. H. Schmitt (1938). A thermionic trigger. Journal of Scientific Instruments 15(1), 24-26.
    .. [3] G. Townsend, B. Graimann, G. Pfurtscheller (2004). Continuous EEG classification during motor
       imagery: simulation of an asynchronous BCI. IEEE Transactions on Neural Systems and Rehabilitation
       Engineering 12(2), 258-265.

    Examples
    --------
    >>> Smoothing(time_constant=0.2, dwell=0.1)
    Smoothing(vote=None, time_constant=0.2, hysteresis=None, dwell=0.1)
    >>> Smoothing(hysteresis=2)
    Traceback (most recent call last):
    ...
    anchorinv.errors.Problems: steady: hysteresis (=2) must be a margin from 0 to below 1
    """

    vote: float | None = None
    time_constant: float | None = None
    hysteresis: float | None = None
    dwell: float | None = None

    def __post_init__(self) -> None:
        problems = []
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None:
                continue
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if name == "hysteresis" and not (number and 0 <= value < 1):
                problems.append(f"{name} (={value!r}) must be a margin from 0 to below 1")
            if name != "hysteresis" and not (number and 0 < value < math.inf):
                problems.append(f"{name} (={value!r}) must be a number of seconds above 0")
        raise_if_any("steady", problems)

    @property
    def memory(self) -> float:
        """Seconds after which windows hardly matter any more; a longer gap ends what was held before it."""
        return max(SHORT_GAP, self.vote or 0, 3 * (self.time_constant or 0), self.dwell or 0)


#: Presets by name: the settings in windows of the model, that is in seconds for windows of one second.
PRESETS: Mapping[str, Smoothing] = MappingProxyType(
    {"balanced": Smoothing(time_constant=0.375, hysteresis=0.2)}
)


def preset(name: str, window: float) -> Smoothing:
    """Return a preset for windows of so many seconds: its times are multiples of their length.

    Chosen on forearm EMG in windows of 0.4 s (docs/predictions.md).

    Parameters
    ----------
    name : str
        ``"balanced"``.
    window : float
        Length of the model's windows in seconds.

    Returns
    -------
    Smoothing
    """
    if name not in PRESETS:
        raise ValueError(
            f"steady (={name!r}) is none of the presets; choose {', '.join(map(repr, PRESETS))}, or give "
            f"Smoothing(...)"
        )
    scaled = {
        field.name: value if field.name == "hysteresis" else round(value * window, 6)
        for field in fields(Smoothing)
        if (value := getattr(PRESETS[name], field.name)) is not None
    }
    return Smoothing(**scaled)


@dataclass(frozen=True, slots=True, eq=False)
class Steadied:
    """What a :class:`Smoother` makes of a window; without label and probabilities if samples are missing."""

    label: Any
    probabilities: np.ndarray | None  # (n_classes,): averaged if there is averaging, the window's otherwise
    unknown: float  # the share of unknown, averaged if there is averaging


class Smoother:
    """Make predictions steady, window by window, in the order of their time.

    It knows nothing of chunks: what comes out depends on the windows alone. Times are rounded to samples.

    - *Gaps*: a window with missing samples has no class, whatever was held. It interrupts a dwell. Averaging
      and votes go by time, so that what came before weighs less after it; after a gap longer than
      :attr:`Smoothing.memory` all starts anew.
    - *Classes that come and go* are matched by name, in whatever order. A new one starts with a share of 0;
      the shares and votes of one that was forgotten go to the others in proportion, and if it was the one
      that held, the next window decides at once.
    - *Rejected windows* are one more outcome, as the module says.

    Parameters
    ----------
    settings : Smoothing
    sfreq : float
        Rate in Hz of the samples that windows are counted in.
    unknown : object, default="unknown"
        Label of the outcome "unknown".

    Examples
    --------
    >>> smoother = Smoother(Smoothing(dwell=1.0), sfreq=1.0)
    >>> rows = [[0.9, 0.1], [0.2, 0.8], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]
    >>> [smoother(i, np.array(row), classes=["rest", "fist"]).label for i, row in enumerate(rows)]
    ['rest', 'rest', 'rest', 'rest', 'fist']
    """

    def __init__(self, settings: Smoothing, sfreq: float, *, unknown: Any = UNKNOWN) -> None:
        self.settings, self.unknown = settings, unknown
        self._n_vote, self._n_dwell, self._n_memory = (
            round((seconds or 0.0) * sfreq) for seconds in (settings.vote, settings.dwell, settings.memory)
        )
        self._n_constant = (settings.time_constant or 0.0) * sfreq
        self._names: list[Any] = []  # of the classes
        self.reset()

    def reset(self) -> None:
        """Forget all windows so far."""
        self._last: int | None = None  # start of the last window without a gap
        self._gap: int | None = None  # start of the first window of a gap that has not ended
        # (n_classes + 1,), averaged; the last is unknown. A list: of so few, numpy takes longer.
        self._shares: list[float] | None = None
        self._votes: deque[tuple[int, int]] = deque()  # start and outcome
        self._held: int | None = None  # the outcome that holds
        self._rival: tuple[int, int] | None = None  # since when another one wins, and which

    def __call__(
        self, start: int, probabilities: np.ndarray | None, *, classes: Any, rejected: bool = False
    ) -> Steadied:
        """Take the next window and return its steadied class.

        Parameters
        ----------
        start : int
            First sample of the window.
        probabilities : ndarray, shape (n_classes,), or None
            None if samples of the window are missing.
        classes : array-like, shape (n_classes,)
            The class of each probability.
        rejected : bool, default=False
            Whether the window is none of the classes.

        Returns
        -------
        Steadied
        """
        if self._last is not None and start <= self._last:
            raise ValueError(
                f"a window at {start} came after one at {self._last}; they are needed in the order of their "
                f"time, and reset() between recordings"
            )
        if probabilities is None:
            self._gap, self._rival = start if self._gap is None else self._gap, None
            return Steadied(None, None, 0.0)
        if self._gap is not None and start - self._gap > self._n_memory:
            self.reset()
        self._follow(np.asarray(classes).tolist())
        mean = self._average(start, probabilities, rejected)
        self._last, self._gap = start, None
        best, shares = self._elect(start, mean) if self._n_vote else (_largest(mean), mean)
        self._held = self._decide(start, best, shares)
        label = self.unknown if self._held == len(classes) else classes[self._held]
        *averaged, unknown = mean
        if self._n_constant and (known := sum(averaged)) > 0:
            probabilities = np.array([share / known for share in averaged], probabilities.dtype)
        return Steadied(label, probabilities, unknown)

    def _follow(self, names: list[Any]) -> None:
        """Match what is kept to the model's classes, which may have changed."""
        if names == self._names:
            return
        places = {name: place for place, name in enumerate(names)}
        # From an outcome before to the same one now; unknown stays the last, a forgotten class has none.
        now = [*(places.get(name) for name in self._names), len(names)]
        if self._shares is not None:
            shares = [0.0] * (len(names) + 1)
            for share, place in zip(self._shares, now, strict=True):
                if place is not None:
                    shares[place] = share
            known = sum(shares)
            self._shares = [share / known for share in shares] if known > 0 else None
        self._votes = deque((at, place) for at, vote in self._votes if (place := now[vote]) is not None)
        self._held = None if self._held is None else now[self._held]
        rival = None if self._rival is None else now[self._rival[1]]
        self._rival = None if self._rival is None or rival is None else (self._rival[0], rival)
        self._names = names

    def _average(self, start: int, probabilities: np.ndarray, rejected: bool) -> list[float]:
        """Return the shares of all outcomes (n_classes + 1,), averaged if that is switched on."""
        shares = [*([0.0] * len(probabilities) if rejected else probabilities.tolist()), float(rejected)]
        if self._n_constant:
            if self._shares is not None and self._last is not None:
                fade = math.exp((self._last - start) / self._n_constant)
                pairs = zip(self._shares, shares, strict=True)
                shares = [fade * before + (1 - fade) * now for before, now in pairs]
            self._shares = shares
        return shares

    def _elect(self, start: int, shares: list[float]) -> tuple[int, list[float]]:
        """Return the outcome that most of the latest windows vote for, and the shares of votes."""
        self._votes.append((start, _largest(shares)))
        while self._votes[0][0] <= start - self._n_vote:
            self._votes.popleft()
        counts = Counter(vote for _, vote in self._votes)
        most = max(counts.values())
        tied = [vote for vote, n in counts.items() if n == most]
        best = self._held if self._held in tied else next(v for _, v in reversed(self._votes) if v in tied)
        assert best is not None
        return best, [counts[outcome] / len(self._votes) for outcome in range(len(shares))]

    def _decide(self, start: int, best: int, shares: list[float]) -> int:
        """Return the outcome that holds from here on."""
        held, margin, rival = self._held, self.settings.hysteresis, self._rival
        self._rival = None
        if held is None or best == held:
            return best
        if margin is not None and shares[best] - shares[held] <= margin:
            return held
        since = start if rival is None or rival[1] != best else rival[0]
        if start - since >= self._n_dwell:
            return best
        self._rival = since, best
        return held


def _largest(shares: list[float]) -> int:
    return shares.index(max(shares))


def smoother_of(steady: Smoothing | str | None, model: AnchorInvClassifier) -> Smoother | None:
    """Return what makes predictions of a model steady, by settings or the name of a preset.

    None if nothing is to be done.
    """
    if steady is not None and not isinstance(steady, Smoothing | str):
        raise ValueError(f"steady (={steady!r}) must be None, 'balanced' or Smoothing(...)")
    if steady is None or steady == Smoothing():
        return None
    if model.sfreq_ is None:
        raise ValueError(
            "predictions are made steady over seconds, and the model does not know its rate; train it with "
            "sfreq (--sfreq)"
        )
    settings = preset(steady, model.n_times_ / model.sfreq_) if isinstance(steady, str) else steady
    return Smoother(settings, model.sfreq_, unknown=UNKNOWN if model.reject is None else model.reject_label_)

"""Windows on their way to a model, watched: how far they were from its base data, told at the end or once."""

import numpy as np

from anchorinv.estimator import AnchorInvClassifier
from anchorinv.inputs import warn_drift
from anchorinv.model.distances import FEWEST
from anchorinv.model.drift import Drift, drift
from anchorinv.model.statistics import Statistics
from anchorinv.signal.pipeline import Window


class Watch:
    """Look at windows on their way to a model, to tell how far they were from its base data.

    Parameters
    ----------
    model : fitted.
    at_once : windows held until they are looked at together, which is faster.
    """

    def __init__(self, model: AnchorInvClassifier, *, at_once: int = 32) -> None:
        self._model, self._at_once = model, at_once
        self._waiting: list[np.ndarray] = []
        self._seen: Statistics | None = None

    def __call__(self, signals: np.ndarray) -> None:
        """Take in windows (n, n_chans, n_times)."""
        self._waiting.append(signals)
        if sum(map(len, self._waiting)) >= self._at_once:
            self._look()

    @property
    def drift(self) -> Drift | None:
        """How far all of them are; None if there was none."""
        self._look()
        if self._seen is None:
            return None
        model = self._model
        return drift(
            self._seen, model.statistics_, model.ch_names_, n_times=model.n_times_, sfreq=model.sfreq_
        )

    @property
    def n_seen(self) -> int:
        """Windows so far."""
        return (self._seen.n if self._seen else 0) + sum(map(len, self._waiting))

    def _look(self) -> None:
        if self._waiting:
            signals = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
            self._waiting = []
            found = Statistics.of(signals, shapes=self._model.statistics_.has_shapes)
            self._seen = found if self._seen is None else self._seen + found


class Alarm:
    """Watch a live source and warn once, as soon as its windows are plainly unlike the base data.

    After the first window only if every channel is extreme: a single one may hold an artefact. Then windows
    so far are judged when there are :data:`~anchorinv.model.distances.FEWEST`, and whenever their number has
    doubled. Windows that overlap say the same twice, so those between are passed over.
    """

    def __init__(self, model: AnchorInvClassifier) -> None:
        self._watch: Watch | None = Watch(model, at_once=1)
        self._n_times = model.n_times_
        self._due, self._start = 1, 0  # windows until the next judgement; where the next one may begin

    def __call__(self, window: Window) -> None:
        """Take in a window; warn if it is time to."""
        if self._watch is None or not window.whole or window.start < self._start:
            return
        self._start = window.start + self._n_times
        self._watch(window.values[None])
        if self._watch.n_seen < self._due:
            return
        found, few = self._watch.drift, self._watch.n_seen < FEWEST
        self._due = FEWEST if few else 2 * self._watch.n_seen
        if found is not None and found.far and (not few or bool(found.beyond.all())):
            self._watch = None
            warn_drift(found)

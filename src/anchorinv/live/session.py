"""A live session: a model on a stream, taught while it runs; what pages show is read from here.

Samples come in on one thread and are classified there; lessons are learned on another one, by a copy of the
model that takes its place when it has learned. Nothing waits for a page.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.errors import looks_like, shown
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.live.lessons import (
    DONE,
    REVIEW,
    EventLog,
    Lesson,
    NoveltyWatch,
    Practice,
    Taught,
    Versions,
    identity_of,
    new_file,
    teach,
)
from anchorinv.live.sources import StreamSource
from anchorinv.live.stream import OVER, Classified, ClassifiedStream
from anchorinv.novelty import SHOTS
from anchorinv.serving.streaming import Prediction, Smoothing
from anchorinv.signal.drift import Drift
from anchorinv.validation import as_label

#: Seconds between decisions, and of the countdown before windows are recorded.
STEP, COUNTDOWN = 0.1, 3.0
#: Windows of a lesson, at the most.
MOST_SHOTS = 100
#: Seconds of predictions that a page shows, and at most so many of them.
RIBBON, MOST_PREDICTIONS = 30.0, 1000
#: Seconds of a prompt in practice, and before it.
PRACTICE_HOLD, PRACTICE_READY = 4.0, 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LivePrediction:
    """A prediction as pages and logs have it."""

    at: float  # end of the window, in seconds of the stream
    label: str | None  # None if samples are missing
    unknown: bool
    probability: float | None
    novelty: float | None
    taken: float  # when its last sample was taken, and when it was classified, as time.time() counts
    decided: float
    model: int  # number of the model


class LiveSession:
    """A model on a stream, and what is done with it.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted; it stays as it is.
    source : StreamSource
        Its channels are matched by name and unit, as those of files.
    step : float, default=0.1
        Seconds between decisions.
    steady : Smoothing, str or None, default=None
        As in :class:`~anchorinv.serving.streaming.StreamingPredictor`.
    folder : Path or None, default=None
        Where models and the log go; None keeps neither.
    name : str, default="model"
        With which names of files begin.
    scale : float, default=1.0
        What samples are multiplied by.
    rename : mapping or None, default=None
        Names of channels in the source, and those that the model knows.
    allow_recordings : bool, default=False
        Save a model even if it keeps recordings of people.
    """

    def __init__(
        self,
        model: AnchorInvClassifier,
        source: StreamSource,
        *,
        step: float = STEP,
        steady: Smoothing | str | None = None,
        folder: Path | None = None,
        name: str = "model",
        scale: float = 1.0,
        rename: dict[str, str] | None = None,
        allow_recordings: bool = False,
    ) -> None:
        self.folder, self.name, self._allow_recordings = folder, name, allow_recordings
        self.versions, self.watch = Versions(model), NoveltyWatch()
        self.stream = ClassifiedStream(
            source,
            self.versions,
            step=step,
            steady=steady,
            scale=scale,
            rename=rename,
            on_window=self._decided,
            on_status=self._stream_is,
            on_chunk=self._arrived,
            on_drift=self._drifted,
        )
        self.lock = threading.RLock()
        self._listeners: list[Callable[[], object]] = []
        self._teacher = ThreadPoolExecutor(1, "lessons")
        self.revision = 0  # of what pages show beside predictions
        n_kept = min(MOST_PREDICTIONS, round(RIBBON / step) + 1)
        self.predictions: deque[LivePrediction] = deque(maxlen=n_kept)
        self.n_predictions = 0
        self.lesson: Lesson | None = None
        self.practice: Practice | None = None
        self.busy: str | None = None
        self.report: dict[str, Any] | None = None
        self.problem: str | None = None
        self.warning: str | None = None
        self.log = EventLog(folder, name) if folder is not None else None
        self._say("begin", source=source.name, sfreq=source.sfreq, channels=self.stream.ch_names)

    @property
    def model(self) -> AnchorInvClassifier:
        """The model in use."""
        return self.versions.now.model

    # -- the stream ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the source, on a thread of its own."""
        self.stream.start()

    def run(self) -> None:
        """Read the source to its end, or until :meth:`stop`."""
        self.stream.run()

    def stop(self) -> None:
        """End: the source is released, a lesson that is being learned is finished."""
        self.stream.stop()
        self._teacher.shutdown(wait=True)
        if self.log is not None:
            self._say("end")
            self.log.close()

    def _decided(self, each: Classified) -> None:
        prediction, model = each.prediction, each.version.model
        shown_now = LivePrediction(
            at=(each.start + model.n_times_) / self.stream.rate,
            label=None if prediction.label is None else str(prediction.label),
            unknown=model.reject is not None and prediction.label == model.reject_label_,
            probability=_probability(prediction, model),
            novelty=prediction.novelty,
            taken=each.taken,
            decided=time.time(),
            model=each.version.number,
        )
        with self.lock:
            self.predictions.append(shown_now)
            self.n_predictions += 1
            if self.lesson is not None and self.lesson.offer(each.start, each.window, prediction.raw_label):
                self.revision += 1
                if self.lesson.phase == REVIEW and self.lesson.hands_free:
                    self.learn()
            if self.practice is not None:
                self.revision += self.practice.offer(each.start, model.n_times_, prediction.label)
            due = self.watch.offer(each.start, each.window, prediction, model)
            # Where all windows are odd, as in another unit, none of them is a new class.
            if due and not (self.busy or self.lesson or self.warning):
                self._begin("looking", self._look, model, self.watch.windows)
        self._say("prediction", **asdict(shown_now))

    def _look(self, model: AnchorInvClassifier, windows: np.ndarray) -> None:
        found = model.suggest_class(windows, least=SHOTS)
        with self.lock:
            if found is not None and self.model is model:
                self.watch.suggest(windows[found.shots], found.nearest)

    def _arrived(self, contact_changed: bool) -> None:
        if contact_changed:
            self._changed()
        else:
            self._notify()

    def _stream_is(self, status: str, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
        self._changed()
        self._say("stream", status=status)

    def _drifted(self, drift: Drift) -> None:
        """Say on the page that all windows are far from the base data, as in another unit."""
        self.warning = shown(drift.verdict)
        self._changed()
        self._say("drift", sentence=drift.verdict)

    # -- what a person does -------------------------------------------------------------------------------

    def teach(
        self, name: str, wanted: int = SHOTS, *, countdown: float = COUNTDOWN, hands_free: bool = False
    ) -> None:
        """Record windows for a class, new or known, after a countdown in seconds of the stream."""
        label = self._named(name)
        if not 1 <= wanted <= MOST_SHOTS:
            raise ValueError(f"a lesson has 1 to {MOST_SHOTS} windows, got {wanted}")
        with self.lock:
            self._idle(flowing=True)
            self.lesson = Lesson(
                label,
                wanted,
                begins=self.stream.position + round(max(0.0, countdown) * self.stream.rate),
                spacing=max(1, self.model.n_times_ // 2),
                hands_free=hands_free,
            )
            self.report = self.problem = None
            self._changed()

    def _named(self, name: str) -> Any:
        """Return the class of a name, before anybody holds a gesture for one that would be refused."""
        if not name.strip():
            raise ValueError("a class needs a name")
        label = as_label(self.model.classes_, name.strip())
        known = self.model.classes_.tolist()
        if label not in known and (other := looks_like(label, known)) is not None:
            raise ValueError(
                f"{label!r} looks like the known class {other!r}; use that name to add examples to it, or "
                f"one that differs in more than spaces or case"
            )
        return label

    def end_recording(self) -> None:
        """Record no more windows than there are."""
        with self.lock:
            self._lesson().end()
            self._changed()

    def remove(self, number: int) -> None:
        """Remove a window from the lesson."""
        with self.lock:
            self._lesson().remove(number)
            self._changed()

    def cancel(self) -> None:
        """Leave the lesson or the practice without any effect."""
        with self.lock:
            self.lesson = self.practice = None
            self._changed()

    def learn(self) -> "Future[None]":
        """Learn the windows recorded; the model that has learned takes over when it is ready."""
        with self.lock:
            lesson = self._lesson()
            if not lesson.shots:
                raise ValueError("no window is left to learn from; record some")
            self._idle(but_lesson=True)
            self.lesson = None
            return self._begin("learning", self._learn, lesson.label, lesson.signals)

    def accept(self, name: str) -> None:
        """Make the windows that were suggested as a new class a lesson, to be reviewed and learned."""
        label = self._named(name)
        with self.lock:
            self._idle()
            unknown = self.model.reject_label_ if self.model.reject is not None else "unknown"
            self.lesson = Lesson.of_windows(label, self.watch.take(), unknown)
            self.report = self.problem = None
            self._changed()

    def dismiss(self) -> None:
        """Forget the suggestion and the windows behind it."""
        with self.lock:
            self.watch.clear()
            self._changed()

    def _learn(self, label: Any, windows: np.ndarray) -> None:
        known = label in self.model.classes_.tolist()
        model, facts = teach(self.model, label, windows)
        self._replace(model, f"taught {label}", [*self.taught, (label, windows)], report=facts)
        self._say("taught", label=str(label), shots=len(windows), new=not known)

    def forget(self, name: str) -> "Future[None]":
        """Forget a class."""
        label = as_label(self.model.classes_, name)
        with self.lock:
            self._idle()
            return self._begin("learning", self._forget, label)

    def _forget(self, label: Any) -> None:
        model = copy(self.model)
        model.forget_class(label)
        kept = [lesson for lesson in self.taught if lesson[0] != label]
        report = {"sentence": f"The class {label} is forgotten."}
        self._replace(model, f"forgot {label}", kept, report=report)
        self._say("forgot", label=str(label))

    def undo(self) -> None:
        """Go back to the model before the last lesson."""
        with self.lock:
            self._idle()
            what = self.versions.undo()
            self.watch.clear()
            self.problem, self.report = None, {"sentence": f"Undone: {what}.", "undone": True}
            self._changed()
        self._say("undone", what=what)

    def practise(self, rounds: int = 2, hold: float = PRACTICE_HOLD) -> None:
        """Prompt every class so many times, and count what it is taken for."""
        if not 1 <= rounds <= 20:
            raise ValueError(f"practice has 1 to 20 rounds, got {rounds}")
        with self.lock:
            self._idle(flowing=True)
            self.practice = Practice(
                self.model.classes_.tolist(),
                rounds,
                begins=self.stream.position,
                ready=round(PRACTICE_READY * self.stream.rate),
                # At least a whole window is held, with half of one to react in.
                hold=round(hold * self.stream.rate) + 3 * self.model.n_times_ // 2,
                rng=np.random.default_rng(self.versions.now.number),
            )
            self._changed()

    def save(self) -> Path:
        """Write the model as it is now to a file of its own; none that is there is touched."""
        if self.folder is None:
            raise ValueError("this session has no folder to save to; start it with --folder")
        now = self.versions.now
        path = new_file(self.folder, f"{self.name}-{now.number}", ".anchorinv")
        signals = now.model.state_.signals is not None
        try:
            now.model.save(path, with_signals=signals, allow_recordings=self._allow_recordings)
        except BaseException:
            path.unlink()
            raise
        self._say("saved", file=path.name)
        return path

    # -- inside -------------------------------------------------------------------------------------------

    def _lesson(self) -> Lesson:
        if self.lesson is None:
            raise ValueError("nothing is being recorded")
        return self.lesson

    def _idle(self, *, but_lesson: bool = False, flowing: bool = False) -> None:
        if flowing and self.stream.status in OVER:
            raise ValueError(
                "the stream is over, so no window will come; start it again (--loop replays a file for ever)"
            )
        if self.busy == "learning":
            raise ValueError("a lesson is being learned; wait until it is done")
        if self.practice is not None and self.practice.phase != DONE:
            raise ValueError("finish the practice first, or stop it")
        if self.lesson is not None and not but_lesson:
            raise ValueError("finish the lesson first, or cancel it")
        self.practice = None

    def _begin(self, what: str, task: Callable[..., None], *given: Any) -> "Future[None]":
        if what == "learning":
            self.problem = None
        self.busy = what
        self._changed()
        return self._teacher.submit(self._done, what, task, *given)

    def _done(self, what: str, task: Callable[..., None], *given: Any) -> None:
        try:
            task(*given)
        except Exception as error:
            self._fail(error)
        finally:
            with self.lock:
                if self.busy == what:  # a lesson may have been given while windows were looked at
                    self.busy = None
                self._changed()

    def _fail(self, error: Exception) -> None:
        """Say what went wrong on the page; what nobody expected goes to the console as well, whole."""
        what = str(error)
        if not isinstance(error, ValueError | OSError):
            what = f"something went wrong ({type(error).__name__}: {error}); the console has more"
            _log.error("live session", exc_info=error)
        self.problem = shown(what)

    @property
    def taught(self) -> tuple[Taught, ...]:
        """The lessons that the model in use has learned: the class and the windows of each."""
        return self.versions.now.taught

    def _replace(
        self, model: AnchorInvClassifier, what: str, taught: Sequence[Taught], *, report: dict[str, Any]
    ) -> None:
        identity = identity_of(model)  # takes its time, so before the stream is kept waiting
        with self.lock:
            self.versions.replace(model, identity, what, taught)
            self.watch.clear()
            self.report = report
            self._changed()

    @property
    def seconds_left(self) -> float:
        """Of a countdown, in seconds of the stream."""
        if self.lesson is None:
            return 0.0
        return max(0.0, (self.lesson.begins - self.stream.position) / self.stream.rate)

    def _changed(self) -> None:
        with self.lock:
            self.revision += 1
        self._notify()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Have a function called, from any thread, when there is something new; return how to end that."""
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _say(self, event: str, **facts: Any) -> None:
        if self.log is not None:
            now = self.versions.now
            self.log.write(event, {"model": now.number, "identity": now.identity} | facts)


def _probability(prediction: Prediction, model: AnchorInvClassifier) -> float | None:
    """Return the probability of the class that is shown, which need not be the largest if it was steadied."""
    if prediction.probabilities is None:
        return None
    classes = model.classes_.tolist()
    if prediction.label in classes:
        return float(prediction.probabilities[classes.index(prediction.label)])
    return float(prediction.probabilities.max())

"""A live session: a model on a stream, taught while it runs; pages show its state.

Samples arrive and are classified on one thread; lessons are learned on another, by a copy of the model, which
is then used instead. Neither waits for a page. The stream owns its position, status and display, ``versions``
the models, ``watch`` the rejected windows; all else that a page shows is an attribute of the session.
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
from anchorinv.serving.streaming import UNKNOWN, Prediction, Smoothing
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
    """A prediction as pages and logs show it."""

    at: float  # end of the window, in seconds of the stream
    label: str | None  # None if samples are missing
    unknown: bool
    probability: float | None
    novelty: float | None
    taken: float  # when its last sample was taken, and when it was classified, as time.time() counts
    decided: float
    model: int  # number of the model


class LiveSession:
    """A model on a stream: its predictions, and lessons that change it.

    Parameters
    ----------
    model : AnchorInvClassifier
        Fitted; it is not changed.
    source : StreamSource
        Its channels are matched by name and unit, as those of files.
    step : float, default=0.1
        Seconds between decisions.
    steady : Smoothing, str or None, default=None
        As in :class:`~anchorinv.serving.streaming.StreamingPredictor`.
    folder : Path or None, default=None
        For models and the log; None keeps neither.
    name : str, default="model"
        First part of the names of files.
    scale : float, default=1.0
        Factor for the samples.
    rename : mapping or None, default=None
        Maps channel names of the source to the model's.
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
            on_window=self._on_window,
            on_status=self._on_status,
            on_chunk=self._on_chunk,
            on_drift=self._on_drift,
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
        self._log_event("begin", source=source.name, sfreq=source.sfreq, channels=self.stream.ch_names)

    @property
    def model(self) -> AnchorInvClassifier:
        """The model in use."""
        return self.versions.now.model

    @property
    def taught(self) -> tuple[Taught, ...]:
        """The lessons that the model in use has learned: the class and the windows of each."""
        return self.versions.now.taught

    # -- the stream ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the source, on a thread of its own."""
        self.stream.start()

    def run(self) -> None:
        """Read the source to its end, or until :meth:`stop`."""
        self.stream.run()

    def stop(self) -> None:
        """Stop: the source is released, a lesson that is being learned is finished."""
        self.stream.stop()
        self._teacher.shutdown(wait=True)
        if self.log is not None:
            self._log_event("end")
            self.log.close()

    def predictions_since(self, n_seen: int) -> tuple[list[LivePrediction], int]:
        """Return the predictions after the first ``n_seen``, as far as they are kept, and the new total."""
        with self.lock:
            n_new = min(self.n_predictions - n_seen, len(self.predictions))
            return list(self.predictions)[len(self.predictions) - n_new :], self.n_predictions

    def _on_window(self, classified: Classified) -> None:
        prediction, model, start = classified.prediction, classified.version.model, classified.start
        live = LivePrediction(
            at=(start + model.n_times_) / self.stream.rate,
            label=None if prediction.label is None else str(prediction.label),
            unknown=model.reject is not None and prediction.label == model.reject_label_,
            probability=_probability(prediction, model),
            novelty=prediction.novelty,
            taken=classified.taken,
            decided=time.time(),
            model=classified.version.number,
        )
        with self.lock:
            self.predictions.append(live)
            self.n_predictions += 1
            if self.lesson is not None and self.lesson.offer(start, classified.window, prediction.raw_label):
                self.revision += 1
                if self.lesson.phase == REVIEW and self.lesson.hands_free:
                    self.learn()
            if self.practice is not None:
                self.revision += self.practice.offer(start, model.n_times_, prediction.label)
            due = self.watch.offer(start, classified.window, prediction, model)
            # If all windows are far from the base data, as in another unit, none of them is a new class.
            if due and not (self.busy or self.lesson or self.warning):
                self._submit("suggesting", self._suggest, model, self.watch.windows)
        self._log_event("prediction", **asdict(live))

    def _suggest(self, model: AnchorInvClassifier, windows: np.ndarray) -> None:
        suggestion = model.suggest_class(windows, least=SHOTS)
        with self.lock:
            if suggestion is not None and self.model is model:
                self.watch.suggest(windows[suggestion.shots], suggestion.nearest)

    def _on_chunk(self, contact_changed: bool) -> None:
        if contact_changed:
            self._changed()
        else:
            self._notify()

    def _on_status(self, status: str, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
        self._changed()
        self._log_event("stream", status=status)

    def _on_drift(self, drift: Drift) -> None:
        self.warning = shown(drift.verdict)
        self._changed()
        self._log_event("drift", sentence=drift.verdict)

    # -- commands of a page -------------------------------------------------------------------------------

    def teach(
        self, name: str, n_shots: int = SHOTS, *, countdown: float = COUNTDOWN, hands_free: bool = False
    ) -> None:
        """Record windows for a class, new or known, after a countdown in seconds of the stream."""
        label = self._label(name)
        if not 1 <= n_shots <= MOST_SHOTS:
            raise ValueError(f"a lesson has 1 to {MOST_SHOTS} windows, got {n_shots}")
        with self.lock:
            self._check_idle(streaming=True)
            begins = self.stream.position + round(max(0.0, countdown) * self.stream.rate)
            spacing = max(1, self.model.n_times_ // 2)
            self._start(Lesson(label, n_shots, begins=begins, spacing=spacing, hands_free=hands_free))

    def _start(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.report = self.problem = None
        self._changed()

    def _label(self, name: str) -> Any:
        """Return the class of a name; one that would be refused is refused before anything is recorded."""
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
        """Cancel the lesson or the practice; the model is unchanged."""
        with self.lock:
            self.lesson = self.practice = None
            self._changed()

    def learn(self) -> "Future[None]":
        """Learn the recorded windows; the new model is used as soon as it is ready."""
        with self.lock:
            lesson = self._lesson()
            if not lesson.shots:
                raise ValueError("no window is left to learn from; record some")
            self._check_idle(lesson_allowed=True)
            self.lesson = None
            return self._submit("learning", self._learn, lesson.label, lesson.signals)

    def accept(self, name: str) -> None:
        """Start a lesson of the windows that were suggested as a new class, to be reviewed and learned."""
        label = self._label(name)
        with self.lock:
            self._check_idle()
            unknown = self.model.reject_label_ if self.model.reject is not None else UNKNOWN
            self._start(Lesson.of_windows(label, self.watch.take(), unknown))

    def dismiss(self) -> None:
        """Forget the suggestion and the windows behind it."""
        with self.lock:
            self.watch.clear()
            self._changed()

    def _learn(self, label: Any, windows: np.ndarray) -> None:
        known = label in self.model.classes_.tolist()
        model, facts = teach(self.model, label, windows)
        self._replace(model, f"taught {label}", [*self.taught, (label, windows)], report=facts)
        self._log_event("taught", label=str(label), shots=len(windows), new=not known)

    def forget(self, name: str) -> "Future[None]":
        """Forget a class."""
        label = as_label(self.model.classes_, name)
        with self.lock:
            self._check_idle()
            return self._submit("learning", self._forget, label)

    def _forget(self, label: Any) -> None:
        model = copy(self.model)
        model.forget_class(label)
        others = [(name, windows) for name, windows in self.taught if name != label]
        report = {"sentence": f"The class {label} is forgotten."}
        self._replace(model, f"forgot {label}", others, report=report)
        self._log_event("forgot", label=str(label))

    def undo(self) -> None:
        """Go back to the model before the last lesson."""
        with self.lock:
            self._check_idle()
            what = self.versions.undo()
            self.watch.clear()
            self.problem, self.report = None, {"sentence": f"Undone: {what}.", "undone": True}
            self._changed()
        self._log_event("undone", what=what)

    def practise(self, rounds: int = 2, hold: float = PRACTICE_HOLD) -> None:
        """Prompt every class in each round, and count the predictions."""
        if not 1 <= rounds <= 20:
            raise ValueError(f"practice has 1 to 20 rounds, got {rounds}")
        with self.lock:
            self._check_idle(streaming=True)
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
        """Save the model in use as a new file; existing files are never replaced."""
        if self.folder is None:
            raise ValueError("this session has no folder to save to; start it with --folder")
        now = self.versions.now
        path = new_file(self.folder, f"{self.name}-{now.number}", ".anchorinv")
        with_signals = now.model.state_.signals is not None
        try:
            now.model.save(path, with_signals=with_signals, allow_recordings=self._allow_recordings)
        except BaseException:
            path.unlink()
            raise
        self._log_event("saved", file=path.name)
        return path

    # -- state --------------------------------------------------------------------------------------------

    def _lesson(self) -> Lesson:
        if self.lesson is None:
            raise ValueError("nothing is being recorded")
        return self.lesson

    def _check_idle(self, *, lesson_allowed: bool = False, streaming: bool = False) -> None:
        """Refuse a command while another one is under way; a practice that is done is cleared."""
        if streaming and self.stream.status in OVER:
            raise ValueError(
                "the stream is over, so no window will come; start it again (--loop replays a file for ever)"
            )
        if self.busy == "learning":
            raise ValueError("a lesson is being learned; wait until it is done")
        if self.practice is not None and self.practice.phase != DONE:
            raise ValueError("finish the practice first, or stop it")
        if self.lesson is not None and not lesson_allowed:
            raise ValueError("finish the lesson first, or cancel it")
        self.practice = None

    def _submit(self, activity: str, task: Callable[..., None], *args: Any) -> "Future[None]":
        """Run a task on the thread for lessons; ``busy`` is its activity meanwhile."""
        if activity == "learning":
            self.problem = None
        self.busy = activity
        self._changed()
        return self._teacher.submit(self._run_task, activity, task, *args)

    def _run_task(self, activity: str, task: Callable[..., None], *args: Any) -> None:
        try:
            task(*args)
        except Exception as error:
            self._fail(error)
        finally:
            with self.lock:
                if self.busy == activity:  # a lesson may have been started during a search for new classes
                    self.busy = None
                self._changed()

    def _fail(self, error: Exception) -> None:
        """Show an error on the page; an unexpected one is logged with its traceback, too."""
        message = str(error)
        if not isinstance(error, ValueError | OSError):
            message = f"something went wrong ({type(error).__name__}: {error}); the console has more"
            _log.error("live session", exc_info=error)
        self.problem = shown(message)

    def _replace(
        self, model: AnchorInvClassifier, what: str, taught: Sequence[Taught], *, report: dict[str, Any]
    ) -> None:
        identity = identity_of(model)  # slow, so not under the lock, which decisions wait for
        with self.lock:
            self.versions.replace(model, identity, what, taught)
            self.watch.clear()
            self.report = report
            self._changed()

    @property
    def seconds_left(self) -> float:
        """Remaining countdown of the lesson, in seconds of the stream."""
        if self.lesson is None:
            return 0.0
        return max(0.0, (self.lesson.begins - self.stream.position) / self.stream.rate)

    def _changed(self) -> None:
        with self.lock:
            self.revision += 1
        self._notify()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call a function, from any thread, whenever there is something new; return how to end that."""
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _log_event(self, event: str, **facts: Any) -> None:
        if self.log is not None:
            now = self.versions.now
            self.log.write(event, {"model": now.number, "identity": now.identity} | facts)


def _probability(prediction: Prediction, model: AnchorInvClassifier) -> float | None:
    """Return the probability of the predicted class, which need not be the largest after smoothing."""
    if prediction.probabilities is None:
        return None
    classes = model.classes_.tolist()
    if prediction.label in classes:
        return float(prediction.probabilities[classes.index(prediction.label)])
    return float(prediction.probabilities.max())

"""A live session: a model on a stream, taught while it runs; what pages show is read from here.

Samples come in on one thread and are classified there; lessons are learned on another one, by a copy of the
model that takes its place when it has learned. Nothing waits for a page.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorinv.errors import shown
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.live.monitor import Contact, Scope
from anchorinv.live.record import EventLog, free_path, identity_of
from anchorinv.live.sources import Chunk, StreamSource
from anchorinv.live.tasks import HOLD, Lesson, Practice
from anchorinv.serving.learning_report import LearningReport, add_examples, learn_classes
from anchorinv.serving.smoothing import Smoothing
from anchorinv.serving.streaming import Prediction, StreamingPredictor
from anchorinv.signal.pipeline import Window
from anchorinv.signal.readers import Recording, select_inputs
from anchorinv.validation import as_label

#: Seconds between decisions, and of the countdown before windows are recorded.
STEP, COUNTDOWN = 0.1, 3.0
#: Windows of a lesson.
SHOTS, MOST_SHOTS = 10, 100
#: Seconds of predictions that a page shows, and at most so many of them.
RIBBON, MOST_PREDICTIONS = 30.0, 1000
#: Bytes of taught windows that are kept for an export; the oldest lessons go first.
MOST_TAUGHT = 200_000_000
#: Models to go back to.
MOST_UNDO = 20
#: Rejected windows that are looked at for a new class, and how many more before they are looked at again.
REJECTED, LOOK_AGAIN = 60, 5
#: A decision that is later than this, in seconds, leaves out the windows before it.
LATE = 0.5
#: Seconds of a prompt in practice, and before it.
PRACTICE_HOLD, PRACTICE_READY = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class Shown:
    """A prediction as pages and logs have it, with the time of its last sample and of the decision."""

    at: float  # seconds of the stream, at the end of the window
    label: str | None  # None if samples are missing
    unknown: bool
    probability: float | None
    novelty: float | None
    taken: float
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
    ) -> None:
        self.source, self.folder, self.name = source, folder, name
        self.rate = float(model.sfreq_ or source.sfreq)
        inputs = select_inputs(
            Recording(Path(source.name), source.ch_names, source.units, source.sfreq, 0, _no_file).renamed(
                rename
            ),
            model.preprocessing_,
            n_chans=model.n_chans_,
            scale=scale,
        )
        self._channels, self._factors = inputs.channels, inputs.factors
        self.ch_names = tuple(source.ch_names[i] for i in inputs.channels)
        self._predictor = StreamingPredictor(
            model, step=max(1, round(step * self.rate)), sfreq=source.sfreq, steady=steady
        )
        self.scope = Scope(len(self.ch_names), source.sfreq)
        self._contact = Contact(len(self.ch_names), source.sfreq)
        self.lock = threading.RLock()
        self.revision = 0  # of what pages show beside predictions
        self.n_predictions = 0
        self.predictions: deque[Shown] = deque(maxlen=min(MOST_PREDICTIONS, round(RIBBON / step) + 1))
        self._listeners: list[Callable[[], None]] = []
        self._stopped, self._teacher = threading.Event(), ThreadPoolExecutor(1, "lessons")
        self._thread: threading.Thread | None = None
        self.model, self.number = model, 1
        self._undo: deque[tuple[AnchorInvClassifier, str]] = deque(maxlen=MOST_UNDO)
        self.identity = identity_of(model)
        self.lesson: Lesson | None = None
        self.practice: Practice | None = None
        self.busy: str | None = None
        self.report: dict[str, Any] | None = None
        self.problem: str | None = None
        self.suggestion: dict[str, Any] | None = None
        self.status, self.contact = "waiting", [""] * len(self.ch_names)
        # Samples at the model's rate, so far and where the stream last began; at the source's, since then.
        self._position = self._origin = self._n_arrived = 0
        self._rejected: deque[np.ndarray] = deque(maxlen=REJECTED)
        self._next_rejected = self._n_rejected = 0
        self._offered: np.ndarray | None = None
        self.taught: list[tuple[Any, np.ndarray]] = []  # shots by class, for an export
        self._contact_due = 0.0
        self.log = EventLog(folder, name) if folder is not None else None
        self._say("begin", source=source.name, sfreq=source.sfreq, channels=list(self.ch_names))

    # -- the stream ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read the source, on a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="stream", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Read the source to its end, or until :meth:`stop`."""
        try:
            for chunk in self.source.chunks(self._stopped):
                self._take(chunk)
            self._now("ended" if not self._stopped.is_set() else "stopped")
        except (ValueError, OSError) as error:
            self.problem = shown(str(error))
            self._now("failed")

    def stop(self) -> None:
        """End: the source is let go, a lesson that is being learned is finished."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._teacher.shutdown(wait=True)
        if self.log is not None:
            self._say("end")
            self.log.close()

    def _take(self, chunk: Chunk) -> None:
        samples = chunk.samples[self._channels] * self._factors
        if chunk.begins and self._position:
            self._predictor.reset()
            with self.lock:
                self._origin, self._n_arrived = self._position, 0
        self._n_arrived += samples.shape[1]
        self.scope.push(samples)
        self._contact.push(samples)
        if chunk.time >= self._contact_due:
            self._contact_due = chunk.time + 0.5
            self._see(self._contact.verdicts())
        if self.status != "streaming":
            self._now("streaming")
        windows = self._predictor.cut(samples)
        late = time.time() - chunk.time > LATE
        windows = windows[-1:] if late else windows
        with self.lock:
            model, number = self.model, self.number
        self._predictor.model = model
        predictions = self._predictor.predict(windows)
        for window, prediction in zip(windows, predictions, strict=True):
            self._decide(window, prediction, model, number, chunk.time)
        self._notify()

    def _decide(
        self,
        window: Window,
        prediction: Prediction,
        model: AnchorInvClassifier,
        number: int,
        arrived: float,
    ) -> None:
        start, n_times = self._origin + window.start, model.n_times_
        end = start + n_times
        # What has arrived since its last sample is the delay of resampling, and the rest of the chunk.
        after = self._n_arrived / self.source.sfreq - (window.start + n_times) / self.rate
        unknown = model.reject is not None and prediction.label == model.reject_label_
        best = None if prediction.probabilities is None else float(prediction.probabilities.max())
        label = None if prediction.label is None else str(prediction.label)
        shown_now = Shown(
            end / self.rate,
            label,
            unknown,
            best,
            prediction.novelty,
            arrived - max(0.0, after),
            time.time(),
            number,
        )
        with self.lock:
            self._position = max(self._position, end)
            self.predictions.append(shown_now)
            self.n_predictions += 1
            changed = False
            if self.lesson is not None:
                changed |= self.lesson.offer(start, window, prediction.raw_label)
            if self.practice is not None:
                changed |= self.practice.offer(start, n_times, prediction.label)
            self.revision += changed
            self._watch(start, window, prediction, model)
        self._say("prediction", **asdict(shown_now))

    def _watch(self, start: int, window: Window, prediction: Prediction, model: AnchorInvClassifier) -> None:
        """Keep windows that fit no known class, half a window apart, and look whether they are a new one."""
        limit = model.reject or 0.05
        if prediction.novelty is None or prediction.novelty > limit or start < self._next_rejected:
            return
        self._next_rejected = start + model.n_times_ // 2
        self._rejected.append(window.values.astype(np.float32))
        self._n_rejected += 1
        due = len(self._rejected) >= SHOTS and self._n_rejected % LOOK_AGAIN == 0
        if due and self.busy is None and self.lesson is None and self.suggestion is None:
            self._begin("looking", self._suggest, model, np.stack(self._rejected))

    def _suggest(self, model: AnchorInvClassifier, windows: np.ndarray) -> None:
        found = model.suggest_class(windows, least=SHOTS)
        with self.lock:
            if found is not None and self.model is model:
                self._offered = windows[found.shots]
                self.suggestion = {
                    "sentence": str(found),
                    "shots": len(found.shots),
                    "nearest": str(found.nearest),
                }

    # -- what a person does -------------------------------------------------------------------------------

    def teach(self, name: str, wanted: int = SHOTS, countdown: float = COUNTDOWN) -> None:
        """Record windows for a class, new or known, after a countdown in seconds of the stream."""
        label = as_label(self.model.classes_, name.strip())
        if not name.strip():
            raise ValueError("a class needs a name")
        if not 1 <= wanted <= MOST_SHOTS:
            raise ValueError(f"a lesson has 1 to {MOST_SHOTS} windows, got {wanted}")
        with self.lock:
            self._idle()
            begins = self._position + round(max(0.0, countdown) * self.rate)
            self.lesson = Lesson(label, wanted, begins=begins, spacing=max(1, self.model.n_times_ // 2))
            self.report = self.problem = None
            self._changed()

    def end_recording(self) -> None:
        """Be content with the windows recorded so far."""
        with self.lock:
            self._lesson().end()
            self._changed()

    def remove(self, number: int) -> None:
        """Take a window out of the lesson."""
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

    def accept(self, name: str) -> "Future[None]":
        """Teach the windows that were suggested as a new class."""
        label = as_label(self.model.classes_, name.strip())
        with self.lock:
            if self._offered is None:
                raise ValueError("nothing is suggested now")
            windows, self._offered, self.suggestion = self._offered, None, None
            return self._begin("learning", self._learn, label, windows)

    def dismiss(self) -> None:
        """Forget the suggestion and the windows behind it."""
        with self.lock:
            self._offered = self.suggestion = None
            self._rejected.clear()
            self._changed()

    def _learn(self, label: Any, windows: np.ndarray) -> None:
        model, known = copy(self.model), label in self.model.classes_.tolist()
        labels = [label] * len(windows)
        began = time.perf_counter()
        if known:
            facts: dict[str, Any] = {
                "sentences": [each.line() for each in add_examples(model, windows, labels)]
            }
        else:
            facts = facts_of(learn_classes(model, windows, labels))
        facts |= {"label": str(label), "shots": len(windows), "seconds": time.perf_counter() - began}
        self._replace(model, f"taught {label}", report=facts)
        with self.lock:
            self.taught.append((label, windows))
            while sum(each.nbytes for _, each in self.taught) > MOST_TAUGHT:
                self.taught.pop(0)
            self._rejected.clear()
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
        self._replace(model, f"forgot {label}", report={"sentences": [f"Class {label} was forgotten."]})
        self._say("forgot", label=str(label))

    def undo(self) -> None:
        """Go back to the model before the last lesson."""
        with self.lock:
            self._idle()
            if not self._undo:
                raise ValueError("there is nothing to undo")
            model, what = self._undo.pop()
            self._swap(model, {"sentences": [f"Undone: {what}."]})
        self._say("undone", what=what)

    def practise(self, rounds: int = 2, hold: float = PRACTICE_HOLD) -> None:
        """Prompt every class so many times, and count what it is taken for."""
        if not 1 <= rounds <= 20:
            raise ValueError(f"practice has 1 to 20 rounds, got {rounds}")
        with self.lock:
            self._idle()
            self.practice = Practice(
                self.model.classes_.tolist(),
                rounds,
                begins=self._position,
                ready=round(PRACTICE_READY * self.rate),
                # At least a whole window is held, with half of one to react in.
                hold=round(hold * self.rate) + 3 * self.model.n_times_ // 2,
                rng=np.random.default_rng(self.number),
            )
            self._changed()

    def save(self) -> Path:
        """Write the model as it is now to a file of its own; none that is there is touched."""
        if self.folder is None:
            raise ValueError("this session was told no folder to save to; start it with --folder")
        with self.lock:
            model, number = self.model, self.number
        path = free_path(self.folder, f"{self.name}-{number}", ".anchorinv")
        model.save(path, with_signals=model.state_.signals is not None)
        self._say("saved", file=path.name)
        return path

    # -- inside -------------------------------------------------------------------------------------------

    def _lesson(self) -> Lesson:
        if self.lesson is None:
            raise ValueError("nothing is being recorded")
        return self.lesson

    def _idle(self, *, but_lesson: bool = False) -> None:
        if self.busy == "learning" or (self.practice is not None and self.practice.phase == HOLD):
            raise ValueError("wait until what is going on is done")
        if self.lesson is not None and not but_lesson:
            raise ValueError("finish the lesson first, or leave it")
        self.practice = None

    def _begin(self, what: str, task: Callable[..., None], *given: Any) -> "Future[None]":
        self.busy = what
        self._changed()
        return self._teacher.submit(self._done, task, *given)

    def _done(self, task: Callable[..., None], *given: Any) -> None:
        try:
            task(*given)
        except (ValueError, OSError) as error:
            self.problem = shown(str(error))
        finally:
            with self.lock:
                self.busy = None
                self._changed()

    def _replace(self, model: AnchorInvClassifier, what: str, *, report: dict[str, Any]) -> None:
        with self.lock:
            self._undo.append((self.model, what))
            self._swap(model, report)

    def _swap(self, model: AnchorInvClassifier, report: dict[str, Any]) -> None:
        self.model, self.number, self.report = model, self.number + 1, report
        self.identity = identity_of(model)
        self._changed()

    @property
    def undoable(self) -> str | None:
        """What :meth:`undo` would undo."""
        return self._undo[-1][1] if self._undo else None

    @property
    def seconds_left(self) -> float:
        """Of a countdown, in seconds of the stream."""
        return 0.0 if self.lesson is None else max(0.0, (self.lesson.begins - self._position) / self.rate)

    def _see(self, verdicts: list[str]) -> None:
        if verdicts != self.contact:
            with self.lock:
                self.contact = verdicts
                self._changed()

    def _now(self, status: str) -> None:
        with self.lock:
            self.status = status
            self._changed()
        self._say("stream", status=status)

    def _changed(self) -> None:
        self.revision += 1
        self._notify()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called, from any thread, when there is something new; return how to end that."""
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _say(self, event: str, **facts: Any) -> None:
        if self.log is not None:
            self.log.write(event, {"model": self.number, "identity": self.identity, **facts})


def facts_of(report: LearningReport) -> dict[str, Any]:
    """Return a report as plain values: sentences, warnings, and what old classes lost."""
    apart = report.apart
    return {
        "sentences": report.lines(),
        "warnings": report.warnings(),
        "before": report.before,
        "after": report.after,
        "own": apart[0].own if apart and apart[0].shots > 1 else None,
        "nearest": str(report.nearest[0]) if report.nearest else None,
        "classes": [{"label": str(name), "before": was, "after": now} for name, was, now in report.by_class],
    }


def _no_file(start: int, stop: int, channels: list[int]) -> np.ndarray:
    raise TypeError("a live source is not read like a file")

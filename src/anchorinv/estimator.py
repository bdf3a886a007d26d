"""The scikit-learn estimator: fit on base classes, then teach new ones from a few examples each."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.base import ClassNamePrefixFeaturesOutMixin as FeatureNames
from sklearn.exceptions import NotFittedError
from torch import Tensor

from anchorinv.backbones import external_backbone
from anchorinv.core.blocks import network_columns
from anchorinv.core.closed_form import calibrated, check_calibration, uncalibrated
from anchorinv.core.heads import PrototypeHead, StatisticalHead
from anchorinv.core.memory import without_class
from anchorinv.core.networks import Geometry, choose_device, device_here, encode
from anchorinv.core.privacy import Privacy
from anchorinv.core.recipe import Recipe, placed
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Batch, Curve, Session, Standardisation, State, stream
from anchorinv.errors import check_names
from anchorinv.novelty import (
    REJECT,
    Suggestion,
    answers_of,
    check_finite,
    check_held_out,
    known_confidence,
    logits_of,
    suggested_class,
    with_confidence,
)
from anchorinv.persistence.bundle import Bundle, load_bundle, params_of, save_bundle, stored_params
from anchorinv.persistence.format import packed
from anchorinv.persistence.limits import check_kept, check_room, kept_by
from anchorinv.persistence.provenance import (
    annotate,
    check_converged,
    count_labels,
    history_entry,
    origin,
    utc_date,
    with_curves,
    without_fingerprint,
)
from anchorinv.settings import announce, check_settings, recipe_of, resolve, resolve_seed
from anchorinv.signal.drift import MIN_WINDOWS, BaseStatistics, Drift, Statistics, drift
from anchorinv.signal.preprocessing import AS_GIVEN, Preprocessing
from anchorinv.terminal import progress_bars
from anchorinv.validation import (
    Signals,
    apply_weights,
    check_drift,
    check_kind,
    check_new_classes,
    check_same_shape,
    check_several,
    column_of,
    groups_by,
    read_as,
    read_groups,
    read_labels,
    refuse_unknown,
    rejecting_label,
    warn,
    warn_mistakes,
    warn_noise,
    warn_single_shots,
)

Params = ParamSpec("Params")
Returned = TypeVar("Returned")

# One lock for all models of a process, as dropout draws from torch's global generator.
_lock = threading.RLock()


def one_at_a_time(learn: Callable[Params, Returned]) -> Callable[Params, Returned]:
    """Let a function that learns wait for other threads; ``torch.inference_mode`` is switched off in it."""

    @wraps(learn)
    def in_turn(*args: Params.args, **kwargs: Params.kwargs) -> Returned:
        # Gradients, now or in a later lesson, need ordinary tensors.
        with _lock, torch.inference_mode(False):
            return learn(*args, **kwargs)

    return in_turn


def _after_fork() -> None:
    """Replace the lock in a forked child, where no other thread would ever release it.

    torch's threads do not survive a fork either: with more than one, OpenMP would wait for them forever.
    """
    global _lock
    _lock = threading.RLock()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


class AnchorInvClassifier(ClassifierMixin, FeatureNames, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Classify biosignals and learn new classes from a few examples, without keeping recordings.

    Parameters
    ----------
    sfreq : float or None, default=None
        Sampling rate in Hz; kept with the model, and compared with that of ``mne.Epochs``. None takes that of
        ``preprocessing`` or of the signals (``mne.Epochs``, ``Signals``). For plain arrays it stays unknown
        then, and none is assumed: features do not need it, but recordings and streams cannot be cut into
        windows, and some backbones of braindecode refuse.
    geometry : Geometry or None, default=None
        Sizes of the network; None derives them from the shape of the signals.
    backbone : str, nn.Module, callable, Backbone or None, default=None
        Another network than this package's: a model of braindecode by its name (``"eegnet"``), a network,
        or a factory ``(n_chans, n_times, n_classes) -> nn.Module``; see :class:`anchorinv.Backbone`.
    epochs : int or None, default=None
        Passes over the base data, for methods with a network. None chooses by the number of windows and stops
        early when the loss on held-out windows (see :meth:`fit`) stops falling.
    batch_size : int, default=16
        Batch size of base training.
    lr : float, default=1e-3
        Learning rate of base training: the maximum of a one-cycle schedule.
    n_anchors : int, default=50
        Feature vectors kept of each base class; fewer where further feature blocks make them larger.
    inversion_steps : int, default=200
        Maximum number of steps of the inversion that turns anchors into replay signals; each sample stops
        when its error stops falling.
    inversion_lr : float, default=5e-2
        Learning rate of methods that invert labels; anchors are inverted by L-BFGS, which needs none.
    finetune_steps : int or None, default=None
        Steps of the adaptation to new classes; None chooses the number in each session by cross-validation
        over shots and replay. The default method does not finetune.
    finetune_lr : float, default=2e-5
        Learning rate of the adaptation.
    replay_weight : float, default=1.0
        Weight of old classes against new ones in the adaptation, the paper's λ.
    new_prototype : {"mean", "random"}, default="mean"
        Where the prototype of a new class starts: at the mean of its examples, or at random.
    per_channel : bool, default=True
        Standardise each channel separately, or all by one mean and standard deviation.
    method : str, default="discriminant"
        A name in ``anchorinv.core.registry.METHODS``; each method uses the parameters it knows. The default
        was by far the best on real EMG and ECG (docs/results.md); ``"anchorinv"`` is the paper's method.
    network : {"rehearse", "never", "always"}, default="rehearse"
        Whether the default method also uses the features of networks. ``"rehearse"`` trains three where
        classical features hardly separate the base classes (minutes), each without a third of the windows,
        and uses them if they classify that third better.
    reject : float or None, default=None
        :meth:`predict` returns ``reject_label`` where :meth:`novelty` is at most this value: about this share
        of windows of known classes is rejected. None never rejects.
    reject_label : str, int or None, default=None
        Label of rejected windows; None uses ``"unknown"``, or -1 where classes are whole numbers.
    group_by : str or None, default=None
        Column of the metadata of ``mne.Epochs``, or of the description of a braindecode data set, that
        :meth:`fit` uses as groups where none are passed, as in MOABB: ``"subject"``.
    privacy : "aggregate", Privacy or None, default=None
        How to reduce what a model file reveals about people, see docs/privacy.md: ``"aggregate"`` keeps means
        of five windows or more as anchors, over several people where ``groups`` of :meth:`fit` name them;
        :class:`~anchorinv.Privacy` adds noise to the statistics of the default method, or to anchors.
    preprocessing : Preprocessing or None, default=None
        Channels, unit and filter of the recordings behind the signals; kept with the model.
    device : str, default="auto"
        Where networks are trained and run: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``; ``"auto"`` is the
        first of cuda, mps and cpu that is available. Not stored in model files; see :meth:`load`.
    random_state : int, RandomState or None, default=None
        Pass an int for reproducible results; None draws a seed.
    verbose : bool, default=False
        Print to standard error how long :meth:`fit` will take, if more than a few seconds, and its progress:
        bars in terminals and notebooks, a line now and then elsewhere.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
        All known classes, sorted; the columns of probabilities follow this order.
    base_classes_ : ndarray, shape (n_base,)
        The classes that :meth:`fit` learned, sorted.
    counts_ : ndarray, shape (n_classes,)
        Number of examples of each of ``classes_`` so far.
    n_features_in_ : int
        Number of channels.
    history_ : list of dict
        One entry per lesson: what was learned, in how many seconds; ``date`` (UTC), ``versions``,
        ``fingerprint`` of the windows and labels, ``author`` and ``note`` if passed to :meth:`save`; final
        losses (``training_loss``, ``inversion_error``, ``finetuning_loss``), and whole loss curves in
        ``curves``, under the same names. A file thins curves to a million values in all.
    geometry_ : Geometry
        Sizes of this package's network.
    architecture_ : Geometry or BackboneFor
        What networks are built from: these sizes, or another backbone.
    device_ : str
        The device in use; methods without a network always compute on the CPU.
    state_ : State
        Everything learned, see :class:`anchorinv.core.types.State`; its classes are in the order learned.

    Examples
    --------
    >>> from anchorinv.datasets import synthetic
    >>> data = synthetic.emg(n_classes=4, n_subjects=1, n_sessions=1, n_per_class=10, seed=0)
    >>> base, new = data.select(data.labels < 3), data.select(data.labels == 3)
    >>> model = AnchorInvClassifier(epochs=2, inversion_steps=2, random_state=0)
    >>> model = model.fit(base.signals, base.labels).partial_fit(new.signals, new.labels)
    >>> model.classes_.tolist()
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        *,
        sfreq: float | None = None,
        geometry: Geometry | None = None,
        backbone: Any = None,
        epochs: int | None = None,
        batch_size: int = 16,
        lr: float = 1e-3,
        n_anchors: int = 50,
        inversion_steps: int = 200,
        inversion_lr: float = 5e-2,
        finetune_steps: int | None = None,
        finetune_lr: float = 2e-5,
        replay_weight: float = 1.0,
        new_prototype: str = "mean",
        per_channel: bool = True,
        method: str = "discriminant",
        network: str = "rehearse",
        reject: float | None = None,
        reject_label: str | int | None = None,
        group_by: str | None = None,
        privacy: str | Privacy | None = None,
        preprocessing: Preprocessing | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.sfreq = sfreq
        self.geometry = geometry
        self.backbone = backbone
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.n_anchors = n_anchors
        self.inversion_steps = inversion_steps
        self.inversion_lr = inversion_lr
        self.finetune_steps = finetune_steps
        self.finetune_lr = finetune_lr
        self.replay_weight = replay_weight
        self.new_prototype = new_prototype
        self.per_channel = per_channel
        self.method = method
        self.network = network
        self.reject = reject
        self.reject_label = reject_label
        self.group_by = group_by
        self.privacy = privacy
        self.preprocessing = preprocessing
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @one_at_a_time
    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None) -> Self:
        """Learn the base classes.

        Parameters
        ----------
        X : array, mne.Epochs, torch Dataset or Signals, shape (n, channels, times)
            Items of a data set, such as braindecode's, are (signal, label, ...) or signals. A method with a
            network holds out about a tenth for early stopping, unless ``epochs`` is given.
        y : array_like, shape (n,), or None, default=None
            Text, whole numbers or booleans; None uses the labels of the data set, or the names of the
            events of ``mne.Epochs``.
        groups : array_like, shape (n,), or None, default=None
            The person, day or recording of each signal: whatever will be new when the model is used. Settings
            are then chosen on whole held-out groups, which also shows whether :meth:`calibrate` helps.
        sample_weight : array_like, shape (n,), or None, default=None
            A signal with weight 2 counts as two, with weight 0 as none. For the methods discriminant, lda
            and mdm, in everything that has a closed form, including the Ledoit-Wolf shrinkage; rehearsal,
            networks and the statistics for :meth:`check` count each signal as one.
        """
        signals, labels, group_ids, weights = self._read_base(X, y, groups, sample_weight)
        classes, numbers = np.unique(labels, return_inverse=True)
        check_names(classes.tolist())
        counts, method = np.bincount(numbers), METHODS.name_of(self.method)
        params = self.get_params(deep=False)
        geometry, architecture, ch_names, sfreq = resolve(params, signals, len(classes))
        n_kept = kept_by(method, counts.tolist(), self.n_anchors)
        check_kept(method, architecture, len(classes), n_kept)
        if method != self.method:
            warn(f"method {self.method!r} is called {method!r} now; the former name still works")
        warn_mistakes(signals.values, labels, ch_names)
        began, seed, device = time.perf_counter(), resolve_seed(self.random_state), choose_device(self.device)
        standardisation = Standardisation.of(signals.values, per_channel=self.per_channel, weights=weights)
        standardised = _tensor(standardisation(signals.values))
        batch = Batch(standardised, _tensor(numbers), _optional(group_ids), _optional(weights))
        recipe = recipe_of(params, architecture, len(labels), device)
        state = self._base_state(recipe, batch, rng=stream(seed, "base"))
        self._know(
            geometry_=geometry,
            architecture_=architecture,
            device_=device,
            standardisation_=standardisation,
            seed_=seed,
            n_chans_=geometry.n_chans,
            n_times_=geometry.n_times,
            sfreq_=sfreq,
            ch_names_=ch_names,
            statistics_=BaseStatistics.of(signals.values),
            state_=state,
            **_by_class(classes, counts, state.n_base),
            history_=[self._entry("base", 0, signals, labels, began, state.curves, group_ids)],
        )
        return self

    def _base_state(self, recipe: Recipe, batch: Batch, *, rng: torch.Generator) -> State:
        """Return the base model with replay and confidence, which lessons and rejection will need."""
        needed = self.reject is not None
        check_held_out(recipe, batch, needed=needed, rng=rng)
        with self._progress():
            announce(recipe, batch)
            # Replay is made now, so that teaching a new class later is fast.
            base = check_converged(recipe.base_spec.fit(batch, rng=rng))
            state = check_converged(recipe.recall(recipe.start(base, batch, rng=rng), rng=rng))
            state = with_confidence(recipe, state, batch, needed=needed, rng=rng)
        self._check_outputs(recipe, state, batch)
        return state

    @one_at_a_time
    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None, force: bool = False) -> Self:
        """Learn one or several new classes, together, from a few signals each.

        Parameters
        ----------
        X : array, mne.Epochs, torch Dataset or Signals, shape (n, channels, times)
            Signals of new classes only.
        y : array_like, shape (n,), or None, default=None
            Labels of the same type as in :meth:`fit`; None uses those that come with the signals.
        sample_weight : array_like, shape (n,), or None, default=None
            As in :meth:`fit`, and exact: equal to repeating signals.
        force : bool, default=False
            Learn from signals whose scale or offset is very different from the base data's, as in another
            unit; they are refused otherwise.
        """
        check_settings(self.get_params(deep=False))
        signals, labels, weights = self._read_lesson(X, y, sample_weight)
        names, numbers = np.unique(labels, return_inverse=True)
        check_new_classes(names, self.classes_)
        self._check_rejection(np.concatenate([self.classes_, names]))
        warn_single_shots(labels)
        began, before = time.perf_counter(), self.state_
        index = before.session + 1
        # Beyond all numbers in use: after a class was forgotten, these have gaps.
        first = max(before.classes) + 1
        # A new class may have another spectrum: only its unit is compared with the base data.
        standardised = self._standardised(signals, force=force, shapes=False)
        batch = Batch(standardised, _tensor(numbers + first), weights=_optional(weights))
        with self._progress():
            rng, recipe = stream(self.seed_, "session", index), self._recipe(len(labels))
            state = recipe.learn_session(before, Session(index, batch), rng=rng)
        self._check_room(check_converged(state, before=before))
        self._check_outputs(recipe, state, batch)
        known = np.concatenate([self._names, names]), np.concatenate([self._counts, np.bincount(numbers)])
        entry = self._entry("session", index, signals, labels, began, state.curves[len(before.curves) :])
        self._know(state_=state, **_by_class(*known, state.n_base), history_=[*self.history_, entry])
        return self

    @one_at_a_time
    def add_shots(self, X: Any, y: Any = None, *, sample_weight: Any = None, force: bool = False) -> Self:
        """Learn from more examples of known classes: their prototypes move, the network stays.

        A prototype becomes the mean over all examples seen so far, equally weighted. The features of the
        examples are added to the anchors, so a new class is better remembered in the next session.
        Methods without anchors replay what they replayed before. The parameters are those of
        :meth:`partial_fit`.
        """
        signals, labels, weights = self._read_lesson(X, y, sample_weight)
        refuse_unknown(np.unique(labels), self.classes_)
        state = self.state_
        if not isinstance(state.head, PrototypeHead | StatisticalHead):
            raise ValueError(
                f"{self.method} has no prototypes to move; retrain with all examples, or use another method"
            )
        began = time.perf_counter()
        names = self._names.tolist()
        columns = np.array([names.index(label) for label in labels.tolist()])
        features = self._features(self._standardised(signals, force=force, shapes=False))
        batch = Batch(features, torch.tensor(state.classes)[columns], weights=_optional(weights))
        learned = self._recipe(len(labels)).add_shots(state, batch, self._counts.tolist())
        self._check_room(learned)
        check_finite(encode(learned.head, features))
        self._know(
            state_=learned,
            counts_=self.counts_ + np.bincount(columns, minlength=len(names))[self._columns],
            history_=[*self.history_, self._entry("shots", state.session, signals, labels, began)],
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return a class for each signal (n,), or ``reject_label`` where ``reject`` applies."""
        now, standardised = self._snapshot(X)
        logits, p_values = now._answers(standardised, novelty=now.reject is not None)
        return now._decided(logits.argmax(1).numpy(), p_values)

    def novelty(self, X: Any) -> np.ndarray:
        """Return a p-value for each signal (n,), under the hypothesis that it is of a known class.

        At most about 5 % of windows of known classes have 0.05 or less; windows of unknown classes, and
        artefacts, have small values more often. Measured on base windows that were held out, as blocks of
        neighbours in time or as whole ``groups`` (see :meth:`fit`).
        """
        now, standardised = self._snapshot(X)
        _, p_values = now._answers(standardised, novelty=True)
        assert p_values is not None
        return p_values

    def suggest_class(self, X: Any, *, reject: float | None = None, least: int = 10) -> Suggestion | None:
        """Return windows that fit no known class and resemble each other, as a suggested new class.

        ``model.partial_fit(X[suggestion.shots], ["name"] * len(suggestion.shots))`` teaches them.
        Artefacts, such as noise, mains hum or another gain, are not suggested.

        Parameters
        ----------
        X : array, mne.Epochs or Signals, shape (n, channels, times)
            Windows of known and unknown classes.
        reject : float or None, default=None
            Windows with a :meth:`novelty` of at most this value fit no known class; None uses the model's
            own ``reject``, or 0.05.
        least : int, default=10
            Minimum number of windows in the group.

        Returns
        -------
        Suggestion or None
            The largest and best separated group; None if too few windows fit no known class, or if they do
            not resemble each other more than known classes.
        """
        now = copy(self)
        signals = now._read_known(X)

        def is_artefact(group: np.ndarray) -> bool:
            # Spectra of fewer windows are not compared, as one may be an artefact: here that is the question.
            some = np.resize(group, max(MIN_WINDOWS, len(group)))
            return now._drift(replace(signals, values=signals.values[some])).artefact

        return suggested_class(
            now.state_,
            now._standardised(signals),
            now._names.tolist(),
            reject=next(value for value in (reject, now.reject, REJECT) if value is not None),
            least=least,
            artefact=is_artefact,
        )

    def predict_set(self, X: Any, *, coverage: float = 0.9) -> np.ndarray:
        """Return a set of possible classes for each signal, bool (n, n_classes); columns follow ``classes_``.

        Conformal prediction: about this share of the sets contain the true class, for signals of known
        classes that are like the held-out base windows. The predicted class is in every set;
        :meth:`novelty` says whether a signal may be of no known class.
        """
        if not (isinstance(coverage, float | np.floating) and 0 < coverage < 1):
            raise ValueError(f"coverage (={coverage!r}) must be a share between 0 and 1, such as 0.9")
        now, standardised = self._snapshot(X)
        confidence, logits = known_confidence(now.state_), logits_of(now.state_, standardised)
        p_values = confidence.conformal(logits, n_base=now.state_.n_base)
        within: np.ndarray = (p_values > 1 - coverage).numpy()[:, now._columns]
        return within

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class (n, n_classes); columns follow ``classes_``."""
        return self._probabilities(self._logits(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of each probability (n, n_classes); columns follow ``classes_``."""
        return F.log_softmax(self._logits(X), dim=1).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Return logits (n, n_classes), columns as ``classes_``; for two classes their difference (n,).

        Positive values predict the second class.
        """
        logits = self._logits(X)
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def transform(self, X: Any) -> np.ndarray:
        """Return the network's features of each signal (n, dim), without the views that some methods add.

        Columns are named ``anchorinvclassifier0``, … in a data frame (:meth:`set_output`).
        """
        now, standardised = self._snapshot(X)
        return now._transformed(standardised).numpy()

    def check(self, X: Any) -> Drift:
        """Compare signals (n, n_chans, n_times) with the base data, channel by channel; see ``verdict``.

        Scale and offset are compared; with five windows or more, also spectra and correlations of channels.
        """
        return self._drift(self._read_known(X))

    @one_at_a_time
    def calibrate(self, X: Any, *, force: bool = False) -> Self:
        """Adapt to an unseen person or day, by signals (n, n_chans, n_times) without labels.

        The mean of their features is moved to that of the base data, and all later features by the same
        shift, until :meth:`uncalibrate`. Classes should occur about as often as in the base data.

        Parameters
        ----------
        X : array or mne.Epochs
            At least ten windows.
        force : bool, default=False
            Calibrate although rehearsal in ``fit`` advises against it, or could not be done without
            ``groups``; and with signals whose scale or offset is very different from the base data's.
        """
        signals = self._read_known(X)
        check_calibration(self.state_, len(signals.values), force=force)
        self._know(state_=calibrated(self.state_, self._standardised(signals, force=force)))
        return self

    @one_at_a_time
    def uncalibrate(self) -> Self:
        """Undo :meth:`calibrate`."""
        self._check_fitted()
        self._know(state_=uncalibrated(self.state_))
        return self

    @one_at_a_time
    def forget_class(self, label: Any) -> Self:
        """Remove a class: its prototype, anchors, replay and recordings.

        With the default method the model is then as if it had never been taught the class. With others,
        predictions among the other classes are unchanged, but weights that were trained while the class was
        known may keep traces of it; only retraining without it removes these.
        """
        self._check_fitted()
        began = time.perf_counter()
        column = column_of(label, self._names)
        try:
            state = without_class(self.state_, self.state_.classes[column])
        except ValueError as error:
            raise ValueError(f"class {label!r} cannot be forgotten: {error}") from None
        label, count = self._names.tolist()[column], self._counts.tolist()[column]
        entry = history_entry("forgotten", state.session, {label: count}, (), began) | {"date": utc_date()}
        self._know(
            state_=state,
            **_by_class(np.delete(self._names, column), np.delete(self._counts, column), state.n_base),
            history_=[*without_fingerprint(self.history_, label), entry],
        )
        return self

    def save(
        self,
        path: Path | str,
        *,
        with_signals: bool = False,
        allow_recordings: bool = False,
        note: str | None = None,
        author: str | None = None,
    ) -> None:
        """Write the model to one file (``*.anchorinv``), atomically.

        Parameters
        ----------
        path : Path or str
            An existing file is replaced once the new one is complete.
        with_signals : bool, default=False
            Include the inverted signals, for inspection; learning does not need them.
        allow_recordings : bool, default=False
            Write a model that keeps real recordings (method ``real-replay``).
        note, author : str or None, default=None
            A comment on the last lesson and its author, one line each; also stored in ``history_``.
        """
        self._check_fitted()
        if note is not None or author is not None:
            with _lock:
                self._know(history_=annotate(self.history_, note=note, author=author))
        save_bundle(path, self.to_bundle(), with_signals=with_signals, allow_recordings=allow_recordings)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        allow_recordings: bool = False,
        device: str = "auto",
        backbone: Any = None,
    ) -> Self:
        """Return the model in a file; it predicts exactly as before, and can continue learning.

        ``device`` says where its networks run; on a device other than the one it was trained on, predictions
        agree up to rounding. A file contains no code: a network that is neither this package's nor
        braindecode's has to be passed as ``backbone``, as a module or a factory.
        """
        choose_device(device)  # before anything is read
        bundle = load_bundle(path, allow_recordings=allow_recordings, backbone=backbone)
        try:
            return cls.from_bundle(bundle, device=device)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def to_bundle(self) -> Bundle:
        """Return the fitted model as a value."""
        self._check_fitted()
        now = copy(self)  # a snapshot: another thread may be teaching it
        return Bundle(
            method=METHODS.name_of(now.method),
            geometry=now.geometry_,
            state=now.state_,
            classes=tuple(now._names.tolist()),
            standardisation=now.standardisation_,
            statistics=now.statistics_,
            counts=tuple(now._counts.tolist()),
            seed=now.seed_,
            settings=stored_params(now.get_params(deep=False), now.seed_),
            geometry_given=now.geometry is not None,
            history=tuple(now.history_),
            sfreq=now.sfreq_,
            ch_names=now.ch_names_,
            preprocessing=now.preprocessing,
            backbone=external_backbone(now.architecture_),
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle, *, device: str = "auto") -> Self:
        """Return a fitted model from a value; settings that it lacks keep their defaults."""
        if unknown := sorted(set(bundle.settings) - set(cls().get_params(deep=False))):
            raise ValueError(f"unknown settings {', '.join(unknown)}")
        model = cls(**params_of(bundle), device=device)
        check_settings(model.get_params(deep=False))
        model.device_, model.geometry_ = choose_device(device), bundle.geometry
        model.architecture_ = bundle.backbone or bundle.geometry
        model.state_ = placed(bundle.state, model.device_)
        model.n_chans_, model.n_times_ = bundle.geometry.n_chans, bundle.geometry.n_times
        model.standardisation_, model.statistics_ = bundle.standardisation, bundle.statistics
        model._know(**_by_class(np.array(bundle.classes), np.array(bundle.counts), bundle.state.n_base))
        model.seed_, model.history_ = bundle.seed, with_curves(bundle.history, bundle.state.curves)
        model.sfreq_, model.ch_names_ = bundle.sfreq, bundle.ch_names
        return model

    @property
    def n_features_in_(self) -> int:
        """Number of channels, which scikit-learn counts as features."""
        return int(self.n_chans_)

    @property
    def preprocessing_(self) -> Preprocessing:
        """The preprocessing that turns recordings into windows for this model."""
        return replace(
            self.preprocessing or AS_GIVEN, ch_names=self.ch_names_, sfreq=self.sfreq_, n_times=self.n_times_
        )

    @property
    def reject_label_(self) -> Any:
        """Label of rejected windows."""
        return rejecting_label(self.reject_label, self.classes_)

    def _read_base(
        self, X: Any, y: Any, groups: Any, sample_weight: Any
    ) -> tuple[Signals, np.ndarray, np.ndarray | None, np.ndarray | None]:
        check_settings(self.get_params(deep=False))
        signals = self._read(X, self.preprocessing or AS_GIVEN)
        labels = read_labels(signals.labels if y is None else y, len(signals.values))
        groups = groups_by(self.group_by, signals) if groups is None else groups
        group_ids = read_groups(groups, len(labels))
        signals, labels, weights, kept = apply_weights(signals, labels, sample_weight, self.method)
        self._check_rejection(check_several(labels))
        return signals, labels, None if group_ids is None else group_ids[kept], weights

    def _read_lesson(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Signals, np.ndarray, np.ndarray | None]:
        signals = self._read_known(X)
        labels = read_labels(signals.labels if y is None else y, len(signals.values))
        check_kind(labels, self.classes_)
        return apply_weights(signals, labels, sample_weight, self.method)[:3]

    def _read_known(self, X: Any) -> Signals:
        self._check_fitted()
        signals = self._read(X, self.preprocessing_)
        check_same_shape(signals, (self.n_chans_, self.n_times_), model=type(self).__name__)
        return signals

    def _read(self, X: Any, preprocessing: Preprocessing) -> Signals:
        return read_as(X, preprocessing, preprocessing.sfreq if self.sfreq is None else self.sfreq)

    def _check_fitted(self) -> None:
        if not hasattr(self, "state_"):
            raise NotFittedError(
                "this model has not learned anything yet; call fit with the base classes first"
            )

    def _check_rejection(self, classes: np.ndarray) -> None:
        """Refuse classes (n,) that leave no label for rejected windows, if ``reject`` is set."""
        if self.reject is not None:
            rejecting_label(self.reject_label, classes)

    def _check_room(self, state: State) -> None:
        n_bytes = sum(tensor.nbytes for tensor in packed(replace(state, signals=None))[0].values())
        check_room(METHODS.name_of(self.method), self.architecture_, state, n_bytes)

    def _check_outputs(self, recipe: Recipe, state: State, learned: Batch) -> None:
        """Refuse outputs that are not finite; warn if noise leaves little of what was learned."""
        logits = logits_of(state, learned.values)
        if recipe.private:
            columns = state.columns(learned.labels)
            warn_noise(logits.argmax(1).numpy(), columns.numpy(), len(state.classes))

    def _recipe(self, n_samples: int) -> Recipe:
        return recipe_of(self.get_params(deep=False), self.architecture_, n_samples, self.device_)

    def _progress(self) -> AbstractContextManager[None]:
        return progress_bars() if self.verbose else nullcontext()

    def _entry(
        self,
        kind: str,
        session: int,
        signals: Signals,
        labels: np.ndarray,
        began: float,
        curves: tuple[Curve, ...] = (),
        groups: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """Return an entry of the history."""
        # With a fingerprint others could confirm who took part.
        private = isinstance(self.privacy, Privacy)
        entry = history_entry(kind, session, count_labels(labels), curves, began)
        return entry | origin(signals.values, labels, groups, with_fingerprint=not private)

    def _know(self, **learned: Any) -> None:
        """Update all attributes at once: a thread that predicts sees the model before or after."""
        self.__dict__ = vars(self) | learned

    def _snapshot(self, X: Any) -> tuple[Self, Tensor]:
        """Return the model as it is now, as another thread may be teaching it, and standardised signals."""
        now = copy(self)
        return now, now._standardised(now._read_known(X))

    def _drift(self, signals: Signals, *, shapes: bool = True) -> Drift:
        with_shapes = shapes and self.statistics_.has_shapes and len(signals.values) >= MIN_WINDOWS
        current = Statistics.of(signals.values, shapes=with_shapes)
        return drift(current, self.statistics_, self.ch_names_, n_times=self.n_times_, sfreq=self.sfreq_)

    def _standardised(self, signals: Signals, *, force: bool = True, shapes: bool = True) -> Tensor:
        """Return standardised signals; warn about drift, and refuse another unit unless forced."""
        distance = self._drift(signals, shapes=shapes)
        standardised = self.standardisation_(signals.values)
        check_drift(standardised, distance, force=force)
        return _tensor(standardised)

    def _features(self, standardised: Tensor) -> Tensor:
        return encode(self.state_.tail, encode(self.state_.trunk, standardised))

    def _transformed(self, standardised: Tensor) -> Tensor:
        return network_columns(self.state_, self._features(standardised))

    @property
    def _n_features_out(self) -> int:
        """Number of columns of :meth:`transform`."""
        self._check_fitted()
        return self._transformed(torch.zeros(1, self.n_chans_, self.n_times_)).shape[1]

    def _logits(self, X: Any) -> Tensor:
        now, standardised = self._snapshot(X)
        return now._logits_of(standardised)

    def _logits_of(self, standardised: Tensor) -> Tensor:
        return self._answers(standardised, novelty=False)[0]

    def _answers(self, standardised: Tensor, *, novelty: bool) -> tuple[Tensor, np.ndarray | None]:
        """Return logits (n, n_classes) in the order of ``classes_`` and, if asked for, p-values (n,)."""
        logits, p_values = answers_of(self.state_, standardised, novelty=novelty)
        return logits[:, self._columns], None if p_values is None else p_values.numpy()

    def _probabilities(self, logits: Tensor) -> np.ndarray:
        return F.softmax(logits, dim=1).numpy()

    def _decided(self, columns: np.ndarray, p_values: np.ndarray | None) -> np.ndarray:
        """Return the classes of columns (n,), or the reject label, by their p-values (n,)."""
        labels: np.ndarray = self.classes_[columns]
        if self.reject is None or p_values is None:
            return labels
        rejected = p_values <= self.reject
        return np.where(rejected, self.reject_label_, labels) if np.count_nonzero(rejected) else labels

    @property
    def _names(self) -> np.ndarray:
        """The classes in the order learned, as in the state and in model files."""
        names: np.ndarray = self.classes_[np.argsort(self._columns)]
        return names

    @property
    def _counts(self) -> np.ndarray:
        """Examples of each class, in the order learned."""
        counts: np.ndarray = self.counts_[np.argsort(self._columns)]
        return counts

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__ = dict(vars(self))
        return other

    def __getstate__(self) -> Any:
        """Return what is pickled: networks in host memory, so that it loads on machines without the GPU."""
        values = super().__getstate__()
        return values | {"state_": placed(values["state_"], "cpu")} if "state_" in values else values

    def __setstate__(self, values: dict[str, Any]) -> None:
        super().__setstate__(values)
        if "state_" in values:
            self.device_ = device_here(values.get("device", "auto"))
            self.state_ = placed(values["state_"], self.device_)


def _by_class(names: np.ndarray, counts: np.ndarray, n_base: int) -> dict[str, np.ndarray]:
    """Sort names and counts of classes, given in the order learned; ``_columns`` are those in the head."""
    order = np.argsort(names, kind="stable")
    base = np.sort(names[:n_base])
    return {"classes_": names[order], "base_classes_": base, "counts_": counts[order], "_columns": order}


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _optional(values: np.ndarray | None) -> Tensor | None:
    return None if values is None else _tensor(values)

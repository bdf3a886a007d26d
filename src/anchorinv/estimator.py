"""The scikit-learn face: fit on base classes, then teach new ones from a few examples each."""

import secrets
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from anchorinv.bars import progress_bars
from anchorinv.core.catalogue import anchorinv
from anchorinv.core.conformer import Conformer
from anchorinv.core.geometry import Geometry
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.networks import frozen, mapped
from anchorinv.core.prototypes import reinforced
from anchorinv.core.recipe import Foundation, Recipe
from anchorinv.core.rng import stream
from anchorinv.core.standardise import Standardisation
from anchorinv.core.training import Finetune
from anchorinv.core.types import Batch, Session, joined
from anchorinv.history import entry, sound
from anchorinv.inputs import (
    Signals,
    check_same_recording,
    check_scale,
    label_kind,
    read_labels,
    read_signals,
    warn_flat,
    warn_single_shots,
)
from anchorinv.settings import PLACEMENTS, check_settings, training_of


class AnchorInvClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Classify biosignals and learn new classes from a few examples, without keeping recordings.

    Parameters
    ----------
    sfreq : sampling rate in Hz; recorded, and compared with that of ``mne.Epochs``.
    geometry : sizes of the network; None derives them from the shape of the signals.
    epochs : of base training; None trains until the loss has stopped falling, 200 at the most.
    batch_size, lr : of base training.
    n_anchors : feature vectors kept of each base class.
    inversion_steps, inversion_lr : of the inversion that turns anchors into replay signals.
    finetune_steps, finetune_lr : of the adaptation to new classes.
    replay_weight : of old classes against new ones in the adaptation, the paper's λ.
    new_prototype : where a new class starts, ``"mean"`` of its examples or ``"random"``.
    per_channel : standardise each channel by itself, or all by one mean and spread.
    random_state : an int for results that repeat; None draws one.
    verbose : show progress bars.

    Attributes
    ----------
    classes_ : the sorted base classes, then new ones in the order they were learned.
    history_ : one dict per session: what was learned, losses, inversion error, seconds.
    geometry_ : the sizes in use.
    state_ : the learner's whole knowledge, a :class:`anchorinv.core.types.State`.

    Examples
    --------
    >>> from anchorinv.data import synthetic
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
        epochs: int | None = None,
        batch_size: int = 64,
        lr: float = 1e-3,
        n_anchors: int = 50,
        inversion_steps: int = 100,
        inversion_lr: float = 5e-2,
        finetune_steps: int = 200,
        finetune_lr: float = 1e-5,
        replay_weight: float = 1.0,
        new_prototype: str = "mean",
        per_channel: bool = True,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.sfreq = sfreq
        self.geometry = geometry
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
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the base classes from signals X (n, channels, times) and labels y (n,)."""
        check_settings(self.get_params(deep=False))
        signals = self._read(X)
        labels = read_labels(y, len(signals.values))
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"fit needs at least two classes, got one ({classes.tolist()[0]!r}); add the others, or "
                f"teach it with partial_fit to a model that knows two"
            )
        n_chans, n_times = signals.values.shape[1:]
        geometry = self._geometry(n_chans, n_times)
        warn_flat(signals.values, signals.ch_names)
        warn_single_shots(labels)
        began = time.perf_counter()
        seed = self._seed()
        recipe = self._recipe(geometry, len(labels))
        standardisation = Standardisation.of(signals.values, per_channel=self.per_channel)
        batch = Batch(_tensor(standardisation(signals.values)), _tensor(numbers))
        rng = stream(seed, "base")
        with self._progress():
            # The replay is made now: teaching a new class later should not take longer than it must.
            state = sound(recipe.recall(recipe.fit_base(batch, rng=rng), rng=rng))
        self.geometry_, self.standardisation_, self.seed_ = geometry, standardisation, seed
        self.n_chans_, self.n_times_ = n_chans, n_times
        self.sfreq_ = self.sfreq if self.sfreq is not None else signals.sfreq
        self.ch_names_ = signals.ch_names
        self.state_, self.classes_ = state, classes
        self.counts_ = np.bincount(numbers)
        self.history_ = [entry("base", 0, labels, state.curves, began)]
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn one or several new classes, together, from a few signals each."""
        check_settings(self.get_params(deep=False))
        signals, labels = self._read_fitted(X, y)
        names, numbers = np.unique(labels, return_inverse=True)
        known = np.isin(names, self.classes_)
        if known.any():
            some = "are" if known.sum() > 1 else "is"
            raise ValueError(
                f"{_listed(names[known])} {some} known already, so nothing was learned; "
                f"use add_shots for more examples of known classes, partial_fit for new classes only"
            )
        warn_single_shots(labels)
        began = time.perf_counter()
        index = self.state_.session + 1
        batch = Batch(self._standardised(signals), _tensor(numbers + len(self.classes_)))
        rng = stream(self.seed_, "session", index)
        recipe = self._recipe(self.geometry_, len(labels))
        with self._progress():
            state = sound(recipe.learn_session(self.state_, Session(index, batch), rng=rng))
        curves = state.curves[len(self.state_.curves) :]
        self.state_ = state
        self.classes_ = np.concatenate([self.classes_, names])
        self.counts_ = np.concatenate([self.counts_, np.bincount(numbers)])
        self.history_ = [*self.history_, entry("session", index, labels, curves, began)]
        return self

    def add_shots(self, X: Any, y: Any) -> Self:
        """Take in more examples of known classes: their prototypes move, the network stays.

        A prototype becomes the mean over the examples seen so far, each with the same weight. The features
        of the examples join the anchors, so a new class is better remembered in the next session.
        """
        signals, labels = self._read_fitted(X, y)
        names = np.unique(labels)
        if not np.isin(names, self.classes_).all():
            unknown = names[~np.isin(names, self.classes_)]
            raise ValueError(
                f"{_listed(unknown)} not among the known ones; teach new classes with partial_fit"
            )
        began = time.perf_counter()
        column = {name: i for i, name in enumerate(self.classes_.tolist())}
        numbers = np.array([column[label] for label in labels.tolist()])
        features = Batch(self._features(signals), _tensor(numbers))
        state = self.state_
        self.state_ = replace(
            state,
            head=frozen(reinforced(state, features, self.counts_.tolist())),
            anchors=joined(state.anchors, features),
        )
        self.counts_ = self.counts_ + np.bincount(numbers, minlength=len(self.classes_))
        self.history_ = [*self.history_, entry("shots", state.session, labels, (), began)]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return a class for each signal (n,)."""
        best = self._logits(X).argmax(1).numpy()
        predicted: np.ndarray = self.classes_[best]
        return predicted

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class (n, n_classes); columns follow ``classes_``."""
        return F.softmax(self._logits(X), dim=1).numpy()

    def transform(self, X: Any) -> np.ndarray:
        """Return the features of each signal (n, dim)."""
        return self._features(self._read_known(X)).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def _recipe(self, geometry: Geometry, n_samples: int) -> Recipe:
        training = training_of(self.epochs, self.batch_size, self.lr, n_samples)
        return anchorinv(
            Foundation(partial(Conformer, geometry), Cosine.start, training),
            start=PLACEMENTS[self.new_prototype],
            adapt=Finetune((self.finetune_steps,), self.finetune_lr, replay_weight=self.replay_weight),
            per_class=self.n_anchors,
            inversion=Inversion(self.inversion_steps, self.inversion_lr),
        )

    def _geometry(self, n_chans: int, n_times: int) -> Geometry:
        geometry = self.geometry or Geometry.for_shape(n_chans, n_times)
        if (geometry.n_chans, geometry.n_times) != (n_chans, n_times):
            raise ValueError(
                f"geometry is for {geometry.n_chans} channels of {geometry.n_times} samples, "
                f"signals have {n_chans} of {n_times}"
            )
        return geometry

    def _seed(self) -> int:
        if self.random_state is None:
            return secrets.randbits(31)
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        return int(self.random_state)

    def _progress(self) -> AbstractContextManager[None]:
        return progress_bars() if self.verbose else nullcontext()

    def _read(self, X: Any, known: float | None = None) -> Signals:
        signals = read_signals(X)
        rate = self.sfreq if self.sfreq is not None else known
        if rate is not None and signals.sfreq is not None and signals.sfreq != rate:
            raise ValueError(
                f"epochs are sampled at {signals.sfreq:g} Hz, the model at {rate:g} Hz; resample them"
            )
        return signals

    def _read_known(self, X: Any) -> Signals:
        if not hasattr(self, "state_"):
            raise NotFittedError(
                "this model has not learned anything yet; call fit with the base classes first"
            )
        signals = self._read(X, self.sfreq_)
        check_same_recording(signals, (self.n_chans_, self.n_times_), self.ch_names_)
        return signals

    def _read_fitted(self, X: Any, y: Any) -> tuple[Signals, np.ndarray]:
        signals = self._read_known(X)
        labels = read_labels(y, len(signals.values))
        if label_kind(labels) != label_kind(self.classes_):
            raise ValueError(
                f"the model's classes are {label_kind(self.classes_)}, these labels are "
                f"{label_kind(labels)}; use one kind"
            )
        warn_flat(signals.values, signals.ch_names)
        return signals, labels

    def _standardised(self, signals: Signals) -> Tensor:
        standardised = self.standardisation_(signals.values)
        check_scale(standardised)
        return _tensor(standardised)

    def _features(self, signals: Signals) -> Tensor:
        return mapped(self.state_.tail, mapped(self.state_.trunk, self._standardised(signals)))

    def _logits(self, X: Any) -> Tensor:
        features = self._features(self._read_known(X))
        return mapped(self.state_.head, features)


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _listed(names: np.ndarray) -> str:
    quoted = [repr(name) for name in names.tolist()]
    return ("class " if len(quoted) == 1 else "classes ") + " and ".join(quoted)

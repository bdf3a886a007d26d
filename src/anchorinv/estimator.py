"""The scikit-learn face: fit on base classes, then teach new ones from a few examples each."""

import time
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from anchorinv.answers import finite, logits_of
from anchorinv.bars import progress_bars
from anchorinv.core.catalogue import current_name
from anchorinv.core.geometry import Geometry
from anchorinv.core.heads import Cosine, StatisticalHead
from anchorinv.core.networks import mapped
from anchorinv.core.packing import packed
from anchorinv.core.recipe import Recipe
from anchorinv.core.rng import stream
from anchorinv.core.standardise import Standardisation
from anchorinv.core.types import Batch, Session, State
from anchorinv.core.views import sizes_of
from anchorinv.history import counted, entry, sound
from anchorinv.inputs import (
    Signals,
    check_same_shape,
    check_scale,
    in_order,
    in_unit,
    label_kind,
    read_groups,
    read_labels,
    read_signals,
    refuse_drift,
    warn_drift,
    warn_flat,
    warn_former_name,
    warn_mistakes,
    warn_single_shots,
)
from anchorinv.learning import lesson
from anchorinv.mistaken import check_new_names, likeness, suspicions
from anchorinv.model.keeping import Keepable
from anchorinv.model.limits import check_held, check_kept, kept_by
from anchorinv.model.names import check_names
from anchorinv.model.statistics import BaseStatistics
from anchorinv.settings import check_settings, geometry_of, names_of, rate_of, recipe_of, seed_of
from anchorinv.signal.preprocessing import Preprocessing


class AnchorInvClassifier(Keepable, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Classify biosignals and learn new classes from a few examples, without keeping recordings.

    Parameters
    ----------
    sfreq : sampling rate in Hz; recorded, and compared with that of ``mne.Epochs``.
    geometry : sizes of the network; None derives them from the shape of the signals.
    epochs : of base training, of methods with a network; None chooses by the number of windows, and ends
        sooner if windows kept aside (see ``fit``) are told no better.
    batch_size, lr : of base training; the rate rises to ``lr`` and falls to almost nothing.
    n_anchors : feature vectors kept of each base class; fewer where views make them larger.
    inversion_steps : of the inversion that turns anchors into replay signals, at the most; a sample is done
        when its error has stopped falling.
    inversion_lr : of methods that invert labels; anchors are reached by quasi-Newton steps, which need none.
    finetune_steps : of the adaptation to new classes; None chooses in each session how far to go, by examples
        and replay kept aside in turn. The default method needs none.
    finetune_lr : its rate.
    replay_weight : of old classes against new ones in the adaptation, the paper's λ.
    new_prototype : where a new class starts, ``"mean"`` of its examples or ``"random"``.
    per_channel : standardise each channel by itself, or all by one mean and spread.
    method : of the catalogue; each takes the settings above that it knows. The default, ``"discriminant"``,
        was the best on real EMG and ECG by far (docs/results.md; on EEG try ``"anchorinv-plus"``); it needs
        seconds and no network, and keeps a count, a mean and a scatter of each class. ``"anchorinv"`` is
        the paper's.
    network : whether the default method also looks at a network's features: ``"never"``, ``"always"``, or
        ``"rehearse"``, which trains one on part of the classes to see whether it helps with the others.
    preprocessing : channels, unit and filter of the recordings behind the signals; kept with the model.
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
        network: str = "never",
        preprocessing: Preprocessing | None = None,
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
        self.method = method
        self.network = network
        self.preprocessing = preprocessing
        self.random_state = random_state
        self.verbose = verbose

    @lesson
    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn the base classes from signals X (n, channels, times) and labels y (n,).

        ``groups`` (n,) say what will be new where the model is used: the person of each signal if it is to
        work for other people, the day or the recording if it is to work on other days. Choices are then made
        for those, by whole groups that are kept aside in turn, and :meth:`calibrate` knows what it brings.

        A method with a network keeps about a tenth of the signals aside from training, where no number of
        epochs is given, to see when it should end. Of fewer than 5 groups or too few signals none are.
        """
        check_settings(self.get_params(deep=False))
        how = self.preprocessing
        signals = in_order(self._read(X, how.sfreq if how else None), how.ch_names if how else None)
        signals = in_unit(signals, how.unit if how else None)
        labels = read_labels(y, len(signals.values))
        among = read_groups(groups, len(labels))
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"training needs at least two classes, got one ({classes.tolist()[0]!r}); add the others, or "
                f"teach it with partial_fit (anchorinv learn) to a model that knows two"
            )
        check_names(classes.tolist())
        n_chans, n_times = signals.values.shape[1:]
        geometry = geometry_of(self.geometry, n_chans, n_times)
        method = current_name(self.method)
        n_kept = kept_by(method, np.bincount(numbers).tolist(), self.n_anchors)
        check_kept(method, geometry, len(classes), n_kept)
        ch_names = names_of(how, signals.ch_names, n_chans)
        sfreq = rate_of(self.sfreq, how.sfreq if how and how.sfreq else signals.sfreq)
        warn_former_name(self.method, method)
        warn_mistakes(suspicions(n_chans, n_times, classes.tolist()))
        warn_flat(signals.values, ch_names)
        warn_single_shots(labels)
        began = time.perf_counter()
        seed = seed_of(self.random_state)
        recipe = self._recipe(geometry, len(labels))
        standardisation = Standardisation.of(signals.values, per_channel=self.per_channel)
        whose = None if among is None else _tensor(among)
        batch = Batch(_tensor(standardisation(signals.values)), _tensor(numbers), whose)
        rng = stream(seed, "base")
        with self._progress():
            # The replay is made now: teaching a new class later should not take longer than it must.
            base = sound(recipe.foundation.fit(batch, rng=rng))
            state = sound(recipe.recall(recipe.start(base, batch, rng=rng), rng=rng))
        logits_of(state, batch.values)
        self._know(
            geometry_=geometry,
            standardisation_=standardisation,
            seed_=seed,
            n_chans_=n_chans,
            n_times_=n_times,
            sfreq_=sfreq,
            ch_names_=ch_names,
            statistics_=BaseStatistics.of(signals.values),
            state_=state,
            classes_=classes,
            counts_=np.bincount(numbers),
            history_=[entry("base", 0, counted(labels), state.curves, began)],
        )
        return self

    @lesson
    def partial_fit(self, X: Any, y: Any, *, force: bool = False) -> Self:
        """Learn one or several new classes, together, from a few signals each.

        Signals whose scale or offset is nothing like that of the base data, as in another unit, are refused
        unless ``force`` says that they are right.
        """
        check_settings(self.get_params(deep=False))
        signals, labels = self._read_fitted(X, y)
        names, numbers = np.unique(labels, return_inverse=True)
        known = np.isin(names, self.classes_)
        if known.any():
            some = "are" if known.sum() > 1 else "is"
            raise ValueError(
                f"{_listed(names[known])} {some} known already, so nothing was learned; "
                f"add_shots (anchorinv add) takes more examples of known classes, partial_fit (anchorinv "
                f"learn) new classes only"
            )
        check_names([*self.classes_.tolist(), *names.tolist()])
        check_new_names(names.tolist(), self.classes_.tolist())
        warn_single_shots(labels)
        began = time.perf_counter()
        index = self.state_.session + 1
        # Beyond all numbers in use: after a class was forgotten they need not be the first ones.
        first = max(self.state_.classes) + 1
        # A class that is new has a spectrum of its own: only its unit is held against the base data.
        standardised = self._standardised(signals, force=force, shapes=False)
        batch = Batch(standardised, _tensor(numbers + first))
        rng = stream(self.seed_, "session", index)
        recipe = self._recipe(self.geometry_, len(labels))
        with self._progress():
            state = recipe.learn_session(self.state_, Session(index, batch), rng=rng)
        self._check_room(sound(state, before=self.state_))
        logits_of(state, batch.values)
        curves = state.curves[len(self.state_.curves) :]
        self._know(
            state_=state,
            classes_=np.concatenate([self.classes_, names]),
            counts_=np.concatenate([self.counts_, np.bincount(numbers)]),
            history_=[*self.history_, entry("session", index, counted(labels), curves, began)],
        )
        return self

    @lesson
    def add_shots(self, X: Any, y: Any, *, force: bool = False) -> Self:
        """Take in more examples of known classes: their prototypes move, the network stays.

        A prototype becomes the mean over the examples seen so far, each with the same weight. The features
        of the examples join the anchors, so a new class is better remembered in the next session.
        Methods without anchors replay what they replayed before. Signals of another unit are refused, as in
        :meth:`partial_fit`, unless ``force`` says that they are right.
        """
        signals, labels = self._read_fitted(X, y)
        names = np.unique(labels)
        if not np.isin(names, self.classes_).all():
            unknown = names[~np.isin(names, self.classes_)]
            like = likeness(unknown.tolist(), self.classes_.tolist())
            raise ValueError(
                f"{_listed(unknown)} {'is' if len(unknown) == 1 else 'are'} not among the known ones{like}; "
                f"teach new classes with partial_fit (anchorinv learn)"
            )
        state = self.state_
        if not isinstance(state.head, Cosine | StatisticalHead):
            raise ValueError(
                f"{self.method} has no prototypes to move; train it anew with all examples, or another method"
            )
        began = time.perf_counter()
        column = {name: i for i, name in enumerate(self.classes_.tolist())}
        columns = np.array([column[label] for label in labels.tolist()])
        features = Batch(
            self._features(self._standardised(signals, force=force, shapes=False)),
            torch.tensor(state.classes)[columns],
        )
        recipe = self._recipe(self.geometry_, len(labels))
        learned = recipe.add_shots(state, features, self.counts_.tolist())
        self._check_room(learned)
        finite(mapped(learned.head, features.values))
        self._know(
            state_=learned,
            counts_=self.counts_ + np.bincount(columns, minlength=len(self.classes_)),
            history_=[*self.history_, entry("shots", state.session, counted(labels), (), began)],
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return a class for each signal (n,)."""
        now = copy(self)  # as it is: another thread may be teaching it
        best = now._logits(X).argmax(1).numpy()
        predicted: np.ndarray = now.classes_[best]
        return predicted

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class (n, n_classes); columns follow ``classes_``."""
        return F.softmax(copy(self)._logits(X), dim=1).numpy()

    def transform(self, X: Any) -> np.ndarray:
        """Return the network's features of each signal (n, dim), without the views that some methods add."""
        now = copy(self)
        features = now._features(now._standardised(now._read_known(X)))
        return features[:, : features.shape[1] - sum(sizes_of(now.state_))].numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def _recipe(self, geometry: Geometry, n_samples: int) -> Recipe:
        return recipe_of(self.get_params(deep=False), geometry, n_samples)

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

    def _check_fitted(self) -> None:
        if not hasattr(self, "state_"):
            raise NotFittedError(
                "this model has not learned anything yet; call fit with the base classes first"
            )

    def _read_known(self, X: Any) -> Signals:
        self._check_fitted()
        signals = in_unit(in_order(self._read(X, self.sfreq_), self.ch_names_), self.preprocessing_.unit)
        check_same_shape(signals, (self.n_chans_, self.n_times_))
        return signals

    def _read_fitted(self, X: Any, y: Any) -> tuple[Signals, np.ndarray]:
        signals = self._read_known(X)
        labels = read_labels(y, len(signals.values))
        if label_kind(labels) != label_kind(self.classes_):
            raise ValueError(
                f"the model's classes are {label_kind(self.classes_)}, these labels are "
                f"{label_kind(labels)}; use one kind"
            )
        return signals, labels

    def _standardised(self, signals: Signals, *, force: bool = True, shapes: bool = True) -> Tensor:
        """Return signals as the network takes them; of another unit none, unless forced, or a warning."""
        found = self._drift(signals, shapes=shapes)
        standardised = self.standardisation_(signals.values)
        check_scale(standardised, found)
        if not force:
            refuse_drift(found)
        warn_drift(found)
        return _tensor(standardised)

    def _features(self, standardised: Tensor) -> Tensor:
        return mapped(self.state_.tail, mapped(self.state_.trunk, standardised))

    def _logits(self, X: Any) -> Tensor:
        signals = self._standardised(self._read_known(X))
        return logits_of(self.state_, signals)

    def _check_room(self, state: State) -> None:
        kept = (state.anchors, state.replay, state.recordings)
        most = max((len(batch) for batch in kept if batch), default=0)
        check_kept(current_name(self.method), self.geometry_, len(state.classes), most)
        check_held(sum(tensor.nbytes for tensor in packed(replace(state, signals=None))[0].values()))


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _listed(names: np.ndarray) -> str:
    quoted = [repr(name) for name in names.tolist()]
    return ("class " if len(quoted) == 1 else "classes ") + " and ".join(quoted)

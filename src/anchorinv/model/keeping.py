"""What a fitted classifier does beside learning and predicting: be kept, handed over, checked, and forget."""

import time
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch import Tensor

from anchorinv.core.catalogue import current_name
from anchorinv.core.centring import calibrated, check_calibration, uncalibrated
from anchorinv.core.geometry import Geometry
from anchorinv.core.standardise import Standardisation
from anchorinv.core.types import State
from anchorinv.history import entry
from anchorinv.inputs import Signals
from anchorinv.learning import lesson
from anchorinv.mistaken import likeness
from anchorinv.model.bundle import Bundle, load_bundle, save_bundle
from anchorinv.model.distances import FEWEST
from anchorinv.model.drift import Drift, drift
from anchorinv.model.forgetting import forgotten
from anchorinv.model.statistics import BaseStatistics, Statistics
from anchorinv.settings import check_settings
from anchorinv.signal.preprocessing import AS_GIVEN, Preprocessing

# Settings that a bundle holds in a form of their own.
_APART = ("geometry", "preprocessing", "sfreq")


class Keepable:
    """The part of :class:`~anchorinv.AnchorInvClassifier` that outlives its process."""

    sfreq: float | None
    geometry: Geometry | None
    preprocessing: Preprocessing | None
    state_: State
    geometry_: Geometry
    standardisation_: Standardisation
    statistics_: BaseStatistics
    classes_: np.ndarray
    counts_: np.ndarray
    history_: list[dict[str, Any]]
    seed_: int
    n_chans_: int
    n_times_: int
    sfreq_: float | None
    ch_names_: tuple[str, ...] | None

    if TYPE_CHECKING:  # the classifier has them

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...  # noqa: D102
        def _check_fitted(self) -> None: ...
        def _read_known(self, X: Any) -> Signals: ...
        def _standardised(self, signals: Signals, *, force: bool = True, shapes: bool = True) -> Tensor: ...

    def save(self, path: Path | str, *, with_signals: bool = False, allow_recordings: bool = False) -> None:
        """Write the model to one file (``*.anchorinv``), whole or not at all.

        Parameters
        ----------
        path : where to; a file that is there is replaced when the new one is complete.
        with_signals : include the inverted signals, to look at; learning does not need them.
        allow_recordings : write a model that keeps real recordings (method ``real-replay``).
        """
        save_bundle(
            path, copy(self).to_bundle(), with_signals=with_signals, allow_recordings=allow_recordings
        )

    @classmethod
    def load(cls, path: Path | str, *, allow_recordings: bool = False) -> Self:
        """Return the model in a file; it predicts bit by bit as it did, and can go on learning."""
        bundle = load_bundle(path, allow_recordings=allow_recordings)
        try:
            return cls.from_bundle(bundle)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def to_bundle(self) -> Bundle:
        """Return the fitted model as a value."""
        self._check_fitted()
        given = self.get_params(deep=False)
        settings = {name: _plain(value) for name, value in given.items() if name not in _APART}
        if isinstance(settings["random_state"], np.random.RandomState):
            settings["random_state"] = self.seed_
        settings["verbose"] = bool(settings["verbose"])
        return Bundle(
            method=current_name(settings.pop("method")),
            geometry=self.geometry_,
            state=self.state_,
            classes=tuple(self.classes_.tolist()),
            standardisation=self.standardisation_,
            statistics=self.statistics_,
            counts=tuple(self.counts_.tolist()),
            seed=self.seed_,
            settings=settings,
            geometry_given=self.geometry is not None,
            history=tuple(self.history_),
            sfreq=self.sfreq_,
            ch_names=self.ch_names_,
            preprocessing=self.preprocessing,
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Return a fitted model from a value; settings that it does not name keep their defaults."""
        apart = {
            "method": bundle.method,
            "geometry": bundle.geometry if bundle.geometry_given else None,
            "preprocessing": bundle.preprocessing,
            "sfreq": bundle.sfreq,
        }
        if unknown := sorted(set(bundle.settings) - set(cls().get_params(deep=False))):
            raise ValueError(f"nobody knows its settings {', '.join(unknown)}")
        model = cls(**{**bundle.settings, **apart})
        check_settings(model.get_params(deep=False))
        model.state_, model.geometry_ = bundle.state, bundle.geometry
        model.n_chans_, model.n_times_ = bundle.geometry.n_chans, bundle.geometry.n_times
        model.standardisation_, model.statistics_ = bundle.standardisation, bundle.statistics
        model.classes_, model.counts_ = np.array(bundle.classes), np.array(bundle.counts)
        model.seed_, model.history_ = bundle.seed, list(bundle.history)
        model.sfreq_, model.ch_names_ = bundle.sfreq, bundle.ch_names
        return model

    @property
    def preprocessing_(self) -> Preprocessing:
        """What recordings go through on their way to this model, windows and all."""
        return replace(
            self.preprocessing or AS_GIVEN, ch_names=self.ch_names_, sfreq=self.sfreq_, n_times=self.n_times_
        )

    def check(self, X: Any) -> Drift:
        """Compare signals (n, n_chans, n_times) with the base data, channel by channel; see ``verdict``.

        Scale and offset are compared, and of five windows or more spectra and correlations between channels.
        """
        return self._drift(self._read_known(X))

    def _drift(self, signals: Signals, *, shapes: bool = True) -> Drift:
        looked = shapes and self.statistics_.has_shapes and len(signals.values) >= FEWEST
        found = Statistics.of(signals.values, shapes=looked)
        return drift(found, self.statistics_, self.ch_names_, n_times=self.n_times_, sfreq=self.sfreq_)

    @lesson
    def calibrate(self, X: Any, *, force: bool = False) -> Self:
        """Adapt to a person or a day that was not seen, by signals (n, n_chans, n_times) without labels.

        The middle of their features is moved to that of the base data, and whatever is predicted or taught
        afterwards with it, until :meth:`uncalibrate`. They should do about the same things as the people of
        the base data, about as often.

        Parameters
        ----------
        X : array or mne.Epochs
            Ten windows or more.
        force : bool, default=False
            Calibrate although rehearsal in ``fit`` speaks against it, or says nothing because it was not told
            ``groups``; and by signals whose scale or offset is nothing like that of the base data.
        """
        self._check_fitted()
        signals = self._read_known(X)
        check_calibration(self.state_, len(signals.values), force=force)
        self._know(state_=calibrated(self.state_, self._standardised(signals, force=force)))
        return self

    @lesson
    def uncalibrate(self) -> Self:
        """Undo :meth:`calibrate`: the model is again as it is for everybody."""
        self._check_fitted()
        self._know(state_=uncalibrated(self.state_))
        return self

    @lesson
    def forget_class(self, label: Any) -> Self:
        """Remove a class: its prototype, anchors, replay and recordings.

        The default method is then as if it had never been taught the class; with others, predictions among
        the other classes are unchanged, but weights that were trained or finetuned while the class was there
        may keep traces of it: only training anew without it does not.
        """
        self._check_fitted()
        began = time.perf_counter()
        found = np.flatnonzero(self.classes_ == label)
        if not len(found) or isinstance(label, bool | np.bool_) != (self.classes_.dtype == np.bool_):
            known = self.classes_.tolist()
            raise ValueError(
                f"class {label!r} is not known, so it cannot be forgotten; known are "
                f"{', '.join(map(repr, known))}{likeness([label], known)}"
            )
        column = int(found[0])
        try:
            state = forgotten(self.state_, self.state_.classes[column])
        except ValueError as error:
            raise ValueError(f"class {label!r} cannot be forgotten: {error}") from None
        label, count = self.classes_[[column]].tolist()[0], self.counts_[[column]].tolist()[0]
        self._know(
            state_=state,
            classes_=np.delete(self.classes_, column),
            counts_=np.delete(self.counts_, column),
            history_=[*self.history_, entry("forgotten", state.session, {label: count}, (), began)],
        )
        return self

    def _know(self, **learned: Any) -> None:
        """Take over what was learned, all at once: a thread that predicts sees the model before or after."""
        self.__dict__ = vars(self) | learned


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value

"""The preprocessing of recordings as one value, in code and in files; channels by name, in any spelling."""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from anchorinv.errors import listed
from anchorinv.signal.headers import MAX_ABSOLUTE, MAX_CHANNELS, MAX_SFREQ, MIN_SFREQ

#: Units per volt, the unit in which recordings are read.
UNITS = {"V": 1.0, "mV": 1e3, "µV": 1e6, "nV": 1e9}
_FORMS = {"v": "V", "mv": "mV", "uv": "µV", "µv": "µV", "μv": "µV", "nv": "nV"}
AVERAGE, BIPOLAR = "average", "bipolar"
_TYPE = re.compile(r"(eeg|emg|ecg|eog)[\s_]+", re.IGNORECASE)
_REFERENCE = re.compile(r"[-_ ]+(ref|le|avg)$", re.IGNORECASE)
_Normalisation = Callable[[str], str]  # of names of channels


def _visible(text: str) -> str:
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text):
        raise ValueError("it contains invisible characters")
    return text


Text = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_visible)]
Rate = Annotated[float, Field(ge=MIN_SFREQ, le=MAX_SFREQ)]
Samples = Annotated[int, Field(ge=1, le=2**40)]

#: How pydantic checks values from files: types as they are, bounds, no other keys.
_CHECKED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, revalidate_instances="always")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter along time that keeps a band of frequencies.

    Parameters
    ----------
    low, high : float or None, default=None
        Edges in Hz; None leaves that side open.
    order : int, default=4
        Of the design; a band-pass has twice as many poles.
    causal : bool, default=True
        Run forwards only, as a live source allows; otherwise forwards and backwards, without delay.
    attenuation : float or None, default=None
        None for Butterworth; otherwise Chebyshev type II with this attenuation in dB in the stop band, and
        padding as in MATLAB (:meth:`padlen`), since such filters exist to reproduce MATLAB code.
    from_rest : bool, default=False
        Start a causal filter as if there had been zeros before, as some published preprocessing does;
        otherwise as if the first sample had always been there, so that an offset leaves no trace.

    Examples
    --------
    >>> Filter(4, 40).sections(250).shape
    (4, 6)
    """

    __pydantic_config__ = _CHECKED

    low: Rate | None = None
    high: Rate | None = None
    order: int = 4
    causal: bool = True
    attenuation: Annotated[float, Field(gt=0, le=300)] | None = None
    from_rest: bool = False

    def __post_init__(self) -> None:
        edges = self._edges
        if not edges or not all(0 < edge < np.inf for edge in edges) or edges != sorted(set(edges)):
            got = f"got {self.low} and {self.high}"
            raise ValueError(f"a filter needs edges above 0 Hz, the lower one first, {got}")
        if not 1 <= self.order <= 20:
            raise ValueError(f"order (={self.order}) of the filter must be between 1 and 20")

    @property
    def _edges(self) -> list[float]:
        return [edge for edge in (self.low, self.high) if edge is not None]

    def sections(self, sfreq: float) -> npt.NDArray[np.float64]:
        """Return second-order sections, shape (n_sections, 6), for a sampling rate in Hz."""
        # Imported here, so that settings load without scipy.
        from scipy import signal

        edges = self._edges
        if max(edges) >= sfreq / 2:
            nyquist = f"above the Nyquist frequency of a rate of {sfreq:g} Hz"
            needed = f"more than {2 * max(edges):g} Hz is needed"
            raise ValueError(f"a filter to {max(edges):g} Hz is {nyquist}; {needed}")
        kind = "bandpass" if len(edges) == 2 else "highpass" if self.high is None else "lowpass"
        design = {"Wn": np.squeeze(edges), "btype": kind, "fs": sfreq, "output": "sos"}
        if self.attenuation is None:
            return np.asarray(signal.butter(self.order, **design))
        return np.asarray(signal.cheby2(self.order, self.attenuation, **design))

    def padlen(self, sfreq: float) -> int:
        """Return by how many samples both ends are extended before filtering in both directions.

        By scipy's rule three times the coefficients of the transfer function; by MATLAB's (``filtfilt``)
        three times one less, its order. Both then start as if the first value had always been there.
        """
        if self.attenuation is None:
            return 3 * (2 * len(self.sections(sfreq)) + 1)
        return 3 * self.order * len(self._edges)

    def __str__(self) -> str:
        low, high = ("" if edge is None else f"{edge:g}" for edge in (self.low, self.high))
        name, ends = "Butterworth", ""
        if self.attenuation is not None:
            name, ends = f"Chebyshev II, {self.attenuation:g} dB", ", ends as in MATLAB"
        start = ", from rest" if self.from_rest else ""
        phase = f"causal{start}" if self.causal else f"zero phase, not causal{ends}"
        return f"{low}-{high} Hz, {name} of order {self.order}, {phase}"


#: The filter of EEG-Conformer's preprocessing, applied to each cut window.
CONFORMER = Filter(4.0, 40.0, order=6, causal=False, attenuation=60.0)


def parse_band(text: str, *, order: int = 5, causal: bool = True) -> Filter:
    """Read "0.5-40", "1-" or "-30" (Hz), or "conformer".

    Examples
    --------
    >>> str(parse_band("0.5-40"))
    '0.5-40 Hz, Butterworth of order 5, causal'
    """
    if text == "conformer":
        return CONFORMER
    number = r"(\d+(?:\.\d+)?)?"
    edges = re.fullmatch(rf"{number}\s*-\s*{number}", text.strip())
    if not edges or not any(edges.groups()):
        raise ValueError(f"a filter is written 0.5-40, 1- or -30 (Hz), or conformer; got {text!r}")
    low, high = (float(edge) if edge else None for edge in edges.groups())
    return Filter(low, high, order=order, causal=causal)


def unit_of(text: str) -> str | None:
    """Return one of ``UNITS`` for any of its spellings; None for other units.

    Examples
    --------
    >>> unit_of("uV"), unit_of(" MV "), unit_of("mmHg")
    ('µV', 'mV', None)
    """
    return _FORMS.get(text.strip().casefold())


def conversion(source: str | None, target: str | None) -> float:
    """Return the factor from one unit to another; 1 where either is unknown."""
    return UNITS[target] / UNITS[source] if source and target else 1.0


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Preprocessing of recordings for a model.

    The steps in order: channels, unit, gaps, filter, limit, reference, rate, windows.

    Parameters
    ----------
    ch_names : tuple of str or None, default=None
        Channels in the order of the signals; None where unknown.
    unit : str or None, default=None
        Of voltages, one of ``UNITS``; None where unknown: recordings are then taken in volts.
    filter : Filter or None, default=None
        Applied to recordings before windows are cut; None for none.
    unrepeatable : str or None, default=None
        Description of a step that cannot be repeated.
    reference : str or None, default=None
        None as recorded; "average" subtracts the mean over all channels at every sample; "bipolar" makes
        channels called A-B of electrodes A and B; otherwise the name of a channel to subtract.
    limit : float or None, default=None
        Samples beyond it, in ``unit``, are clipped to it before the reference.
    gaps : {"hold", "zero"}, default="hold"
        Value of missing samples until windows are cut: the last one, or 0.
    sfreq : float or None, default=None
        Of the signals, in Hz; recordings at another rate are resampled. None where unknown.
    resampling : {"polyphase", "fourier"}, default="polyphase"
        "fourier" is by the spectrum of the whole recording, as some authors did.
    by_trial : bool, default=False
        Whether trials were cut out first and then filtered or resampled one by one.
    n_times : int or None, default=None
        Samples of a window; None where unknown.
    step : int or None, default=None
        Samples from a window's start to the next one's; None for a window.

    Examples
    --------
    >>> Preprocessing(("C3", "C4"), "uV", Filter(4, 40), reference="average").steps
    ['filtered: 4-40 Hz, Butterworth of order 4, causal', 'common average reference']
    """

    __pydantic_config__ = _CHECKED

    ch_names: Annotated[tuple[Text, ...], Field(max_length=MAX_CHANNELS)] | None = None
    unit: Text | None = None
    filter: Filter | None = None
    unrepeatable: Text | None = None
    reference: Text | None = None
    limit: Annotated[float, Field(gt=0, le=MAX_ABSOLUTE)] | None = None
    gaps: Literal["hold", "zero"] = "hold"
    sfreq: Rate | None = None
    resampling: Literal["polyphase", "fourier"] = "polyphase"
    by_trial: bool = False
    n_times: Samples | None = None
    step: Samples | None = None

    def __post_init__(self) -> None:
        names = self.ch_names
        if self.unit is not None:
            if (unit := unit_of(self.unit)) is None:
                raise ValueError(f"unit (={self.unit!r}) must be one of {', '.join(UNITS)}")
            object.__setattr__(self, "unit", unit)
        if names is not None and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"channel {twice!r} is named twice; channels are matched by name")
        for name, allowed in (("gaps", ("hold", "zero")), ("resampling", ("polyphase", "fourier"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} (={getattr(self, name)!r}) must be one of {', '.join(allowed)}")
        for name in ("limit", "sfreq", "n_times", "step"):
            if (value := getattr(self, name)) is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} (={value!r}) must lie above 0")
        if self.reference not in (None, AVERAGE) and names is None:
            raise ValueError(f"a reference ({self.reference}) needs ch_names, the channels by name")
        if self.reference == BIPOLAR and (odd := [n for n in names or () if not all(n.partition("-")[::2])]):
            raise ValueError(f"bipolar channels are called A-B after two electrodes, got {listed(odd)}")

    @property
    def inputs(self) -> tuple[str, ...] | None:
        """The channels that a recording must have, in the order in which stages take them."""
        if self.ch_names is None or self.reference in (None, AVERAGE):
            return self.ch_names
        if self.reference == BIPOLAR:
            return tuple(dict.fromkeys(end for name in self.ch_names for end in name.partition("-")[::2]))
        assert self.reference is not None
        return self.ch_names if self.reference in self.ch_names else (*self.ch_names, self.reference)

    @property
    def not_repeatable(self) -> str | None:
        """Why the preprocessing cannot be repeated on a continuous recording; None if it can."""
        if self.unrepeatable:
            return f"signals processed by {self.unrepeatable}, which cannot be repeated"
        if self.by_trial:
            step = f"filtered, {self.filter}" if self.filter else "resampled"
            return f"trials that were cut first and then processed one by one ({step})"
        return None

    @property
    def not_live(self) -> str | None:
        """Why the preprocessing cannot be repeated on a live source; None if it can."""
        if (reason := self.not_repeatable) is not None:
            return reason
        if self.filter is not None and not self.filter.causal:
            return f"signals filtered with a look ahead ({self.filter})"
        return "signals resampled by their spectrum as a whole" if self.resampling == "fourier" else None

    @property
    def factor(self) -> float:
        """Factor for voltages, which are read in volts."""
        return UNITS[self.unit] if self.unit else 1.0

    @property
    def steps(self) -> list[str]:
        """Descriptions of the steps."""
        steps = {
            "bipolar pairs": self.reference == BIPOLAR,
            f"{'each trial ' if self.by_trial else ''}filtered: {self.filter}": self.filter is not None,
            f"clipped at ±{self.limit or 0:g} {self.unit or ''}".rstrip(): self.limit is not None,
            "common average reference": self.reference == AVERAGE,
            f"referenced to {self.reference}": self.reference not in (None, AVERAGE, BIPOLAR),
            str(self.unrepeatable): self.unrepeatable is not None,
        }
        return [description for description, applies in steps.items() if applies]


#: No preprocessing, or none known.
AS_GIVEN = Preprocessing()


def facts_of(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a preprocessing as plain JSON values, without defaults."""
    facts = _non_defaults(preprocessing, AS_GIVEN)
    if (band := preprocessing.filter) is not None:
        edges = {"low": band.low, "high": band.high, "order": band.order}
        facts["filter"] = edges | _non_defaults(band, Filter(low=1.0))
    return dict(json.loads(json.dumps(facts)))


def _non_defaults(value: Preprocessing | Filter, default: Preprocessing | Filter) -> dict[str, Any]:
    defaults = asdict(default)
    return {name: fact for name, fact in asdict(value).items() if fact != defaults[name]}


def preprocessing_from(facts: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing from plain values; a ValueError names the first wrong one."""
    return TypeAdapter(Preprocessing).validate_json(json.dumps(facts))


def preprocessing_of(meta: Mapping[str, Any], **known: Any) -> Preprocessing:
    """Return the preprocessing in the ``meta`` of a prepared folder; other fields are ``known``.

    Folders from earlier versions have fewer fields.
    """
    if isinstance(facts := meta.get("preprocessing"), Mapping):
        return preprocessing_from({**facts_of(Preprocessing(**known)), **facts})
    band, unit = meta.get("filter"), meta.get("unit")
    known["unit"] = unit_of(unit) if isinstance(unit, str) else None
    from_rest: dict[str, bool] = {}
    if meta.get("form") == "own" or meta.get("name") == "grabmyo":
        # As earlier versions did: filters from rest, zeros in gaps, rates by the spectrum, trials one by one.
        options = meta.get("options") if isinstance(meta.get("options"), Mapping) else {}
        resampled = bool(options and options.get("resample")) or meta.get("name") == "grabmyo"
        has_trials = any(str(name).endswith(".npz") for name in meta.get("sources") or ())
        known |= {"gaps": "zero", "resampling": "fourier" if resampled else "polyphase"}
        known["by_trial"] = has_trials and bool(band or resampled)
        from_rest = {"from_rest": True}
    if not band or band == "none":
        return Preprocessing(**known)
    try:
        return Preprocessing(**known, filter=Filter(**from_rest, **band))
    except (AttributeError, TypeError, ValueError):
        return Preprocessing(**known, unrepeatable=str(band))


def renamed(names: Sequence[str], rename: Mapping[str, str] | None, *, source: str) -> tuple[str, ...]:
    """Return names after ``rename`` (old name: new name).

    A missing old name is an error, unless the recording has the new one already, as one file of many may.
    ``source`` is the recording, for messages.
    """
    if not rename:
        return tuple(names)
    new_names = list(names)
    for old, new in rename.items():
        if (place := find_channel(old, names)) is not None:
            new_names[place] = new
        elif new not in names:
            present = f"there is {listed(names, most=40)}"
            raise ValueError(f"{source}: there is no channel {old!r} to be called {new!r}; {present}")
    if len(set(new_names)) < len(new_names):
        twice = max(new_names, key=new_names.count)
        raise ValueError(f"{source}: two channels would be called {twice!r}; rename the other one, too")
    return tuple(new_names)


def pick_channels(wanted: Sequence[str], present: Sequence[str], *, source: str) -> list[int]:
    """Return the indices of the wanted channels among those present, in the order wanted.

    Names are compared exactly, then without case, spaces and dots, then without a type prefix ("EEG ") and a
    reference suffix ("-REF"); different types never match. Ambiguous names are refused. ``source`` is the
    recording, for messages.

    Examples
    --------
    >>> pick_channels(["C3", "Cz"], ["EEG CZ-REF", "EOG", "EEG C3-REF"], source="day2.edf")
    [2, 0]
    """
    index = _index(present)
    matches = [_place(name, present, index) for name in wanted]
    if missing := [name for name, place in zip(wanted, matches, strict=True) if place is None]:
        remedy = "if they are there under other names, map them with --channels OLD=NEW"
        raise ValueError(
            f"{source} lacks {len(missing)} of {len(wanted)} channels: {listed(missing, most=8)}; it has "
            f"{listed(present, most=40)}; {remedy} (in Python rename={{OLD: NEW}})"
        )
    places = [place for place in matches if place is not None]
    if len(set(places)) < len(places):
        twice = max(places, key=places.count)
        names = listed([name for name, place in zip(wanted, places, strict=True) if place == twice])
        shared = f"{names} would all be its channel {present[twice]!r}"
        raise ValueError(f"{source}: {shared}; name each channel once")
    return places


def find_channel(name: str, present: Sequence[str]) -> int | None:
    """Return the index of the channel that a name matches; None if there is none, or several."""
    return _place(name, present, _index(present))


_Index = dict[_Normalisation, dict[str, list[int]]]


def _index(present: Sequence[str]) -> _Index:
    """Return the channels by their normalised names, the most exact normalisation first."""
    index: _Index = {str: {}, _loose: {}, _bare: {}}
    for normalise, channels in index.items():
        for i, name in enumerate(present):
            channels.setdefault(normalise(name), []).append(i)
    return index


def _place(name: str, present: Sequence[str], index: _Index) -> int | None:
    for normalise, channels in index.items():
        places = channels.get(normalise(name), [])
        if normalise is _bare and (kind := _type(name)):
            places = [i for i in places if _type(present[i]) in ("", kind)]
        if places:
            return places[0] if len(places) == 1 else None
    return None


def parse_channels(texts: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Read "C3,EEG 4=Cz", once or several times: the names to keep, in order, and the renamings.

    Examples
    --------
    >>> parse_channels(["C3, EEG 4=Cz", "C4"])
    (('C3', 'Cz', 'C4'), {'EEG 4': 'Cz'})
    """
    names, rename = [], {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        old, equals, new = (part.strip() for part in item.partition("="))
        if not old or (equals and not new):
            raise ValueError(f"channels are written C3,C4 or OLD=NEW, got {item!r} between commas")
        names.append(new or old)
        if equals:
            if old in rename:
                raise ValueError(f"channel {old!r} is renamed twice; give it one name")
            rename[old] = new
    if len(set(names)) < len(names):
        raise ValueError(f"channel {max(names, key=names.count)!r} is wanted twice; name each once")
    return tuple(names), rename


def _loose(name: str) -> str:
    return re.sub(r"[\s.]", "", name.casefold())


def _bare(name: str) -> str:
    return _loose(_REFERENCE.sub("", _TYPE.sub("", name.strip(), count=1)))


def _type(name: str) -> str:
    prefix = _TYPE.match(name.strip())
    return prefix[1].casefold() if prefix else ""

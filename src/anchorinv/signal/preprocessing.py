"""What recordings go through before a model sees them: one value, the same wherever it is written down."""

from dataclasses import dataclass
from typing import Literal

from anchorinv.problems import listed
from anchorinv.signal.filters import Filter

#: How many of each unit make a volt, the unit in which recordings are read.
UNITS = {"V": 1.0, "mV": 1e3, "µV": 1e6, "nV": 1e9}
_FORMS = {"v": "V", "mv": "mV", "uv": "µV", "µv": "µV", "μv": "µV", "nv": "nV"}
AVERAGE, BIPOLAR = "average", "bipolar"


def unit_of(text: str) -> str | None:
    """Return one of ``UNITS`` however it is spelled, None if it is none.

    Examples
    --------
    >>> unit_of("uV"), unit_of(" MV "), unit_of("mmHg")
    ('µV', 'mV', None)
    """
    return _FORMS.get(text.strip().casefold())


def conversion(source: str | None, target: str | None) -> float:
    """Return what values in one unit are multiplied by to be in another; 1 where either is not known.

    Examples
    --------
    >>> conversion("V", "µV"), conversion(None, "µV")
    (1000000.0, 1.0)
    """
    return UNITS[target] / UNITS[source] if source and target else 1.0


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How recordings become the signals that a model sees.

    The steps in order: channels, unit, gaps, filter, limit, reference, rate, windows.

    Parameters
    ----------
    ch_names : channels in the order of the signals; None where nobody knows.
    unit : of voltages, one of ``UNITS``; None where nobody knows: recordings are then taken in volts.
    filter : applied to recordings before windows are cut; None for none.
    unrepeatable : something that was done and that we cannot repeat, in words.
    reference : None as recorded; "average" takes the mean over all channels away at every sample; "bipolar"
        makes channels called A-B of electrodes A and B; otherwise the name of a channel to take away.
    limit : samples beyond it, in ``unit``, are clipped to it before the reference.
    gaps : what stands for missing samples, the last value ("hold") or 0 ("zero"), until windows are cut.
    sfreq : of the signals, in Hz; recordings at another rate are resampled. None where nobody knows.
    resampling : "polyphase", or "fourier" (by the spectrum of the whole recording, as some authors did).
    by_trial : whether trials were cut out first and then filtered or resampled one by one.
    n_times : samples of a window; None where nobody knows.
    step : samples from a window's start to the next one's; None for a window.
    """

    ch_names: tuple[str, ...] | None = None
    unit: str | None = None
    filter: Filter | None = None
    unrepeatable: str | None = None
    reference: str | None = None
    limit: float | None = None
    gaps: Literal["hold", "zero"] = "hold"
    sfreq: float | None = None
    resampling: Literal["polyphase", "fourier"] = "polyphase"
    by_trial: bool = False
    n_times: int | None = None
    step: int | None = None

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
        self._check_reference()

    def _check_reference(self) -> None:
        if self.reference in (None, AVERAGE):
            return
        if self.ch_names is None:
            raise ValueError(f"a reference ({self.reference}) needs ch_names, the channels by name")
        if self.reference == BIPOLAR:
            odd = [name for name in self.ch_names if not all(name.partition("-")[::2])]
            if odd:
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
        """Why a continuous recording cannot be brought to what the model was trained on; None if it can."""
        if self.unrepeatable:
            return f"signals processed by {self.unrepeatable}, which cannot be repeated"
        if self.by_trial:
            done = f"filtered, {self.filter}" if self.filter else "resampled"
            return f"trials that were cut first and then processed one by one ({done})"
        return None

    @property
    def not_live(self) -> str | None:
        """Why a live source cannot be brought to what the model was trained on; None if it can."""
        if (reason := self.not_repeatable) is not None:
            return reason
        if self.filter is not None and not self.filter.causal:
            return f"signals filtered with a look ahead ({self.filter})"
        return "signals resampled by their spectrum as a whole" if self.resampling == "fourier" else None

    @property
    def factor(self) -> float:
        """What voltages, read in volts, are multiplied by."""
        return UNITS[self.unit] if self.unit else 1.0

    @property
    def steps(self) -> list[str]:
        """What is done, in words."""
        found = {
            "bipolar pairs": self.reference == BIPOLAR,
            f"{'each trial ' if self.by_trial else ''}filtered: {self.filter}": self.filter is not None,
            f"clipped at ±{self.limit or 0:g} {self.unit or ''}".rstrip(): self.limit is not None,
            "common average reference": self.reference == AVERAGE,
            f"referenced to {self.reference}": self.reference not in (None, AVERAGE, BIPOLAR),
            str(self.unrepeatable): self.unrepeatable is not None,
        }
        return [words for words, done in found.items() if done]


#: Nothing known, nothing done.
AS_GIVEN = Preprocessing()

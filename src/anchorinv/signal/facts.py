"""A preprocessing as plain values: the same in a prepared folder, a model file and a study's settings."""

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from anchorinv.signal.filters import Filter
from anchorinv.signal.limits import CHANNELS, FASTEST, SLOWEST
from anchorinv.signal.preprocessing import Preprocessing, unit_of


def _seen(text: str) -> str:
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text):
        raise ValueError("it holds characters that nobody can see")
    return text


Text = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_seen)]
Rate = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]
Samples = Annotated[int, Field(ge=1, le=2**40)]


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FilterFacts(_Facts):
    """Of a :class:`~anchorinv.signal.filters.Filter`."""

    low: Rate | None = None
    high: Rate | None = None
    order: Annotated[int, Field(ge=1, le=20)] = 4
    causal: bool = True
    attenuation: Annotated[float, Field(gt=0, le=300)] | None = None
    from_rest: bool = False


class PreprocessingFacts(_Facts):
    """Of a :class:`~anchorinv.signal.preprocessing.Preprocessing`; what is not named has its default."""

    ch_names: Annotated[tuple[Text, ...], Field(max_length=CHANNELS)] | None = None
    unit: Text | None = None
    filter: FilterFacts | None = None
    unrepeatable: Text | None = None
    reference: Text | None = None
    limit: Annotated[float, Field(gt=0, le=1e30)] | None = None
    gaps: Literal["hold", "zero"] = "hold"
    sfreq: Rate | None = None
    resampling: Literal["polyphase", "fourier"] = "polyphase"
    by_trial: bool = False
    n_times: Samples | None = None
    step: Samples | None = None

    @property
    def value(self) -> Preprocessing:
        """What these facts stand for; a ValueError if they contradict each other."""
        facts = {name: getattr(self, name) for name in type(self).model_fields if name != "filter"}
        return Preprocessing(**facts, filter=None if self.filter is None else Filter(**dict(self.filter)))


def facts_of(how: Preprocessing) -> dict[str, Any]:
    """Return a preprocessing as plain JSON values; what has its default is left out."""
    usual = asdict(Preprocessing())
    facts = {name: value for name, value in asdict(how).items() if value != usual[name]}
    if how.filter is not None:
        plain = asdict(Filter(low=1.0))
        facts["filter"] = {
            name: value
            for name, value in asdict(how.filter).items()
            if name in ("low", "high", "order") or value != plain[name]
        }
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


def preprocessing_from(facts: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing that plain values stand for; a ValueError names the first that is wrong."""
    return PreprocessingFacts.model_validate_json(json.dumps(facts)).value


def preprocessing_of(meta: Mapping[str, Any], **known: Any) -> Preprocessing:
    """Return what the ``meta`` of a prepared folder says; folders of former versions say less.

    Parameters
    ----------
    known : fields that the folder has in places of their own.
    """
    if isinstance(told := meta.get("preprocessing"), Mapping):
        return preprocessing_from({**facts_of(Preprocessing(**known)), **told})
    done, unit = meta.get("filter"), meta.get("unit")
    known["unit"] = unit_of(unit) if isinstance(unit, str) else None
    started: dict[str, bool] = {}
    if meta.get("form") == "own" or meta.get("name") == "grabmyo":
        # As former versions did: filters from rest, zeros in gaps, rates by the spectrum, trials one by one.
        options = meta.get("options") if isinstance(meta.get("options"), Mapping) else {}
        resampled = bool(options and options.get("resample")) or meta.get("name") == "grabmyo"
        cut = any(str(name).endswith(".npz") for name in meta.get("sources") or ())
        known |= {"gaps": "zero", "resampling": "fourier" if resampled else "polyphase"}
        known["by_trial"] = cut and bool(done or resampled)
        started = {"from_rest": True}
    if not done or done == "none":
        return Preprocessing(**known)
    try:
        return Preprocessing(**known, filter=Filter(**started, **done))
    except (AttributeError, TypeError, ValueError):
        return Preprocessing(**known, unrepeatable=str(done))

"""What a run was asked for and ran on, as files tell it: checked before it is believed."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from anchorinv.study.config import Study
from anchorinv.study.parts import check_number
from anchorinv.study.results import first_problem

FORMAT = 1

#: Versions and machine at one start.
Start = dict[str, str | int | float | None]
_STARTS = TypeAdapter(list[Start])


class _Set(BaseModel):
    """What is told of a data set."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str
    classes: list[str]


class About(BaseModel):
    """What ``config.json`` and the first line of a record hold.

    Parameters
    ----------
    data : data sets by name.
    people : whom each variant studies one by one.
    own : methods beside the study's.
    starts : in a record alone.
    """

    model_config = ConfigDict(extra="forbid")

    format: int
    hash: str
    study: Study
    data: dict[str, _Set]
    people: dict[str, Annotated[list[str], Field(min_length=1)]]
    own: list[str]
    starts: list[Start] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> "About":
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}, which this version reads")
        if set(self.people) != set(self.study.variants):
            raise ValueError("people are not those of the study's variants")
        for variant, experiment in self.study.variants.items():
            named = (self.people[variant], [*experiment.methods, *self.own])
            if any(len(set(each)) < len(each) for each in named):
                raise ValueError("a person or a method is named twice")
            known = self.data.get(experiment.data.name)
            course = experiment.protocol
            asked = [c for c in (*course.base_classes, *course.sessions) if isinstance(c, str)]
            if known is None or not set(asked) <= set(known.classes):
                raise ValueError(f"data set {experiment.data.name!r} is not told of, or lacks classes")
        check_number(self.study, self.people, self.own)
        return self


def checked(about: Any, path: Path) -> Study:
    """Return the study that a file tells of; ``about`` is what it holds."""
    try:
        return About.model_validate(about).study
    except ValidationError as error:
        raise ValueError(
            f"{path} is damaged: {first_problem(error)}; put a copy back, or run the study elsewhere"
        ) from None


def checked_starts(starts: Any, path: Path) -> list[Start]:
    """Return the starts that a file tells of."""
    try:
        return _STARTS.validate_python(starts)
    except ValidationError as error:
        raise ValueError(
            f"{path} is damaged: {first_problem(error)}; move it away, it tells of versions alone"
        ) from None

"""Options that several commands share, each with its one help text, and what they mean together."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorinv.terminal import complain, progress_bars

if TYPE_CHECKING:
    from anchorinv.datasets.own import Labelling
    from anchorinv.datasets.own_files import OwnOptions
    from anchorinv.serving.files import ReadOptions
    from anchorinv.serving.smoothing import Smoothing

Model = Annotated[Path, typer.Argument(help="A model file.", metavar="MODEL")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", metavar="MODEL")]
Allow = Annotated[bool, typer.Option("--allow-recordings", help="Handle models that hold real recordings.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
Device = Annotated[
    str, typer.Option(help="Where networks run: auto (the best there is), cpu, cuda, cuda:1 ..., or mps.")
]
Note = Annotated[
    str | None, typer.Option("--note", help="What this is, kept in the model's history and shown by info.")
]
Author = Annotated[
    str | None, typer.Option("--author", help="Who did it, kept in the model's history and shown by info.")
]
ZeroPhase = Annotated[
    bool, typer.Option("--zero-phase", help="Filter forwards and backwards instead of causally.")
]

_for_recordings = partial(typer.Option, rich_help_panel="For recordings")
#: What --reject does, in the help of each command that has it.
REJECT = (
    "Call windows unknown that are like none of the classes; about this share of known ones will be, too."
)

_KIND, _REQUIRED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter of a command that is a dataclass of options into one option for each of its fields.

    Examples
    --------
    >>> @with_options
    ... def show(trials: TrialOptions, quiet: Quiet = False) -> None:
    ...     pass
    >>> list(inspect.signature(show).parameters)
    ['events', 'start', 'stop', 'quiet']
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for each in inspect.signature(command).parameters.values():
        if is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            for field in fields(each.annotation):
                default = _REQUIRED if field.default is MISSING else field.default
                option = inspect.Parameter(field.name, _KIND, default=default, annotation=field.type)
                parameters.append(option)
        else:
            parameters.append(each.replace(kind=_KIND))
    parameters.sort(key=lambda each: each.default is not _REQUIRED)  # as Python wants them
    signature = inspect.Signature(parameters)

    @wraps(command)
    def expanded(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    expanded.__signature__ = signature  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    return expanded


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How the inputs of a model are read, beyond what they say themselves."""

    step: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds between windows of a recording; default: their length."),
    ] = None
    scale: Annotated[
        float,
        typer.Option(help="Multiply the signals by this, if their unit is not the model's (1e6: V to µV)."),
    ] = 1.0
    channels: Annotated[
        list[str] | None,
        typer.Option("--channels", help="Channels that have other names here: OLD=NEW, with commas between."),
    ] = None
    sfreq: Annotated[
        float | None, typer.Option("--sfreq", help="Rate in Hz of recordings that do not say theirs.")
    ] = None

    def reading(self) -> "ReadOptions":
        """Return them as the files of a model are read by."""
        from anchorinv.serving.files import ReadOptions
        from anchorinv.signal.readers import parse_channels

        if self.sfreq is not None and not 0 < self.sfreq < float("inf"):
            raise ValueError(f"--sfreq is a rate in Hz above 0, got {self.sfreq:g}")
        names, rename = parse_channels(self.channels or [])
        if plain := [name for name in names if name not in rename.values()]:
            raise ValueError(
                f"--channels takes OLD=NEW here, got {plain[0]!r}; the model knows which channels it takes"
            )
        return ReadOptions(self.step, self.scale, rename, self.sfreq)


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Which events of a recording are trials, and where these lie."""

    events: Annotated[
        list[str] | None,
        typer.Option(
            help="Events of the recording that are trials: T1=left,T2=right (anchorinv events lists them)."
        ),
    ] = None
    start: Annotated[
        float, typer.Option("--from", help="Where a trial begins, in seconds from its event.")
    ] = 0.0
    stop: Annotated[
        float | None, typer.Option("--to", help="Where it ends; without it where the event does by itself.")
    ] = None

    def labelling(self) -> "Labelling | None":
        """Return how events become labels; None if no events are named."""
        from anchorinv.datasets.own import Labelling

        if self.events:
            return Labelling.parse(self.events, self.start, self.stop)
        if self.start or self.stop is not None:
            raise ValueError("--from and --to say where trials lie around events; name these with --events")
        return None


@dataclass(frozen=True, slots=True)
class SteadyOptions:
    """How predictions of a continuous recording are made steady over time."""

    steady: Annotated[
        str | None,
        typer.Option(
            help="Make predictions of recordings steady over time: balanced. The four below go before it."
        ),
    ] = None
    vote: Annotated[
        float | None, typer.Option(help="Steady: majority vote among the windows of so many seconds.")
    ] = None
    time_constant: Annotated[
        float | None, typer.Option(help="Steady: time constant in seconds of averaged probabilities.")
    ] = None
    hysteresis: Annotated[
        float | None,
        typer.Option(help="Steady: margin (0 to 1) by which another class must exceed the one that holds."),
    ] = None
    dwell: Annotated[
        float | None, typer.Option(help="Steady: seconds that another class must win for until it holds.")
    ] = None

    def smoothing(self, window: float | None) -> "Smoothing | None":
        """Return them as one value, for windows of so many seconds (None: unknown); None if none is given."""
        from anchorinv.serving.smoothing import Smoothing, preset

        given = {name: getattr(self, name) for name in ("vote", "time_constant", "hysteresis", "dwell")}
        given = {name: value for name, value in given.items() if value is not None}
        settings = Smoothing(**given)
        if self.steady is None:
            return settings if given else None
        # A model without a rate is refused for that reason later on, whatever the length.
        return replace(preset(self.steady, window or 1.0), **given)


@dataclass(frozen=True, slots=True)
class CuttingOptions:
    """How windows are cut from recordings."""

    channels: Annotated[
        list[str] | None,
        _for_recordings(help="Channels to take, renamed where they have others: C3,EEG 2=Cz."),
    ] = None
    reference: Annotated[str | None, _for_recordings(help="average, bipolar, or a channel to subtract.")] = (
        None
    )
    resample: Annotated[float | None, _for_recordings(help="Rate to bring all to, in Hz.")] = None
    window: Annotated[
        float | None,
        _for_recordings(help="Cut trials into windows of so many seconds; without it a trial is one."),
    ] = None
    overlap: Annotated[float, _for_recordings(help="Share of a window that the next one repeats.")] = 0.0
    allow: Annotated[
        list[str] | None, _for_recordings(help="Let a kind of problem pass, as in prepare own: nan, flat ...")
    ] = None

    def check_unused(self) -> None:
        """Refuse them all: what they are for is not there."""
        for name in (field.name for field in fields(self)):
            if getattr(self, name):
                raise ValueError(
                    f"--{name} is for recordings that --events cuts; name their events, or leave it out"
                )


def own_options(given: Any, **more: Any) -> "OwnOptions":
    """Return how own recordings are cut, by the options that ``prepare own`` and ``train`` both have."""
    from anchorinv.datasets.own_files import OwnOptions
    from anchorinv.signal.readers import parse_channels

    names, rename = parse_channels(given.channels or [])
    shared = {name: getattr(given, name) for name in ("reference", "resample", "window", "overlap")}
    kinds = frozenset(kind for allowed in given.allow or () for kind in allowed.replace(",", " ").split())
    return OwnOptions(channels=names or None, rename=rename, allow=kinds, **shared, **more)


def check_target(path: Path, *sources: Path, such_as: str = "model.anchorinv") -> None:
    """Refuse a place where no file can be written, or that is a source, before anything is computed.

    ``such_as`` is an example of a file name, for someone who gave a folder.
    """
    from anchorinv.files import check_writable

    check_writable(path, such_as=such_as)
    if path.exists() and any(source.exists() and source.samefile(path) for source in sources):
        raise ValueError(f"{path} is one of the inputs; name another file to write to")


def progress(quiet: bool) -> AbstractContextManager[None]:
    """Show progress on standard error, unless ``quiet``."""
    return nullcontext() if quiet else progress_bars()


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Have Ctrl-C end the command with a sentence on what it left behind."""
    try:
        yield
    except KeyboardInterrupt:
        complain("", f"anchorinv: stopped; {sentence}")
        raise typer.Exit(130) from None

"""What commands share: options with their help texts, JSON, warnings, interruption."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import partial, wraps
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorinv.terminal import complain, progress_bars, say

if TYPE_CHECKING:
    from anchorinv.datasets.own import Labelling
    from anchorinv.datasets.own_files import OwnOptions
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.files import ReadOptions
    from anchorinv.serving.streaming import Smoothing

Model = Annotated[Path, typer.Argument(help="A model file.", metavar="MODEL")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The model file to write.", metavar="MODEL")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file to write, if it exists.")]
Allow = Annotated[bool, typer.Option("--allow-recordings", help="Allow models that contain real recordings.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
Device = Annotated[
    str, typer.Option(help="Device of networks: auto (the best available), cpu, cuda, cuda:1 ..., or mps.")
]
Note = Annotated[
    str | None, typer.Option("--note", help="Comment, stored in the model's history and shown by info.")
]
Author = Annotated[
    str | None, typer.Option("--author", help="Author, stored in the model's history and shown by info.")
]
ZeroPhase = Annotated[
    bool, typer.Option("--zero-phase", help="Filter forwards and backwards instead of causally.")
]

#: Help text of --reject.
REJECT_HELP = (
    "Reject windows unlike all classes as unknown; about this share of windows of known classes is, too."
)


def option(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """Return the default of an option, ``...`` if it is required, for a command with :func:`with_options`."""
    return _with_default(default, typer.Option(*names, help=help, **settings))


def argument(default: Any, help: str, **settings: Any) -> Any:
    """Return the default of an argument, as :func:`option` that of an option."""
    return _with_default(default, typer.Argument(help=help, **settings))


def _with_default(default: Any, typed: Any) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"typer": typed})


_for_recordings = partial(option, rich_help_panel="For recordings")
_KIND, _REQUIRED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command for typer; the fields of parameters that are dataclasses become options of their own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += [_parameter(f.name, f.type, f) for f in fields(parameter.annotation)]
        else:
            parameters.append(_parameter(parameter.name, parameter.annotation, parameter.default))
    parameters.sort(key=lambda parameter: parameter.default is not _REQUIRED)  # as Python wants them
    signature = inspect.Signature(parameters)

    @wraps(command)
    def expanded(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        for name, group in groups.items():
            arguments[name] = group(**{f.name: arguments.pop(f.name) for f in fields(group)})
        command(**arguments)

    expanded.__signature__ = signature  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    if isinstance(default, Field):
        kind = Annotated[kind, default.metadata["typer"]] if default.metadata else kind
        default = _REQUIRED if default.default is MISSING else default.default
    return inspect.Parameter(name, _KIND, default=default, annotation=kind)


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How input files are read, as far as they do not specify it."""

    step: float | None = option(
        None, "Seconds between windows of a recording; default: their length (live: 0.1).", min=0
    )
    scale: float = option(1.0, "Factor for the signals, if their unit is not the model's (1e6: V to µV).")
    channels: list[str] | None = option(None, "Channels to rename: OLD=NEW, comma-separated.", "--channels")
    sfreq: float | None = option(None, "Sampling rate in Hz of recordings that do not state it.", "--sfreq")

    def reading(self) -> "ReadOptions":
        """Return the options for reading files."""
        from anchorinv.serving.files import ReadOptions
        from anchorinv.signal.preprocessing import parse_channels

        if self.sfreq is not None and not 0 < self.sfreq < float("inf"):
            raise ValueError(f"--sfreq must be a rate in Hz above 0, got {self.sfreq:g}")
        names, rename = parse_channels(self.channels or [])
        if plain := [name for name in names if name not in rename.values()]:
            raise ValueError(
                f"--channels takes OLD=NEW here, got {plain[0]!r}; the model knows which channels it takes"
            )
        return ReadOptions(self.step, self.scale, rename, self.sfreq)


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Events of a recording that mark trials, and the interval around them."""

    events: list[str] | None = option(
        None, "Events of the recording that are trials: T1=left,T2=right (anchorinv events lists them)."
    )
    start: float = option(0.0, "Start of a trial, in seconds from its event.", "--from")
    stop: float | None = option(None, "End of a trial; default: the end of the event.", "--to")

    def labelling(self) -> "Labelling | None":
        """Return how events become labels; None if no events are named."""
        from anchorinv.datasets.own import Labelling

        if self.events:
            return Labelling.parse(self.events, self.start, self.stop)
        if self.start or self.stop is not None:
            raise ValueError("--from and --to need --events, which names the events")
        return None


@dataclass(frozen=True, slots=True)
class SteadyOptions:
    """Smoothing of predictions of a continuous recording."""

    steady: str | None = option(
        None, "Smooth predictions of recordings over time: balanced. The four options below override it."
    )
    vote: float | None = option(None, "Steady: majority vote over this many seconds.")
    time_constant: float | None = option(None, "Steady: time constant in seconds of averaged probabilities.")
    hysteresis: float | None = option(
        None, "Steady: margin (0 to 1) by which another class must exceed the current one."
    )
    dwell: float | None = option(None, "Steady: seconds for which another class must win to take over.")

    def settings(self, model: "AnchorInvClassifier") -> "Smoothing | None":
        """Return the smoothing of a model's predictions; None without any of these options."""
        from anchorinv.serving.streaming import Smoothing, preset

        chosen = {name: getattr(self, name) for name in ("vote", "time_constant", "hysteresis", "dwell")}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        settings = Smoothing(**chosen)
        if self.steady is None:
            return settings if chosen else None
        # A model without a sampling rate is refused later; the length does not matter then.
        window = model.n_times_ / model.sfreq_ if model.sfreq_ else 1.0
        return replace(preset(self.steady, window), **chosen)


@dataclass(frozen=True, slots=True)
class CuttingOptions:
    """How windows are cut from recordings."""

    channels: list[str] | None = _for_recordings(None, "Channels to use; OLD=NEW renames: C3,EEG 2=Cz.")
    reference: str | None = _for_recordings(None, "average, bipolar, or a channel to subtract.")
    resample: float | None = _for_recordings(None, "Sampling rate to resample to, in Hz.")
    window: float | None = _for_recordings(
        None, "Length of windows in seconds; default: each trial is one window."
    )
    overlap: float = _for_recordings(0.0, "Overlap of consecutive windows, as a share.")
    allow: list[str] | None = _for_recordings(None, "Problems to accept, as in prepare own: nan, flat ...")

    def check_unused(self) -> None:
        """Refuse all of these options: there are no events."""
        for name in self.__slots__:
            if getattr(self, name):
                raise ValueError(
                    f"--{name} is for recordings that --events cuts; name their events, or leave it out"
                )


def own_options(chosen: Any, **more: Any) -> "OwnOptions":
    """Return the options of own recordings from those that ``prepare own`` and ``train`` share."""
    from anchorinv.datasets.own_files import OwnOptions
    from anchorinv.signal.preprocessing import parse_channels

    names, rename = parse_channels(chosen.channels or [])
    shared = {name: getattr(chosen, name) for name in ("reference", "resample", "window", "overlap")}
    kinds = frozenset(kind for allowed in chosen.allow or () for kind in allowed.replace(",", " ").split())
    return OwnOptions(channels=names or None, rename=rename, allow=kinds, **shared, **more)


def check_target(
    path: Path,
    *sources: Path,
    such_as: str = "model.anchorinv",
    overwrite: bool = True,
    updates: Path | None = None,
) -> None:
    """Refuse, before computing, a path that cannot be written, is one of the sources, or is not to be lost.

    ``such_as`` is a file name to suggest where a folder was given. Without ``overwrite`` an existing file is
    refused, unless it is the one that the command ``updates``.
    """
    from anchorinv.files import check_writable

    check_writable(path, such_as=such_as)
    if not path.exists():
        return
    if any(source.exists() and source.samefile(path) for source in sources):
        raise ValueError(f"{path} is one of the inputs; name another file to write to")
    if not overwrite and not (updates is not None and updates.samefile(path)):
        raise ValueError(f"{path} exists; name another file, or pass --overwrite to replace it")


def load_model(
    path: Path, *, allow_recordings: bool, device: str = "auto", reject: float | None = None
) -> "AnchorInvClassifier":
    """Load a model; ``reject`` replaces its own threshold of rejection."""
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.novelty import known_confidence
    from anchorinv.settings import check_settings

    model = AnchorInvClassifier.load(path, allow_recordings=allow_recordings, device=device)
    if reject is not None:
        check_settings(model.set_params(reject=reject).get_params(deep=False))
        known_confidence(model.state_)
    return model


#: Parameters of commands that name inputs, and what messages call these. Those of ``prepare``, ``data`` and
#: ``events`` are checked by their readers, which need no torch.
INPUTS = {
    "model": "model file",
    **dict.fromkeys(("data", "sources", "windows", "shots", "members", "others", "replay"), ""),
    **dict.fromkeys(("run", "runs"), "run folder"),
}


def check_inputs(parameters: Mapping[str, Any]) -> None:
    """Refuse inputs that are not there, before libraries are imported, which takes seconds."""
    from anchorinv.files import check_model_path, missing

    for name, kind in INPUTS.items():
        value = parameters.get(name)
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and name == "model":
                check_model_path(path)
            # A WFDB record may be named without a suffix.
            elif isinstance(path, Path) and not any(map(exists, (path, path.with_suffix(".hea")))):
                raise missing(path, kind)


def progress(quiet: bool) -> AbstractContextManager[None]:
    """Show progress on standard error, unless ``quiet``."""
    return nullcontext() if quiet else progress_bars()


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """On Ctrl-C, end the command with a sentence on what it left behind."""
    try:
        yield
    except KeyboardInterrupt:
        complain("", f"anchorinv: stopped; {sentence}")
        raise typer.Exit(130) from None


def say_json(value: object) -> None:
    """Print plain values as JSON."""
    from anchorinv.errors import as_json

    say(*as_json(value).split("\n"))


def warn(*sentences: str) -> None:
    """Print warnings on standard error."""
    complain(*(f"anchorinv: warning: {sentence}" for sentence in sentences))

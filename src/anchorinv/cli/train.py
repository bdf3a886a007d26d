"""Commands that make or change a model: ``train``, ``learn``, ``add``, ``forget``, ``calibrate``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anchorinv.cli.options import (
    REJECT_HELP,
    Allow,
    Author,
    CuttingOptions,
    Device,
    InputOptions,
    Model,
    Note,
    Out,
    Overwrite,
    Quiet,
    TrialOptions,
    argument,
    check_target,
    load_model,
    option,
    own_options,
    progress,
    warn,
    with_options,
)
from anchorinv.errors import natural_order
from anchorinv.terminal import say

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.backbones import Backbone
    from anchorinv.core.privacy import Privacy
    from anchorinv.datasets.own import Labelling
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.serving.files import ReadOptions
    from anchorinv.signal.preprocessing import Filter, Preprocessing
    from anchorinv.signal.readers import WindowFile


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """The method and its settings."""

    method: str | None = option(None, "Name of a method; default: that of AnchorInvClassifier.")
    network: str = option(
        "rehearse", "Networks in the default method: never, always, or (rehearse) if classical features fail."
    )
    backbone: str = option(
        "conformer",
        "Network: conformer, or one of braindecode (eegnet, shallow, deep4, atcnet, ...).",
        metavar="NAME",
    )
    weights: Path | None = option(
        None, "Initial weights of that network, a safetensors file.", metavar="FILE"
    )
    epochs: int | None = option(
        None, "Epochs, for methods with a network; default: by the amount of data.", min=1
    )
    anchors: int = option(50, "Anchors kept of each class.", min=1)
    inversion_steps: int = option(200, "Maximum number of steps of the inversion.", min=0)
    finetune_steps: int | None = option(
        None, "Finetuning steps of later lessons; default: chosen by cross-validation.", min=0
    )
    reject: float | None = option(
        None, f"{REJECT_HELP} Stored in the model; default: no rejection.", metavar="SHARE"
    )
    privacy: str | None = option(
        None,
        "aggregate: anchors are means of several windows; or an epsilon of differential privacy, of class "
        "statistics (discriminant, lda) or anchors (fecam, anchorinv, ...; fewer --anchors, less noise).",
        metavar="aggregate|EPSILON",
    )
    privacy_unit: str = option("window", "Unit that the epsilon protects: window or person.")
    seed: int | None = option(None, "Seed, for reproducible results.")
    device: Device = "auto"

    def settings(self, *, allow_recordings: bool) -> dict[str, Any]:
        """Return the estimator's parameters; methods that keep recordings need permission."""
        from anchorinv.core.registry import METHODS

        name = self.method
        keeps = METHODS[name].keeps if name and name in METHODS else "none"
        if keeps == "real recordings" and not allow_recordings:
            raise ValueError(f"{name} stores recordings in the model; pass --allow-recordings to permit it")
        return {
            **({} if name is None else {"method": name}),
            "network": self.network,
            "backbone": self._backbone(),
            "epochs": self.epochs,
            "n_anchors": self.anchors,
            "inversion_steps": self.inversion_steps,
            "finetune_steps": self.finetune_steps,
            "reject": self.reject,
            "privacy": self._privacy(),
            "random_state": self.seed,
            "device": self.device,
        }

    def _privacy(self) -> "Privacy | str | None":
        from anchorinv.core.privacy import Privacy

        if self.privacy is None or self.privacy == "aggregate":
            return self.privacy
        try:
            epsilon = float(self.privacy)
        except ValueError:
            raise ValueError(f"--privacy takes aggregate or an epsilon, got {self.privacy!r}") from None
        return Privacy(epsilon, unit=self.privacy_unit)  # type: ignore[arg-type]

    def _backbone(self) -> "Backbone | str | None":
        from anchorinv.backbones import OWN, Backbone

        if self.weights is not None:
            return Backbone(self.backbone, weights=self.weights)
        return None if self.backbone == OWN else self.backbone


@dataclass(frozen=True, slots=True)
class SignalOptions:
    """Sampling rate, unit and filter of the signals."""

    sfreq: float | None = option(None, "Sampling rate in Hz, if DATA does not state it.")
    unit: str | None = option(None, "Unit of DATA (V, mV, uV), if it does not state it.")
    band: tuple[float, float] | None = option(
        None, "Edges in Hz of the band-pass: applied to recordings, recorded for windows."
    )
    order: int = option(4, "Order of that filter (Butterworth).", "--filter-order", "--order")
    zero_phase: bool = option(False, "The filter is zero-phase (forwards and backwards).", "--zero-phase")

    def filter(self) -> "Filter | None":
        """Return the band-pass; None if no band is given."""
        from anchorinv.signal.preprocessing import Filter

        if self.zero_phase and not self.band:
            raise ValueError("--zero-phase needs a filter; give its edges with --band")
        return Filter(*self.band, self.order, not self.zero_phase) if self.band else None


@with_options
def train(
    data: list[Path] = argument(..., "Prepared folder, .npz with X and y, or recordings.", metavar="DATA"),
    *,
    out: Out,
    learning: MethodOptions,
    signals: SignalOptions,
    trials: TrialOptions,
    cutting: CuttingOptions,
    classes: str = option("", "Base classes, comma-separated; default: all."),
    new_people: bool = option(
        False,
        "Choose settings for people not in DATA (or days, with few people), by leaving groups out.",
        "--new-people",
    ),
    with_signals: bool = option(False, "Also write the inverted signals, for inspection.", "--with-signals"),
    allow_recordings: Allow = False,
    note: Note = None,
    author: Author = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train on base classes and write a model file."""
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.persistence.provenance import check_words

    check_target(out, *data, overwrite=overwrite)
    check_words(note=note, author=author)
    settings = learning.settings(allow_recordings=allow_recordings)
    band, labelling = signals.filter(), trials.labelling()
    if labelling is None:
        cutting.check_unused()
        file = _labelled_windows(data)
        preprocessing = _preprocessing(file, data[0], signals, band)
    else:
        with progress(quiet):
            file = _cut(data, signals, cutting, band, labelling)
        preprocessing = file.preprocessing
    if settings["privacy"] is not None and file.people is not None:
        file, new_people = replace(file, groups=file.people), True
    windows, labels, groups = _select_windows(file, classes, new_people=new_people)
    if labelling is None:
        _warn_if_unfiltered(windows, preprocessing.sfreq, band)
    model = AnchorInvClassifier(
        sfreq=preprocessing.sfreq, preprocessing=preprocessing, verbose=not quiet, **settings
    )
    model.fit(windows, labels, groups).set_params(verbose=False)
    model.save(out, with_signals=with_signals, allow_recordings=allow_recordings, note=note, author=author)
    say(
        f"Trained on {len(labels)} windows of {len(model.classes_)} classes: "
        f"{', '.join(map(str, natural_order(model.classes_.tolist())))}",
        *_networks_used(model),
        *_started_from(model),
        f"Model: {out} ({out.stat().st_size / 1e6:.2f} MB)",
    )


def _networks_used(model: "AnchorInvClassifier") -> list[str]:
    """Return a sentence on the networks of the default method, if any were trained for comparison."""
    line = model.history_[0]
    if "network_base_f1" not in line:
        return []
    better = line["network_base_f1"] > line["classical_base_f1"]
    used = "used" if better or model.network == "always" else "not used"
    return [
        f"Networks are {used}: on held-out base windows they reach a macro-F1 of "
        f"{100 * line['network_base_f1']:.0f} %, classical features {100 * line['classical_base_f1']:.0f} %"
    ]


def _started_from(model: "AnchorInvClassifier") -> list[str]:
    """Return a sentence on the initial weights of a network, if any were given."""
    from anchorinv.backbones import BackboneFor

    architecture = model.architecture_
    if not isinstance(architecture, BackboneFor) or architecture.backbone.weights is None:
        return []
    left_out = ", ".join(architecture.sizes.classifier)
    but = f", all but those of its classifier ({left_out})" if left_out else ""
    return [f"Its network started from the weights in {architecture.backbone.weights}{but}"]


def _labelled_windows(paths: Sequence[Path]) -> "WindowFile":
    from anchorinv.datasets.dataset import open_windows
    from anchorinv.signal.headers import missing_labels

    if len(paths) > 1:
        raise ValueError(
            f"{paths[0]} and {paths[1]}: several inputs must be recordings with --events; put windows into "
            f"one file, or prepare a folder (anchorinv prepare own)"
        )
    file = open_windows(paths[0], split="train")
    if file.labels is None:
        raise missing_labels(paths[0])
    return file


def _preprocessing(
    file: "WindowFile", path: Path, signals: SignalOptions, band: "Filter | None"
) -> "Preprocessing":
    """Return the preprocessing of windows, as the file or else the user says."""
    from anchorinv.signal.preprocessing import unit_of

    preprocessing, sfreq, unit = file.preprocessing, signals.sfreq, signals.unit
    if sfreq and file.sfreq and sfreq != file.sfreq:
        raise ValueError(f"{path} says {file.sfreq:g} Hz, --sfreq {sfreq:g} Hz; leave the option out")
    if unit and preprocessing.unit and unit_of(unit) != preprocessing.unit:
        raise ValueError(f"{path} says {preprocessing.unit}, --unit {unit}; leave the option out")
    rate = sfreq or file.sfreq
    if band is not None:
        if preprocessing.filter is not None and preprocessing.filter != band:
            raise ValueError(f"{path} says that it was filtered ({preprocessing.filter}); leave --band out")
        if rate:
            band.sections(rate)  # refuses a filter that does not fit the rate
        preprocessing = replace(preprocessing, filter=band, unrepeatable=None)
    return replace(preprocessing, unit=unit or preprocessing.unit, sfreq=rate)


def _warn_if_unfiltered(windows: "np.ndarray", sfreq: float | None, band: "Filter | None") -> None:
    """Warn if a fifth of the windows' power is outside the band that they were allegedly filtered to."""
    import numpy as np

    if band is None or band.low is None or band.high is None or not sfreq:
        return
    some, n = windows[:: 1 + len(windows) // 200], windows.shape[-1]
    if not np.isfinite(some).all():  # fit refuses these
        return
    centred = some - some.mean(axis=-1, keepdims=True)
    power = (np.abs(np.fft.rfft(centred * np.hanning(n))) ** 2).sum(axis=(0, 1))
    hertz, leak = np.fft.rfftfreq(n, 1 / sfreq), 2 * sfreq / n
    outside = power[(hertz < band.low / 2 - leak) | (hertz > 1.5 * band.high + leak)].sum()
    if outside > 0.2 * power.sum():
        warn(
            f"--band says that the windows were filtered to {band.low:g}-{band.high:g} "
            f"Hz, but {outside / power.sum():.0%} of their power is far outside; train does not filter "
            f"windows, while recordings will be filtered: filter the windows first, or leave --band out"
        )


def _cut(
    paths: Sequence[Path],
    signals: SignalOptions,
    cutting: CuttingOptions,
    band: "Filter | None",
    labelling: "Labelling",
) -> "WindowFile":
    """Return the windows of recordings by their events, prepared as ``prepare own`` does."""
    from anchorinv.datasets.dataset import as_window_file
    from anchorinv.datasets.own import plan_recordings
    from anchorinv.datasets.prepare import prepare_in_memory

    if signals.unit is not None:
        raise ValueError("--unit is for windows; recordings have their own, and voltages are converted to µV")
    options = own_options(cutting, band=band, sfreq=signals.sfreq, at_least=1)
    options = replace(options, allow=options.allow | {"few"})
    data = prepare_in_memory(plan_recordings(paths, options, labelling, split="train"))
    return as_window_file(data, ", ".join(path.name for path in paths[:3]))


def _select_windows(
    file: "WindowFile", classes: str, *, new_people: bool
) -> "tuple[np.ndarray, np.ndarray, np.ndarray | None]":
    """Return the windows of the base classes, their labels and, for new people, their groups."""
    import numpy as np

    assert file.labels is not None
    groups = file.groups if new_people else None
    if new_people and groups is None:
        raise ValueError(f"{file.name} has no groups; add an array groups, one name per window")
    selected = np.ones(len(file.labels), dtype=bool)
    if classes:
        names, labels = [part.strip() for part in classes.split(",")], file.labels.astype(str)
        if unknown := [name for name in names if name not in labels]:
            raise ValueError(
                f"{file.name} has no class {unknown[0]!r}; it has {', '.join(np.unique(labels))}"
            )
        selected = np.isin(labels, names)
    return file.all()[selected], file.labels[selected], None if groups is None else groups[selected]


Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class ExampleOptions:
    """Examples to learn from, and the model file to write."""

    model: Model
    out: Out
    shots: list[Path] = argument(
        ...,
        "Examples: .npz with X and y; .npy or recordings with --label; recordings with --events.",
        metavar="SHOTS",
    )
    label: str | None = option(None, "Class of all examples.")
    force: bool = option(
        False, "Also learn from examples whose scale is very different from the base data's.", "--force"
    )
    allow_recordings: Allow = False
    device: Device = "auto"
    note: Note = None
    author: Author = None
    overwrite: Overwrite = False
    quiet: Quiet = False

    def save(self, model: "AnchorInvClassifier", *, with_signals: bool) -> None:
        """Write the taught model."""
        words = {"note": self.note, "author": self.author}
        model.save(self.out, with_signals=with_signals, allow_recordings=self.allow_recordings, **words)


@with_options
def learn(examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions) -> None:
    """Teach a model a new class from a few examples; report the effect on old classes."""
    from anchorinv.serving.evaluation import learn_classes

    model, report, with_signals = _teach(learn_classes, examples, trials, inputs)
    say(*report.lines())
    warn(*report.warnings())
    examples.save(model, with_signals=with_signals)
    say(_classes_line(examples.out, model))


@with_options
def add(examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions) -> None:
    """Give a model more examples of known classes; report the effect."""
    from anchorinv.serving.evaluation import add_examples

    model, added, with_signals = _teach(add_examples, examples, trials, inputs)
    say(*(report.line() for report in added))
    examples.save(model, with_signals=with_signals)
    counts = zip(model.classes_.tolist(), model.counts_.tolist(), strict=True)
    say(f"Model: {examples.out} has examples of {', '.join(f'{name} ({n})' for name, n in counts)}")


@with_options
def forget(
    model: Model,
    label: str = argument(..., "The class to forget.", metavar="CLASS"),
    *,
    out: Out,
    allow_recordings: Allow = False,
    overwrite: Overwrite = False,
) -> None:
    """Remove a class and everything kept of it; predictions among the other classes do not change."""
    from anchorinv.core.registry import METHODS
    from anchorinv.validation import as_label

    check_target(out, overwrite=overwrite, updates=model)
    learner = load_model(model, allow_recordings=allow_recordings)
    learner.forget_class(as_label(learner.classes_, label))
    # Signals are in the file only if they were before.
    learner.save(out, with_signals=True, allow_recordings=allow_recordings)
    say(_classes_line(out, learner), f"Class {label!r} was forgotten: {METHODS[learner.method].forgetting}")


@with_options
def calibrate(
    model: Model,
    windows: list[Path] = argument(
        ..., "Recordings or windows of one person; labels are not needed.", metavar="DATA"
    ),
    *,
    out: Out,
    inputs: InputOptions,
    force: bool = option(
        False, "Calibrate even if rehearsal advises against it, or units differ.", "--force"
    ),
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Adapt a model to an unseen person or day, by windows without labels."""
    import numpy as np

    from anchorinv.serving.files import read_shots

    check_target(out, *windows, overwrite=overwrite, updates=model)
    learner = load_model(model, allow_recordings=False, device=device)
    reading = inputs.reading()
    with progress(quiet):
        signals = [read_shots(learner, path, reading)[0] for path in windows]
    for path, values in zip(windows, signals, strict=True):
        _check_units(learner, path, values, scale=reading.scale, force=force)
    learner.calibrate(np.concatenate(signals), force=force)
    learner.save(out)
    say(f"Model: {out} is calibrated by {sum(map(len, signals))} windows; {model} is unchanged")


def _teach(
    teach: Callable[..., Report], examples: ExampleOptions, trials: TrialOptions, inputs: InputOptions
) -> "tuple[AnchorInvClassifier, Report, bool]":
    """Load a model and teach it; return it, the report, and whether its file held inverted signals."""
    import numpy as np

    from anchorinv.persistence.provenance import check_words

    check_target(examples.out, *examples.shots, overwrite=examples.overwrite, updates=examples.model)
    check_words(note=examples.note, author=examples.author)
    model = load_model(examples.model, allow_recordings=examples.allow_recordings, device=examples.device)
    with_signals = model.state_.signals is not None
    reading, signals, labels = inputs.reading(), list[np.ndarray](), list[Any]()
    with progress(examples.quiet):
        for path, windows, file_labels in _labelled_files(model, examples, trials.labelling(), reading):
            _check_units(model, path, windows, scale=reading.scale, force=examples.force)
            signals.append(windows)
            labels += file_labels
        report = teach(model, np.concatenate(signals), labels, force=examples.force)
    return model, report, with_signals


def _labelled_files(
    model: "AnchorInvClassifier",
    examples: ExampleOptions,
    labelling: "Labelling | None",
    reading: "ReadOptions",
) -> "Iterator[tuple[Path, np.ndarray, list[Any]]]":
    """Yield the windows of each file and their classes."""
    from anchorinv.serving.files import from_events, read_shots
    from anchorinv.validation import as_label

    label, classes = examples.label, model.classes_
    if labelling is not None:
        if label is not None:
            raise ValueError("--label and --events both give the class of examples; leave one of them out")
        for path, windows, names in from_events(model, examples.shots, labelling, reading):
            yield path, windows, [as_label(classes, name) for name in names.tolist()]
        return
    for path in examples.shots:
        windows, labels = read_shots(model, path, reading)
        if label is not None:
            yield path, windows, [as_label(classes, label)] * len(windows)
        elif labels is not None:
            yield path, windows, labels.tolist()
        else:
            raise ValueError(
                f"{path} has no labels; name the class of its examples with --label, or its events with "
                "--events"
            )


def _check_units(
    model: "AnchorInvClassifier", path: Path, windows: "np.ndarray", *, scale: float, force: bool
) -> None:
    """Refuse a file in another unit, unless forced; the message has the right --scale."""
    from anchorinv.validation import refuse_drift

    if not force:
        try:
            refuse_drift(replace(model.check(windows), scaled=scale))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _classes_line(out: Path, model: "AnchorInvClassifier") -> str:
    return f"Model: {out} knows {', '.join(map(str, natural_order(model.classes_.tolist())))}"

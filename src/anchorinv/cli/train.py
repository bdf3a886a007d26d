"""``anchorinv train``: make a model file of labelled windows, or of recordings by their events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchorinv.cli.options import (
    REJECT,
    Allow,
    Author,
    CuttingOptions,
    Device,
    Note,
    Out,
    Quiet,
    TrialOptions,
    check_target,
    own_options,
    progress,
    with_options,
)
from anchorinv.terminal import say

if TYPE_CHECKING:
    import numpy as np

    from anchorinv.backbones import Backbone
    from anchorinv.core.privacy import Privacy
    from anchorinv.datasets.own import Labelling
    from anchorinv.datasets.window_files import WindowFile
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.signal.preprocessing import Filter, Preprocessing


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """Which method, and its settings."""

    method: Annotated[
        str | None, typer.Option(help="A method of the catalogue; default: that of AnchorInvClassifier.")
    ] = None
    network: Annotated[
        str,
        typer.Option(
            help="Networks beside the default method's features: never, always, or (rehearse) if these fail."
        ),
    ] = "rehearse"
    backbone: Annotated[
        str,
        typer.Option(
            help="The network: conformer, or one of braindecode (eegnet, shallow, deep4, atcnet, ...).",
            metavar="NAME",
        ),
    ] = "conformer"
    weights: Annotated[
        Path | None,
        typer.Option(help="Weights of that network to start from, a safetensors file.", metavar="FILE"),
    ] = None
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of methods with a network; default: as the data say.")
    ] = None
    anchors: Annotated[int, typer.Option(min=1, help="Anchors kept of each class.")] = 50
    inversion_steps: Annotated[int, typer.Option(min=0, help="Steps of the inversion, at the most.")] = 200
    finetune_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps of each lesson to come; default: chosen in the lesson.")
    ] = None
    reject: Annotated[
        float | None,
        typer.Option(help=f"{REJECT} Kept in the model; default: none is.", metavar="SHARE"),
    ] = None
    privacy: Annotated[
        str | None,
        typer.Option(
            help="aggregate: anchors are means of several windows; or an epsilon of differential privacy.",
            metavar="aggregate|EPSILON",
        ),
    ] = None
    privacy_unit: Annotated[
        str, typer.Option(help="What the epsilon is for: each window, or each person.")
    ] = "window"
    seed: Annotated[int | None, typer.Option(help="For results that repeat.")] = None
    device: Device = "auto"

    def settings(self, *, allow_recordings: bool) -> dict[str, Any]:
        """Return them as the estimator takes them, if a model may keep what the method keeps of people."""
        from anchorinv.core.registry import METHODS

        name = self.method
        keeps = METHODS[name].keeps if name and name in METHODS else "none"
        if keeps == "real recordings" and not allow_recordings:
            raise ValueError(
                f"{name} writes recordings into the model; pass --allow-recordings if they may be"
            )
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
    """What is known of the signals, and what was or is to be done to them."""

    sfreq: Annotated[float | None, typer.Option(help="Rate in Hz, if DATA does not say it.")] = None
    unit: Annotated[str | None, typer.Option(help="Unit of DATA (V, mV, uV), if it does not say it.")] = None
    band: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Edges in Hz of the band-pass that windows went through, or that recordings go through."
        ),
    ] = None
    order: Annotated[int, typer.Option(help="Order of that filter (Butterworth).")] = 4
    zero_phase: Annotated[
        bool, typer.Option("--zero-phase", help="That filter runs forwards and backwards.")
    ] = False

    def filter(self) -> "Filter | None":
        """Return the band-pass; None if no band is given."""
        from anchorinv.signal.preprocessing import Filter

        if self.zero_phase and not self.band:
            raise ValueError("--zero-phase is the way a filter runs; give its edges with --band")
        return Filter(*self.band, self.order, not self.zero_phase) if self.band else None


@with_options
def train(
    data: Annotated[
        list[Path], typer.Argument(help="Prepared folder, .npz with X and y, or recordings.", metavar="DATA")
    ],
    out: Out,
    learning: MethodOptions,
    signals: SignalOptions,
    trials: TrialOptions,
    cutting: CuttingOptions,
    classes: Annotated[str, typer.Option(help="Base classes, with commas between; default: all.")] = "",
    new_people: Annotated[
        bool,
        typer.Option(
            "--new-people",
            help="Choose for people (or days, of few people) who are not in DATA; they are its groups.",
        ),
    ] = False,
    with_signals: Annotated[
        bool, typer.Option("--with-signals", help="Write the inverted signals too, to look at.")
    ] = False,
    allow_recordings: Allow = False,
    note: Note = None,
    author: Author = None,
    quiet: Quiet = False,
) -> None:
    """Train on base classes and write a model file that can be handed over."""
    from anchorinv.estimator import AnchorInvClassifier
    from anchorinv.persistence.provenance import check_words

    check_target(out, *data)
    check_words(note=note, author=author)
    settings = learning.settings(allow_recordings=allow_recordings)
    band, labelling = signals.filter(), trials.labelling()
    if labelling is None:
        cutting.check_unused()
        file = _labelled_windows(data)
        known = _preprocessing(file, data[0], signals, band)
    else:
        with progress(quiet):
            file = _cut(data, signals, cutting, band, labelling)
        known = file.preprocessing
    if settings["privacy"] is not None and file.people is not None:
        file, new_people = replace(file, groups=file.people), True
    windows, labels, groups = _chosen(file, classes, new_people=new_people)
    model = AnchorInvClassifier(sfreq=known.sfreq, preprocessing=known, verbose=not quiet, **settings)
    model.fit(windows, labels, groups).set_params(verbose=False)
    model.save(out, with_signals=with_signals, allow_recordings=allow_recordings, note=note, author=author)
    say(
        f"Trained on {len(labels)} windows of {len(model.classes_)} classes: "
        f"{', '.join(map(str, model.classes_.tolist()))}",
        *_networks_used(model),
        *_started_from(model),
        f"Model: {out} ({out.stat().st_size / 1e6:.2f} MB)",
    )


def _networks_used(model: "AnchorInvClassifier") -> list[str]:
    """Return a sentence on the networks of the default method, where some were trained to compare."""
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
    """Return a sentence on the weights that a network started from, if there were any."""
    from anchorinv.backbones import BackboneFor

    made = model.architecture_
    if not isinstance(made, BackboneFor) or made.backbone.weights is None:
        return []
    left_out = ", ".join(made.sizes.classifier)
    but = f", all but those of its classifier ({left_out})" if left_out else ""
    return [f"Its network started from the weights in {made.backbone.weights}{but}"]


def _labelled_windows(paths: Sequence[Path]) -> "WindowFile":
    from anchorinv.datasets.window_files import open_windows
    from anchorinv.signal.limits import missing_labels

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
    file: "WindowFile", path: Path, given: SignalOptions, band: "Filter | None"
) -> "Preprocessing":
    """Return what windows went through: as the file says and, where it does not, as the user does."""
    from anchorinv.signal.preprocessing import unit_of

    known, sfreq, unit = file.preprocessing, given.sfreq, given.unit
    if sfreq and file.sfreq and sfreq != file.sfreq:
        raise ValueError(f"{path} says {file.sfreq:g} Hz, --sfreq {sfreq:g} Hz; leave the option out")
    if unit and known.unit and unit_of(unit) != known.unit:
        raise ValueError(f"{path} says {known.unit}, --unit {unit}; leave the option out")
    rate = sfreq or file.sfreq
    if band is not None:
        if known.filter is not None and known.filter != band:
            raise ValueError(f"{path} says that it was filtered ({known.filter}); leave --band out")
        if rate:
            band.sections(rate)  # refuses a filter that no recording could go through
        known = replace(known, filter=band, unrepeatable=None)
    return replace(known, unit=unit or known.unit, sfreq=rate)


def _cut(
    paths: Sequence[Path],
    signals: SignalOptions,
    cutting: CuttingOptions,
    band: "Filter | None",
    labelling: "Labelling",
) -> "WindowFile":
    """Return the windows of recordings by their events, prepared as ``prepare own`` does."""
    from anchorinv.datasets.own import plan_recordings
    from anchorinv.datasets.prepare import prepare_in_memory
    from anchorinv.datasets.window_files import as_window_file

    if signals.unit is not None:
        raise ValueError("--unit is of windows; recordings say their own, and voltages are taken in µV")
    options = own_options(cutting, band=band, sfreq=signals.sfreq, at_least=1)
    options = replace(options, allow=options.allow | {"few"})
    data = prepare_in_memory(plan_recordings(paths, options, labelling, split="train"))
    return as_window_file(data, ", ".join(path.name for path in paths[:3]))


def _chosen(
    file: "WindowFile", classes: str, *, new_people: bool
) -> "tuple[np.ndarray, np.ndarray, np.ndarray | None]":
    """Return the windows of the base classes, their labels and, for new people, whose they are."""
    import numpy as np

    assert file.labels is not None
    groups = file.groups if new_people else None
    if new_people and groups is None:
        raise ValueError(
            f"{file.name} does not say whose its windows are; add an array groups, one name per window"
        )
    here = np.ones(len(file.labels), dtype=bool)
    if classes:
        wanted, present = [part.strip() for part in classes.split(",")], file.labels.astype(str)
        if unknown := [name for name in wanted if name not in present]:
            raise ValueError(
                f"{file.name} has no class {unknown[0]!r}; it has {', '.join(np.unique(present))}"
            )
        here = np.isin(present, wanted)
    return file.all()[here], file.labels[here], None if groups is None else groups[here]

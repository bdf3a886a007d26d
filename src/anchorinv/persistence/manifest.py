"""What a model file contains: as facts, as sentences, and as a model card for its author to fill in."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from anchorinv.core.confidence import MOST_SCORES
from anchorinv.core.privacy import privacy_from, privacy_sentences
from anchorinv.core.registry import METHODS
from anchorinv.core.types import Curve
from anchorinv.errors import listed, shown
from anchorinv.persistence.format import Header
from anchorinv.persistence.provenance import loss_lines, score_lines, subsample, with_curves
from anchorinv.signal.drift import SHAPES
from anchorinv.signal.preprocessing import Preprocessing, facts_of, preprocessing_from

MEMORY = {
    "none": "nothing is replayed",
    "synthetic": "signals that were computed, kept as inputs of the last block",
    "class statistics": "of each class counts, means or sums of features; nothing is replayed",
    "features of real samples": "numbers computed from real samples, which may be traced back to them",
    "real recordings": "recordings of people",
}

#: Results of attacks on real EMG of three people, by what a model stores: docs/privacy.md.
MEASURED = {
    "none": "class means of a network separated members of its training data from others with an AUROC of "
    "0.95 (chance: 0.50)",
    "weights alone": "the losses of a network without class means separated members of its training data "
    "from others with an AUROC of 0.52 (chance: 0.50); stronger attacks on weights may reveal more",
    "class statistics": "with the recordings at hand, 94 % of the windows that the default method had "
    "learned were identified, at 1 % false positives; class means of three people could not be linked to one "
    "of them, those of classes that one person had taught were linked to that person",
    "anchors": "anchors were linked to the right one of three people in 74 %, recordings in 92 % (chance: "
    "33 %)",
    "aggregate": "anchors of five windows, or signals inverted from them, were linked to the right one of "
    "three people in 36 % (chance: 33 %)",
    "epsilon": "with an epsilon of 1 for each window, 1 % of the windows were identified at 1 % FPR",
    "noisy anchors": "with an epsilon of 1 for each window and one anchor of each class, 2 % of the windows "
    "were identified at 1 % FPR",
    "real recordings": "recordings that were kept were linked to the right one of three people in 91 %",
}

#: Values of a loss curve in a manifest; an estimator's history has them all.
MOST_SHOWN = 50


def manifest(header: Header, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the facts of a model file as plain JSON values."""
    names = dict(zip(header.state.classes, header.classes, strict=True))

    def per_class(part: str) -> dict[str, int]:
        labels = tensors.get(f"{part}.labels")
        counts = Counter([] if labels is None else labels.tolist())
        return {str(name): counts[number] for number, name in names.items()}

    weights = sum(t.numel() for name, t in tensors.items() if name.split(".")[0] in ("trunk", "tail"))
    shapes = any(name.startswith(f"statistics.{part}.") for part in SHAPES for name in tensors)
    statistics = "means, standard deviations, spectra and correlations"
    forgotten = [label for line in header.history if line.kind == "forgotten" for label, _ in line.samples]
    return {
        "package": header.package,
        "method": header.method,
        "backbone": _backbone(header),
        "memory": header.memory,
        "classes": list(header.classes),
        "base_classes": list(header.classes[: header.state.n_base]),
        "examples": dict(zip(map(str, header.classes), header.counts, strict=True)),
        "anchors": per_class("anchors"),
        "views": list(header.state.views),
        "replay": per_class("replay"),
        "signals": per_class("signals"),
        "recordings": per_class("recordings"),
        "weights": weights,
        "base_statistics": statistics if shapes else "means and standard deviations",
        "tells_unknown": any(name.startswith("confidence.") for name in tensors),
        "reject": header.settings.reject,
        "privacy": header.settings.model_dump()["privacy"],
        "shape": list(header.state.shape),
        "sfreq": header.sfreq,
        "ch_names": list(header.ch_names) if header.ch_names else None,
        "preprocessing": facts_of(header.preprocessing) if header.preprocessing else None,
        "sessions": _lessons(header, tensors),
        "forgotten": forgotten,
    }


def _backbone(header: Header) -> str | None:
    """Describe a network that is not this package's."""
    if (facts := header.backbone) is None:
        return None
    version = f" {facts.version}" if facts.version else ""
    return f"{facts.network} of braindecode{version}" if facts.kind == "braindecode" else facts.network


def _lessons(header: Header, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return the lines of the history as plain JSON values, each with a few values of its loss curves."""
    curves = [
        Curve(name, session, tensors[f"curves.{i}"]) for i, (name, session) in enumerate(header.state.curves)
    ]
    lines = with_curves([line.line for line in header.history], curves)
    return [
        {
            **entry.model_dump(mode="json"),
            "origin": entry.origin.model_dump(mode="json", exclude_none=True),
            "curves": {name: subsample(values, MOST_SHOWN) for name, values in line["curves"].items()},
        }
        for entry, line in zip(header.history, lines, strict=True)
    ]


def manifest_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return a manifest as lines to read."""
    n_chans, n_times = facts["shape"]
    length = f" ({n_times / facts['sfreq']:g} s at {facts['sfreq']:g} Hz)" if facts["sfreq"] else ""
    lines = [
        f"method       {facts['method']} (written by anchorinv {facts['package']})",
        *([f"backbone     {facts['backbone']}"] if facts["backbone"] else []),
        f"memory       {facts['memory']}: {MEMORY[facts['memory']]}",
        f"window       {n_chans} channels x {n_times} samples{length}",
        f"channels     {', '.join(facts['ch_names']) if facts['ch_names'] else 'names not known'}",
        f"unit         {(facts['preprocessing'] or {}).get('unit') or 'not known'}",
        f"processing   {processing(preprocessing_from(facts['preprocessing'] or {}))}",
        f"weights      {facts['weights']} numbers",
        f"unknown      {rejection(facts)}",
        *([f"privacy      {privacy_from(facts['privacy'])}"] if facts["privacy"] else []),
        "",
        f"{'class':<16} {'examples':>8} {'anchors':>8} {'replay':>8} {'signals':>8} {'recordings':>10}",
    ]
    parts = ("examples", "anchors", "replay", "signals")
    for name in map(str, facts["classes"]):
        numbers = " ".join(f"{facts[part][name]:>8}" for part in parts)
        lines.append(f"{name:<16} {numbers} {facts['recordings'][name]:>10}")
    return [*lines, "", *file_sentences(facts), "", *lesson_lines(facts)]


def processing(preprocessing: Preprocessing) -> str:
    """Describe the preprocessing, and whether recordings can be processed likewise."""
    done = "; ".join(preprocessing.steps) or "none"
    if preprocessing.not_repeatable:
        return f"{done}; cannot be repeated on recordings"
    return f"{done}; cannot be repeated on live sources" if preprocessing.not_live else done


def rejection(facts: Mapping[str, Any]) -> str:
    """Describe how windows of unknown classes are treated."""
    if not facts["tells_unknown"]:
        return "unknown classes are not detected: every window gets one of the known classes"
    if facts["reject"] is None:
        return "unknown classes are detected by novelty, and rejected on request (--reject)"
    return f"windows with a novelty up to {facts['reject']:g} are rejected"


def file_sentences(facts: Mapping[str, Any]) -> list[str]:
    """Return sentences on what is and what is not in the file."""
    spec = METHODS[facts["method"]]
    lines = list(spec.holds)
    # Methods that invert labels store the number of signals as anchors without values.
    if spec.uses_anchors and any(facts["anchors"].values()):
        vectors = "means of feature vectors" if facts["privacy"] else "feature vectors"
        lines.append(
            f"Anchors are {vectors} of real samples: computed from people's recordings, not recordings."
        )
    if facts["views"]:
        lines.append(f"Each anchor also holds the {' and the '.join(facts['views'])} of its sample.")
    if facts["memory"] == "synthetic":
        lines.append("Replay is synthetic, but made to match what the network learned from real people.")
    if any(facts["signals"].values()):
        lines.append("The inverted signals behind the replay are included; they are synthetic.")
    if any(facts["recordings"].values()):
        lines.append("IT CONTAINS REAL RECORDINGS. Commands refuse it without --allow-recordings.")
    else:
        lines.append("It contains no recording and no part of one.")
    if facts["base_statistics"] == "means, standard deviations, spectra and correlations":
        lines.append(
            "To detect drift, it holds averages and standard deviations over all base windows: of each "
            "channel, of its power in bands, of correlations between channels."
        )
    if facts["tells_unknown"]:
        lines.append(
            f"To detect unknown classes and to calibrate, it holds {MOST_SCORES} quantiles each of "
            f"distances and logits of held-out base windows; with {MOST_SCORES} windows or fewer these are "
            f"one number per window, and nothing else is stored of a single window."
        )
    if any(line["origin"].get("fingerprint") for line in facts["sessions"]):
        lines.append(
            "Of each lesson it holds the date and a fingerprint of the windows: it cannot be inverted, but "
            "anyone who has the same windows can confirm that they were learned."
        )
    anchors = spec.uses_anchors and any(facts["anchors"].values())
    lines += privacy_sentences(privacy_from(facts["privacy"]), anchors=anchors)
    if measured := MEASURED.get(_measured_as(facts, anchors=anchors)):
        lines.append(f"On real EMG, {measured}; the command 'anchorinv audit' measures this model.")
    for label in facts["forgotten"]:
        lines.append(f"Class {label!r} was forgotten: {spec.forgetting}")
    return lines


def _measured_as(facts: Mapping[str, Any], *, anchors: bool) -> str:
    if isinstance(facts["privacy"], dict):
        return "noisy anchors" if anchors else "epsilon"
    if anchors:
        return facts["privacy"] or "anchors"
    return "weights alone" if facts["method"] == "finetune" else str(facts["memory"])


KINDS = {"base": "base", "session": "taught", "shots": "more shots", "forgotten": "forgotten"}


def lesson_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the history as lines: what was learned, when, by whom, from which data, and the losses."""
    lines = []
    for line in facts["sessions"]:
        lines.append(f"{KINDS.get(line['kind'], line['kind']):<12} {_counts(line)}")
        lines += [f"{'':<12} {sentence}" for sentence in lesson_sentences(line)]
    return lines


def _counts(line: Mapping[str, Any]) -> str:
    return ", ".join(f"{label} ({count})" for label, count in line["samples"])


def _versions(origin: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in origin.get("versions", {}).items())


def lesson_sentences(line: Mapping[str, Any]) -> list[str]:
    """Return the provenance of a lesson as lines; files from earlier versions may have none."""
    origin, numbers = line["origin"], {**line["numbers"], "samples": line["samples"]}
    sentences = []
    if "date" in origin:
        sentences.append(origin["date"].replace("T", " ").replace("Z", " UTC"))
    if "author" in origin:
        sentences.append(f"by {origin['author']}")
    if "note" in origin:
        sentences.append(f"note: {origin['note']}")
    if "fingerprint" in origin:
        sentences.append(f"fingerprint {origin['fingerprint']} of these windows and labels")
    if versions := _versions(origin):
        sentences.append(f"with {versions}")
    if line["kind"] == "base":
        sentences += score_lines(numbers) or ["no score on held-out windows was measured"]
    return [*sentences, *loss_lines({**numbers, "curves": line["curves"]})]


#: Items for the author to fill in.
TO_FILL_IN = {
    "Use": "what the model is for, and who uses it",
    "Not for": "uses that were ruled out",
    "Signals": "device, electrodes and their places, tasks",
    "People": "how many, who they are, consent and ethics approval",
    "Evaluation": "scores on recordings of people and days it never learned from (anchorinv evaluate)",
    "Contact and licence": "whom to ask, and what others may do with it",
}
#: Limits of every model.
LIMITS = (
    "It knows the classes above and no others. Windows of other classes are assigned to one of these, unless "
    "they are rejected by their novelty, which misses some of them and rejects some known ones.",
    "It is meant for signals like its training data: these channels, in this unit, at this rate, processed "
    "in this way. `anchorinv check` measures how far recordings are from that.",
    "New people, days and electrode positions usually cost accuracy. How much is known only if recordings of "
    "them were held out and scored.",
    "Classes taught from a few examples are recognised less reliably than base classes, and their "
    "probabilities are less reliable, too.",
    "The scores in this card, if any, were measured on base windows during training. They do not replace an "
    "independent test set.",
    "Author, note and names are as entered and not verified. The digest of the file detects accidental "
    "damage, not forgery.",
    "It is derived from recordings of people. A file without recordings is not necessarily anonymous "
    "(docs/security.md).",
    "It is not a medical device. Where health or safety depends on it, it has to be validated for that use.",
)


def model_card(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of a model card in Markdown, from a model's manifest and file name."""
    base = [line for line in facts["sessions"] if line["kind"] == "base"]
    unknown = rejection(facts)
    scores = score_lines({**base[0]["numbers"], "samples": base[0]["samples"]}) if base else []
    calibrated = (
        "Probabilities were calibrated on held-out base windows."
        if facts["tells_unknown"]
        else "Probabilities are not calibrated: no windows were held out for it."
    )
    name = facts["file"].replace("\\", "/").rpartition("/")[2]
    return [
        f"# Model card: {literal(name)}",
        "",
        "Generated from the model file by `anchorinv info --card`. The author fills in the parts in italics.",
        *_part(
            "Intended use", [f"**{what}**: *to be filled in: {words}*" for what, words in TO_FILL_IN.items()]
        ),
        *_part("Model", _model(facts)),
        *_part("Classes", _classes(facts), bullets=False),
        *_part("Training data", _data(facts, base)),
        *_part("Scores at training", [literal(s) for s in scores] or ["None: see Evaluation above."]),
        *_part("Probabilities and unknown windows", [calibrated, f"{unknown[:1].upper()}{unknown[1:]}."]),
        *_part("What the file contains about people", [literal(s) for s in file_sentences(facts)]),
        *_part("History", _history(facts), bullets=False),
        *_part("Limits", LIMITS),
    ]


def literal(text: object) -> str:
    r"""Escape text for Markdown, so that it shows no mark-up, link or formula.

    Examples
    --------
    >>> print(literal("left_[hand](http://x) <b>$1$</b>"))
    left\_\[hand\](http\://x) \<b\>\$1\$\</b\>
    """
    return re.sub(r"([\\`*_{}\[\]<>&~$|#@!]|:(?=[^\s\d]))", r"\\\1", shown(text))


def _part(title: str, lines: Sequence[str], *, bullets: bool = True) -> list[str]:
    return ["", f"## {title}", "", *(f"- {line}" if bullets else line for line in lines)]


def _model(facts: Mapping[str, Any]) -> list[str]:
    spec = METHODS[facts["method"]]
    origin = facts["sessions"][-1]["origin"] if facts["sessions"] else {}
    lines = [
        f"Method: {literal(spec.title)} (`{facts['method']}`), {literal(spec.citation)}",
        *([f"Backbone: {literal(facts['backbone'])}"] if facts["backbone"] else []),
        f"Written by anchorinv {literal(facts['package'])}; {facts['bytes'] / 1e6:.2f} MB, "
        f"{facts['weights']} numbers in network and features",
        f"Memory: {facts['memory']} ({MEMORY[facts['memory']]})",
    ]
    if versions := _versions(origin):
        lines.append(f"Versions at the last lesson: {literal(versions)}")
    return lines


def _classes(facts: Mapping[str, Any]) -> list[str]:
    rows = [["class", "learned as", "examples", "anchors", "replay", "signals", "recordings"]]
    rows.append(["---", "---", *["--:"] * 5])
    for label in facts["classes"]:
        kind = "base" if label in facts["base_classes"] else "taught later"
        rows.append([literal(label), kind, *(str(facts[part][str(label)]) for part in rows[0][2:])])
    return [f"| {' | '.join(row)} |" for row in rows]


def _data(facts: Mapping[str, Any], base: Sequence[Mapping[str, Any]]) -> list[str]:
    n_chans, n_times = facts["shape"]
    preprocessing = facts["preprocessing"] or {}
    rate = f"{n_times / facts['sfreq']:g} s at {facts['sfreq']:g} Hz" if facts["sfreq"] else "rate not known"
    names = listed(facts["ch_names"], most=64) if facts["ch_names"] else "names not known"
    lines = [
        f"Windows: {n_chans} channels x {n_times} samples ({rate})",
        f"Channels: {literal(names)}",
        f"Unit: {literal(preprocessing.get('unit') or 'not known')}",
        f"Processing: {literal(processing(preprocessing_from(preprocessing)))}",
    ]
    if not base:
        return lines
    counts = ", ".join(f"{literal(label)} {count}" for label, count in base[0]["samples"])
    groups = base[0]["numbers"].get("groups")
    mark = base[0]["origin"].get("fingerprint")
    fingerprint = f"`{mark}`, of the base windows and their labels" if mark else "not known"
    lines += [
        f"Base windows: {sum(count for _, count in base[0]['samples'])} ({counts})",
        f"Groups (people, days or recordings): {groups or ('not distinguished' if mark else 'not known')}",
        f"Fingerprint: {fingerprint}",
    ]
    return lines


def _history(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for number, line in enumerate(facts["sessions"], 1):
        kind = KINDS.get(line["kind"], literal(line["kind"]))
        lines.append(f"{number}. {kind}: {literal(_counts(line))}")
        lines += [f"   - {literal(sentence)}" for sentence in lesson_sentences(line)]
    return lines or ["Not known."]

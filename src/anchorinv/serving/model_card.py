"""A model card: a Markdown page about a model file, with places for its author to fill in."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from anchorinv.core.registry import METHODS
from anchorinv.errors import listed, shown
from anchorinv.persistence.manifest import (
    KINDS,
    MEMORY,
    file_sentences,
    lesson_sentences,
    processing,
    rejection,
)
from anchorinv.persistence.provenance import score_lines
from anchorinv.signal.preprocessing import preprocessing_from

#: Items for the author to fill in.
ASKED = {
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
    known = [line for line in facts["sessions"] if line["kind"] == "base"]
    scores = score_lines({**known[0]["numbers"], "samples": known[0]["samples"]}) if known else []
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
        *_part("Intended use", [f"**{what}**: *to be filled in: {words}*" for what, words in ASKED.items()]),
        *_part("Model", _model(facts)),
        *_part("Classes", _classes(facts), bullets=False),
        *_part("Training data", _data(facts, known)),
        *_part("Scores at training", [literal(s) for s in scores] or ["None: see Evaluation above."]),
        *_part("Probabilities and unknown windows", [calibrated, f"{_sentence(rejection(facts))}."]),
        *_part("What the file tells about people", [literal(s) for s in file_sentences(facts)]),
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
    made_with = ", ".join(f"{name} {number}" for name, number in origin.get("versions", {}).items())
    lines = [
        f"Method: {literal(spec.title)} (`{facts['method']}`), {literal(spec.citation)}",
        *([f"Backbone: {literal(facts['backbone'])}"] if facts["backbone"] else []),
        f"Written by anchorinv {literal(facts['package'])}; {facts['bytes'] / 1e6:.2f} MB, "
        f"{facts['weights']} numbers in network and features",
        f"Memory: {facts['memory']} ({MEMORY[facts['memory']]})",
    ]
    return [*lines, f"Versions at the last lesson: {literal(made_with)}"] if made_with else lines


def _classes(facts: Mapping[str, Any]) -> list[str]:
    rows = [["class", "learned as", "examples", "anchors", "replay", "signals", "recordings"]]
    rows.append(["---", "---", *["--:"] * 5])
    for label in facts["classes"]:
        kind = "base" if label in facts["base_classes"] else "taught later"
        rows.append([literal(label), kind, *(str(facts[part][str(label)]) for part in rows[0][2:])])
    return [f"| {' | '.join(row)} |" for row in rows]


def _data(facts: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> list[str]:
    n_chans, n_times = facts["shape"]
    how = facts["preprocessing"] or {}
    rate = f"{n_times / facts['sfreq']:g} s at {facts['sfreq']:g} Hz" if facts["sfreq"] else "rate not known"
    names = listed(facts["ch_names"], most=64) if facts["ch_names"] else "names not known"
    lines = [
        f"Windows: {n_chans} channels x {n_times} samples ({rate})",
        f"Channels: {literal(names)}",
        f"Unit: {literal(how.get('unit') or 'not known')}",
        f"Processing: {literal(processing(preprocessing_from(how)))}",
    ]
    if not known:
        return lines
    counts = ", ".join(f"{literal(label)} {count}" for label, count in known[0]["samples"])
    groups = known[0]["numbers"].get("groups")
    mark = known[0]["origin"].get("fingerprint")
    said = f"`{mark}`, of the base windows and their labels" if mark else "not known"
    lines += [
        f"Base windows: {sum(count for _, count in known[0]['samples'])} ({counts})",
        f"Groups (people, days or recordings): {groups or ('not told apart' if mark else 'not known')}",
        f"Fingerprint: {said}",
    ]
    return lines


def _history(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for number, line in enumerate(facts["sessions"], 1):
        counts = ", ".join(f"{label} ({count})" for label, count in line["samples"])
        lines.append(f"{number}. {KINDS.get(line['kind'], literal(line['kind']))}: {literal(counts)}")
        lines += [f"   - {literal(sentence)}" for sentence in lesson_sentences(line)]
    return lines or ["Not known."]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]

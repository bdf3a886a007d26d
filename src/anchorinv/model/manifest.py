"""What a model file holds and what it does not, in numbers and in sentences."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anchorinv.core.catalogue import JUDGED
from anchorinv.model.header import Header
from anchorinv.model.statistics import SHAPES
from anchorinv.signal.facts import facts_of, preprocessing_from
from anchorinv.signal.preprocessing import Preprocessing

_MEMORY = {
    "none": "nothing is replayed",
    "synthetic": "signals that were computed, kept as inputs of the last block",
    "class statistics": "of each class counts, means or sums of features; nothing is replayed",
    "features of real samples": "numbers computed from real samples, which may be traced back to them",
    "real recordings": "recordings of people",
}


def manifest(header: Header, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the facts of a model file as plain JSON values."""
    names = dict(zip(header.state.classes, header.classes, strict=True))

    def per_class(part: str) -> dict[str, int]:
        labels = tensors.get(f"{part}.labels")
        found = Counter([] if labels is None else labels.tolist())
        return {str(name): found[number] for number, name in names.items()}

    weights = sum(t.numel() for name, t in tensors.items() if name.split(".")[0] in ("trunk", "tail"))
    forgotten = [label for line in header.history if line.kind == "forgotten" for label, _ in line.samples]
    return {
        "package": header.package,
        "method": header.method,
        "memory": header.memory,
        "classes": list(header.classes),
        "examples": dict(zip(map(str, header.classes), header.counts, strict=True)),
        "anchors": per_class("anchors"),
        "views": list(header.state.views),
        "replay": per_class("replay"),
        "signals": per_class("signals"),
        "recordings": per_class("recordings"),
        "weights": weights,
        "base_statistics": _kept_of_base(tensors),
        "shape": list(header.state.shape),
        "sfreq": header.sfreq,
        "ch_names": list(header.ch_names) if header.ch_names else None,
        "preprocessing": facts_of(header.preprocessing.value) if header.preprocessing else None,
        "sessions": [line.model_dump(mode="json") for line in header.history],
        "forgotten": forgotten,
    }


def _kept_of_base(tensors: Mapping[str, Tensor]) -> str:
    more = any(name.startswith(f"statistics.{part}.") for part in SHAPES for name in tensors)
    return "means, spreads, spectra and correlations" if more else "means and spreads"


def told(facts: Mapping[str, Any]) -> list[str]:
    """Return a manifest as lines to read."""
    n_chans, n_times = facts["shape"]
    length = f" ({n_times / facts['sfreq']:g} s at {facts['sfreq']:g} Hz)" if facts["sfreq"] else ""
    lines = [
        f"method       {facts['method']} (written by anchorinv {facts['package']})",
        f"memory       {facts['memory']}: {_MEMORY[facts['memory']]}",
        f"window       {n_chans} channels x {n_times} samples{length}",
        f"channels     {', '.join(facts['ch_names']) if facts['ch_names'] else 'names not known'}",
        f"unit         {(facts['preprocessing'] or {}).get('unit') or 'not known'}",
        f"processing   {_processing(preprocessing_from(facts['preprocessing'] or {}))}",
        f"weights      {facts['weights']} numbers",
        "",
        f"{'class':<16} {'examples':>8} {'anchors':>8} {'replay':>8} {'signals':>8} {'recordings':>10}",
    ]
    parts = ("examples", "anchors", "replay", "signals")
    for name in map(str, facts["classes"]):
        numbers = " ".join(f"{facts[part][name]:>8}" for part in parts)
        lines.append(f"{name:<16} {numbers} {facts['recordings'][name]:>10}")
    return [*lines, "", *_plainly(facts), "", *_sessions(facts)]


def _processing(how: Preprocessing) -> str:
    """Return what recordings go through, and where they cannot."""
    done = "; ".join(how.steps) or "none"
    if how.not_repeatable:
        return f"{done}; recordings cannot be brought to it"
    return f"{done}; live sources cannot be brought to it" if how.not_live else done


_DISCRIMINANT = (
    "It holds how features are computed, and of each class a count, a mean and a scatter of them.",
    "The mean of a class learned from one window is that window's features; the scatter of a class "
    "learned from few spans what they differ by.",
)
_STATISTICS = {
    "ranpac": (
        "It holds the network's weights and a random projection; of each class a count and a sum of "
        "projected features, and of all classes together sums of their squares and products.",
        "The sum of a class learned from one window is that window's projected features.",
    ),
    "mdm": (
        "It holds a reference, and of each class a count and the mean of its windows' covariances.",
        "The mean of a class learned from one window is that window's covariance.",
    ),
}


def _plainly(facts: Mapping[str, Any]) -> list[str]:
    """Return what is and what is not in the file, without flattery."""
    if facts["memory"] == "class statistics":
        lines = list(_STATISTICS.get(facts["method"], _DISCRIMINANT))
    else:
        lines = ["It holds the network's weights, and for each class what stands for it in the head."]
    # Methods that invert labels note how many signals they want, as anchors without values.
    if facts["method"] in ("anchorinv", *JUDGED) and any(facts["anchors"].values()):
        lines.append(
            "Anchors are feature vectors of real samples: computed from people's recordings, not recordings."
        )
    if facts["views"]:
        lines.append(f"Each anchor also holds the {' and the '.join(facts['views'])} of its sample.")
    if facts["memory"] == "synthetic":
        lines.append("Replay is synthetic, but made to match what the network learned from real people.")
    if any(facts["signals"].values()):
        lines.append("The inverted signals behind the replay are included; they are synthetic.")
    if any(facts["recordings"].values()):
        lines.append("IT HOLDS REAL RECORDINGS. Commands refuse it without --allow-recordings.")
    else:
        lines.append("It holds no recording and no part of one.")
    if facts["base_statistics"] == "means, spreads, spectra and correlations":
        lines.append(
            "To tell whether recordings are like the base data, it holds averages and spreads over all base "
            "windows: of each channel, of its power in bands, and of correlations between channels."
        )
    for label in facts["forgotten"]:
        gone = f"Class {label!r} was forgotten"
        if facts["memory"] == "class statistics":
            if facts["method"] == "ranpac":
                lines.append(
                    f"{gone}: its sum is gone, but weights and the squares and products of all classes may "
                    f"keep traces."
                )
                continue
            lines.append(
                f"{gone}: its statistics are gone. If it was a base class, how features are computed may "
                f"keep traces."
            )
            continue
        lines.append(
            f"{gone}: its prototype, anchors and replay are gone, but weights that were trained or "
            f"finetuned while it was known may keep traces."
        )
    return lines


def _sessions(facts: Mapping[str, Any]) -> list[str]:
    words = {"base": "base", "session": "taught", "shots": "more shots", "forgotten": "forgotten"}
    return [
        f"{words.get(line['kind'], line['kind']):<12} "
        + ", ".join(f"{label} ({count})" for label, count in line["samples"])
        for line in facts["sessions"]
    ]

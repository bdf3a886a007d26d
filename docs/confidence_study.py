"""How far probabilities, rejections and sets can be relied on: docs/results/confidence.ndjson, and its table.

``python docs/confidence_study.py emg-longterm=data/emg ecg-beats=data/ecg ...`` computes a record on the test
parts of prepared folders, by the shipped configs' classes, seeds and shots, and prints the table of
docs/results.md; without a folder it prints the table of the record that is there. Sets that are not computed
keep their lines. Nothing is chosen here.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from anchorinv import AnchorInvClassifier
from anchorinv.core.metrics import Reliability, auroc
from anchorinv.core.types import Batch, State, stream
from anchorinv.datasets.dataset import Dataset
from anchorinv.files import replacing
from anchorinv.settings import recipe_of
from anchorinv.study.loading import load, protocol_of

HERE = Path(__file__).parent
RECORD = HERE / "results" / "confidence.ndjson"
ASKED, COVERAGE = 0.05, 0.9
ARTEFACTS = 400  # windows of each kind
RECORDS = "ecg-beats, records never seen"
RESAMPLES = 2000  # of the clusters, for an interval


def artefacts(signals: np.ndarray, sfreq: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return what is no such signal, made of windows (n, n_chans, n_times) or as large as these."""
    n, n_chans, n_times = signals.shape
    spread = signals.std((0, 2), keepdims=True)
    off = signals.copy()
    off[np.arange(n), rng.integers(0, n_chans, n)] = 0
    phase = rng.uniform(0, 2 * np.pi, (n, 1, 1))
    hum = np.sin(2 * np.pi * 50 * np.arange(n_times) / sfreq + phase)
    return {
        "noise": spread * rng.normal(size=signals.shape),
        "silence": np.zeros_like(signals),
        "channel off": off,
        "mains hum": signals + 3 * spread * hum,
        "times ten": 10 * signals,
    }


def judged(state: State, features: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities (n, n_classes), p-values (n,) and sets (n, n_classes)."""
    with torch.no_grad():
        logits = state.calibrated(state.head(features))
        statistics, nearest = state.head.novelty(features)
        p_values = state.confidence.p_values(statistics, nearest >= state.n_base)
        sets = state.confidence.conformal(logits, n_base=state.n_base) > 1 - COVERAGE
    return logits.softmax(1).numpy(), p_values.numpy(), sets.numpy()


def lines(name: str, data: Dataset, left_out: np.ndarray | None = None) -> Iterator[dict[str, object]]:
    """Yield a line for each base seed, trial and session."""
    experiment = next(iter(load(name.split(",")[0]).variants.values()))
    train, test = data.split == "train", data.split == "test"
    groups = None
    if left_out is not None:
        train, test, groups = ~left_out & train, left_out, data.subjects
    for seed in experiment.protocol.seeds:
        protocol = protocol_of(experiment, data, seed)
        base = train & np.isin(data.labels, protocol.base_classes)
        model = AnchorInvClassifier(sfreq=data.sfreq, random_state=seed)
        model.fit(data.signals(base), data.labels[base], None if groups is None else groups[base])
        encode = lambda signals, m=model: m._features(torch.from_numpy(m.standardisation_(signals)))  # noqa: E731
        windows = data.signals(test)
        features, labels = encode(windows), data.labels[test]
        # Windows of a person (or record) and day depend on each other, these clusters hardly do.
        days = data.sessions if name == "emg-longterm" else np.full(len(data.labels), "")
        clusters = np.char.add(np.char.add(data.subjects.astype(str), " "), days.astype(str))[test]
        known = np.isin(labels, [*protocol.base_classes, *protocol.sessions])
        some = np.random.default_rng(seed).permutation(np.flatnonzero(known))[:ARTEFACTS]
        odd = artefacts(windows[some].astype(float), data.sfreq, np.random.default_rng(seed))
        odd = {kind: encode(signals) for kind, signals in odd.items()}
        learned = torch.from_numpy(model.standardisation_(data.signals(train)))
        shots = Batch(learned, torch.from_numpy(data.labels[train]))
        recipe = recipe_of(model.get_params(deep=False), model.geometry_, len(features))
        for trial in range(experiment.protocol.trials):
            state = replace(model.state_, classes=tuple(model.classes_.tolist()))
            sessions = [None, *(protocol.draw(shots, trial))]
            for index, session in enumerate(sessions):
                if session is not None:
                    state = recipe.learn_session(state, session, rng=stream(seed, trial, index))
                if index in (0, len(sessions) - 1) and (index or not trial):
                    yield {"set": name, "seed": seed, "trial": trial, "session": index} | measured(
                        state, features, labels, clusters, odd
                    )


def measured(
    state: State,
    features: torch.Tensor,
    labels: np.ndarray,
    clusters: np.ndarray,
    odd: dict[str, torch.Tensor],
) -> dict[str, object]:
    """Return all measures after a session."""
    classes = list(state.classes)
    known = np.isin(labels, classes)
    probabilities, p_values, sets = judged(state, features)
    columns = np.array([classes.index(label) for label in labels[known]])
    is_base = columns < state.n_base
    right = sets[known][np.arange(len(columns)), columns]
    facts: dict[str, object] = {
        "auroc": auroc(p_values[known], p_values[~known]) if (~known).any() else None,
        "false acceptances": float((p_values[~known] > ASKED).mean()) if (~known).any() else None,
        "coverage": float(right.mean()),
        "set size": float(sets[known].sum(1).mean()),
    }
    for kind, mask in {"base": is_base, "new": ~is_base}.items():
        if mask.any():
            reliability = Reliability.of(probabilities[known][mask], columns[mask])
            facts |= {f"ece {kind}": reliability.ece, f"brier {kind}": reliability.brier}
            rejected = p_values[known][mask] <= ASKED
            facts[f"false rejections {kind}"] = float(rejected.mean())
            names, places = np.unique(clusters[known][mask], return_inverse=True)
            counts = zip(np.bincount(places, rejected), np.bincount(places), strict=True)
            facts[f"rejected {kind}"] = {
                str(cluster).strip(): [int(n_rejected), int(n)]
                for cluster, (n_rejected, n) in zip(names, counts, strict=True)
            }
    for kind, values in odd.items():
        facts[kind] = float((judged(state, values)[1] <= ASKED).mean())
    return facts


def interval(lines: list[dict[str, list[int]]]) -> tuple[float, float]:
    """Return the 95 % interval of the share of rejected windows, by a bootstrap over clusters.

    Each line has the numbers of rejected and of all windows by cluster, for one base seed and trial.
    """
    totals: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    for line in lines:
        for cluster, counts in line.items():
            totals[cluster] += counts
    sums = np.array([totals[cluster] for cluster in sorted(totals)])
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    rejected, n = sums[drawn].sum(1).T
    low, high = np.quantile(rejected / n, (0.025, 0.975))
    return float(low), float(high)


def table() -> str:
    """Return the record as a Markdown table: means over base seeds and trials."""
    rows: dict[tuple[str, int], dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        facts = json.loads(line)
        place = rows[facts["set"], facts["session"]]
        for key, value in facts.items():
            if isinstance(value, float | dict):
                place[key].append(value)
    heads = ["ece base", "ece new", "brier base", "brier new", "auroc", "false rejections base"]
    heads += ["false rejections new", "false acceptances", "coverage", "set size"]
    heads += ["noise", "silence", "channel off", "mains hum", "times ten"]
    out = ["| set, new classes taught | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    for (name, session), place in rows.items():
        plain = {"ece base", "ece new", "brier base", "brier new", "auroc", "set size"}
        cells = []
        for head in heads:
            mean = np.mean(place[head]) if place[head] else None
            cell = "–" if mean is None else f"{mean:.3f}" if head in plain else f"{100 * mean:.1f} %"
            if counts := place[head.replace("false rejections", "rejected")] if "rejections" in head else []:
                low, high = interval(counts)
                cell += f" ({100 * low:.1f} to {100 * high:.1f})"
            cells.append(cell)
        out.append(f"| {name}, {session or 'none'} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def main() -> None:
    """Compute what was asked for, and print the table."""
    if folders := dict(argument.split("=", 1) for argument in sys.argv[1:]):
        found, names = [], {RECORDS} if "ecg-beats" in folders else set()
        names |= set(folders)
        for line in RECORD.read_text(encoding="utf-8").splitlines():
            found += [] if json.loads(line)["set"] in names else [json.loads(line)]
        for name, folder in folders.items():
            data = Dataset.open(folder)
            found += lines(name, data)
            if name == "ecg-beats":
                people = np.unique(data.subjects)
                for fold in range(3):
                    found += lines(RECORDS, data, np.isin(data.subjects, people[fold::3]))
            sys.stderr.write(f"{name}: done\n")
        with replacing(RECORD) as beside:
            beside.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")
    sys.stdout.write(table() + "\n")


if __name__ == "__main__":
    main()

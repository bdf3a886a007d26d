"""What models give away on real recordings: docs/results/privacy.ndjson, and what docs/privacy.md has of it.

``python docs/privacy_study.py emg-longterm=emg_longterm.npz ecg-beats=ecg_beats.npz ...`` computes what the
record does not have yet, a line for each model, and can be stopped at any time; ``closed``, ``noise``,
``control`` or ``networks`` limit it to these. Without a file it makes tables and figure of the page
from the record there is (privacy_pages.py). Nothing is chosen here by what comes out. Seconds are those of a
processor.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorinv import AnchorInvClassifier, Privacy
from anchorinv.core.discriminant import Discriminant, square_of, triangle_of
from anchorinv.core.privacy import (
    clipped,
    private_statistics,
    unknown_generator,
)
from anchorinv.core.types import Batch, stream
from anchorinv.serving.attacks import (
    Estimate,
    Figure,
    Gallery,
    class_means,
    confidence_of,
    identification_rate,
    likelihood_ratios,
    nearness,
    whitening_of,
)
from anchorinv.serving.audit import (
    Audit,
    StoredItems,
    audit,
    audit_forgetting,
    invert_items,
    reconstruction,
    stored_items,
)
from anchorinv.serving.membership import (
    SHADOWS,
    People,
    concatenate,
    half_splits,
    membership_figures,
    noise_of_means,
    standardise,
    units_of,
)
from anchorinv.settings import recipe_of

HERE = Path(__file__).parent
RECORD = HERE / "results" / "privacy.ndjson"
KINDS = ("closed", "noise", "control", "networks")
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 32.0)
LAST = "discriminant, epsilon 8 per person"
#: Draws of the noise, and how many of them are attacked.
DRAWS, ATTACKED = 20, 8
#: Methods whose base model is the same network: it is trained once.
SHARED = ("anchorinv", "fecam", "latent-replay", "real-replay", "protonet")
#: Of the models of one network, those whose features are inverted; others hold the same, or fewer.
INVERTED = ("discriminant", "anchorinv", "fecam, 50 anchors of five windows")
EPOCHS = 12
#: Networks trained for the likelihood ratio.
N_SHADOWS = 8
WITH_SHADOWS = f"protonet, {N_SHADOWS} shadow networks"
REPLAY_STEPS = 100
REPLAYED = "anchorinv, 10 anchors, inverted replay"
WEIGHTS_ALONE = "finetune, weights alone"
WEIGHTS_WITH_SHADOWS = f"finetune, {N_SHADOWS} shadow networks"
#: Settings with noise on anchors: how many of each class, and the epsilon.
NOISY_ANCHORS = {
    f"fecam, {n} noisy anchors, epsilon {epsilon:g}": (n, epsilon)
    for n in (50, 10, 1)
    for epsilon in (1.0, 8.0, 64.0)
}
#: Splits of settings that are not tried on all: what would take long, and what is no option.
ONLY = {
    WITH_SHADOWS: ("later beats",),
    WEIGHTS_WITH_SHADOWS: ("same days",),
    **dict.fromkeys(NOISY_ANCHORS, ("other days",)),
}
SHOTS = 10
#: Classes that are taught: of EMG and of ECG.
NEW = ((10, 11, 12, 13, 14, 15), (4, 5))

Split = tuple[People, People]
Line = dict[str, Any]
#: (empty, features (n, dim), targets (n,), people (n,)) -> what is kept of them.
Learn = Callable[[Discriminant, Tensor, Tensor, Tensor], Discriminant]


def people(path: Path, session: str) -> tuple[People, dict[str, np.ndarray], float]:
    """Return the windows of a file, whatever else it knows of them, and their rate."""
    with np.load(path) as file:
        rest = {name: file[name] for name in file.files if name != "X"}
        signals = (file["X"] * float(rest.get("scale", 1.0))).astype(np.float32)
    sessions = rest[session] if session in rest else np.zeros(len(signals), int)
    return People(signals, rest["y"], rest["subject"], sessions), rest, float(rest["sfreq"])


def emg_longterm(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield splits by days, and by repetitions of the same days."""
    data, rest, sfreq = people(path, "day")
    base = data.labels < 10
    yield "other days", sfreq, (data.of(base & (rest["day"] <= 20)), data.of(base & (rest["day"] > 20)))
    first = base & (rest["day"] <= 10)
    yield (
        "same days",
        sfreq,
        (data.of(first & (rest["repetition"] <= 2)), data.of(first & (rest["repetition"] > 2))),
    )


def ecg_beats(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield splits by records, and by time within records; at most forty beats of a class and record."""
    data, rest, sfreq = people(path, "none")
    few = np.zeros(len(data), bool)
    late = rest["sample"] >= 433_333
    for cell in {(s, y, half) for s, y, half in zip(data.people, data.labels, late, strict=True) if y < 4}:
        own = np.flatnonzero((data.people == cell[0]) & (data.labels == cell[1]) & (late == cell[2]))
        few[own[np.linspace(0, len(own) - 1, min(40, len(own))).astype(int)]] = True
    data = replace(data, sessions=late.astype(int))
    yield "later beats", sfreq, (data.of(few & ~late), data.of(few & late))
    even = np.isin(data.people, np.unique(data.people)[::2])
    yield "other people", sfreq, (data.of(few & even), data.of(few & ~even))


def eeg_stress(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield a split by trials, of windows of four seconds."""
    data, rest, sfreq = people(path, "trial")
    size = int(4 * sfreq)
    n = data.signals.shape[2] // size
    cut = data.signals[:, :, : n * size].reshape(len(data), data.signals.shape[1], n, size).swapaxes(1, 2)
    columns = (np.repeat(each, n) for each in (data.labels, data.people, rest["trial"]))
    data = People(cut.reshape(-1, *cut.shape[2:]), *columns)
    yield "other trial", sfreq, (data.of(data.sessions < 3), data.of(data.sessions == 3))


def eeg_motor_imagery(path: Path) -> Iterator[tuple[str, float, Split]]:
    """Yield a split by runs."""
    data, rest, sfreq = people(path, "run")
    held = np.isin(rest["run"], (12, 14))
    yield "other runs", sfreq, (data.of(~held), data.of(held))


SETS: dict[str, Callable[[Path], Iterator[tuple[str, float, Split]]]] = {
    "emg-longterm": emg_longterm,
    "ecg-beats": ecg_beats,
    "eeg-stress": eeg_stress,
    "eeg-motor-imagery": eeg_motor_imagery,
}


def closed_forms(members: People, sfreq: float) -> Iterator[tuple[str, Callable[[], AnchorInvClassifier]]]:
    """Yield the models without a network or noise, each with how to make it."""
    for name in ("discriminant", "mdm"):
        model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never", method=name)
        yield name, lambda model=model: model.fit(members.signals, members.labels)


def noisy(members: People, others: People, sfreq: float, *, compact: bool) -> Iterator[Line]:
    """Yield a line for each epsilon, averaged over draws of the noise; the encoder is the same for all.

    And for statistics that are fewer without noise, if they are to be ``compact``: of fewer features, or with
    a scatter of 32 directions and a sphere. They were chosen on days 1 to 20 of the EMG.
    """
    both, inside = concatenate(members, others)

    def attacked(model: AnchorInvClassifier, learn: Learn, clip: float = 1e6) -> Line:
        return Statistics(model, both, inside, learn, clip).line()

    settings = {f"discriminant, epsilon {epsilon:g}": Privacy(epsilon) for epsilon in EPSILONS}
    settings[LAST] = Privacy(8.0, unit="person")
    model = AnchorInvClassifier(sfreq=sfreq, random_state=0, privacy=Privacy(1.0))
    model.fit(members.signals, members.labels)
    for n_features in (32, 64, 128) if compact else ():
        small = AnchorInvClassifier(sfreq=sfreq, random_state=0, privacy=Privacy(1.0, n_features=n_features))
        small.fit(members.signals, members.labels)
        yield {"setting": f"discriminant, {n_features} features", **attacked(small, exact)}
    if compact:
        whole = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never")
        whole.fit(members.signals, members.labels)
        yield {"setting": "discriminant, scatter of rank 32", **attacked(whole, low_rank)}
    for setting, privacy in settings.items():
        yield {"setting": setting, **attacked(model, partial(private, privacy=privacy), privacy.clip)}


def exact(empty: Discriminant, features: Tensor, targets: Tensor, whose: Tensor) -> Discriminant:
    """Return statistics as they are."""
    return empty.learned(features, targets)


def private(
    empty: Discriminant, features: Tensor, targets: Tensor, whose: Tensor, *, privacy: Privacy
) -> Discriminant:
    """Return statistics with noise that is drawn anew."""
    return private_statistics(empty, features, targets, whose, privacy, rng=unknown_generator())


def low_rank(empty: Discriminant, features: Tensor, targets: Tensor, whose: Tensor) -> Discriminant:
    """Return statistics whose pooled scatter is that of 32 directions, and the same in all others."""
    head, rank = empty.learned(features, targets), 32
    levels, vectors = torch.linalg.eigh(square_of(head.scatters.double().sum(0), features.shape[1]))
    levels[:-rank] = levels[:-rank].mean()
    scatters = (head.counts / head.counts.sum())[:, None] * triangle_of((vectors * levels) @ vectors.T)
    return head._with(head.counts, head.means, scatters.to(head.means), head.n_base)


@dataclass(frozen=True)
class Statistics:
    """Attacks on statistics alone, whose features are computed once: many draws of noise take seconds."""

    model: AnchorInvClassifier
    both: People
    inside: np.ndarray
    learn: Learn
    clip: float

    @cached_property
    def features(self) -> Tensor:
        """Return those of all windows (n, dim)."""
        return self.model._features(standardise(self.model, self.both))

    @cached_property
    def targets(self) -> Tensor:
        """Return columns of classes (n,)."""
        return torch.from_numpy(np.searchsorted(self.model.classes_, self.both.labels))

    def drawn(self, chosen: np.ndarray) -> Discriminant:
        """Return what is learned from some windows."""
        head, some = self.model.state_.head, torch.from_numpy(chosen)
        empty = head._with(head.counts[:0], head.means[:0], head.scatters[:0], head.n_base)
        whose = torch.from_numpy(np.unique(self.both.people, return_inverse=True)[1])
        return self.learn(empty, self.features[some], self.targets[some], whose[some])

    def scores(
        self, head: Discriminant, whitened: np.ndarray, whitening: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what attacks look at (n,), by their names."""
        logits, columns = head(self.features), self.targets[:, None]
        means = head.means.double().numpy() @ whitening
        return {
            "loss": logits.log_softmax(1).gather(1, columns).squeeze(1).double().numpy(),
            "likelihood ratio of confidence": confidence_of(logits, self.targets),
            "likelihood ratio of density": logits.gather(1, columns).squeeze(1).double().numpy(),
            "likelihood ratio of class means": nearness(whitened, self.targets.numpy(), means),
        }

    def identify(self, head: Discriminant) -> Estimate:
        """Return how often class means are linked to people."""
        both, inside = self.both, self.inside
        apart, names = torch.from_numpy(~inside), np.unique(both.people[~inside])
        gallery = Gallery(self.features[apart], both.labels[~inside], both.people[~inside])
        shares = np.stack([
            (both.people[inside & (both.labels == each)][:, None] == names).mean(0)
            for each in self.model.classes_
        ])  # fmt: skip
        return identification_rate(gallery.identify(head.means, self.model.classes_), shares, names)

    def line(self) -> Line:
        """Return macro-F1, membership and links of class means, each the mean over draws of the noise."""
        from sklearn.metrics import f1_score

        both, inside = self.both, self.inside
        shared = bool(set(both.people[inside]) & set(both.people[~inside]))
        units, unit = units_of(both.of(inside), both.of(~inside), [])
        values = clipped(self.features, self.clip).double().numpy()
        halves = np.stack(list(half_splits(both.labels, units if unit else None, SHADOWS, 0)))
        heads = [self.drawn(half) for half in halves]
        targets, n_classes = self.targets.numpy(), len(self.model.classes_)
        exact = [class_means(values[half], targets[half], n_classes) for half in halves]
        noisy = np.stack([head.means.double().numpy() for head in heads])
        noise = noise_of_means(noisy, np.stack(exact), halves.sum() / len(halves) / n_classes)
        whitening = whitening_of(values, both.labels, noise=noise)
        whitened = values @ whitening
        shadows = [self.scores(head, whitened, whitening) for head in heads]
        f1, found = [], defaultdict(list)
        for number in range(DRAWS if isinstance(self.learn, partial) else 1):
            head = self.drawn(inside)
            predicted = self.model.classes_[head(self.features).argmax(1).numpy()]
            f1.append(f1_score(both.labels[~inside], predicted[~inside], average="macro"))
            if number >= ATTACKED:
                continue
            for by, score in self.scores(head, whitened, whitening).items():
                if by != "loss":
                    score = likelihood_ratios(score, np.stack([each[by] for each in shadows]), halves)
                for each in membership_figures(score, inside, units, unit, by):
                    found[each.attack, each.target, each.measure, each.chance].append(each.estimate)
            if shared:
                people = np.unique(both.people[~inside])
                key = "re-identification", "class means", f"top-1 of {len(people)} people", 1 / len(people)
                found[key].append(self.identify(head))
        figures = [
            Figure(*key[:3], None if None in each else pooled(each), key[3]) for key, each in found.items()
        ]
        facts = Audit("class statistics", tuple(figures)).facts()
        spread = (
            Estimate.mean(f1)
            if len(f1) > 1
            else macro_f1(both.labels[~inside], predicted[~inside], units[~inside])
        )
        return {"macro_f1": float(np.mean(f1)), "macro_f1_of": asdict(spread), **facts}


def control(members: People, others: People, sfreq: float) -> list[Figure]:
    """Return membership by class means, and the same if each member's session had not been learned.

    Days, records and people differ: what is told of members that were left out is that, not membership.
    """
    model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never")
    model.fit(members.signals, members.labels)
    both, inside = concatenate(members, others)
    units, unit = units_of(members, others, [])
    features = model._features(standardise(model, both)).double().numpy()
    columns = np.searchsorted(model.classes_, both.labels)
    whitened = features @ whitening_of(features, columns)

    def near(chosen: np.ndarray) -> np.ndarray:
        means = class_means(whitened[chosen], columns[chosen], len(model.classes_))
        return nearness(whitened, columns, means)

    halves = np.stack(list(half_splits(both.labels, units if unit else None, SHADOWS, 0)))
    known, without = near(inside), near(inside)
    if unit:
        for name in np.unique(units[inside]):
            without[units == name] = near(inside & (units != name))[units == name]
    else:
        n = np.bincount(columns[inside])[columns[inside]]
        without[inside] *= (n / (n - 1)) ** 2  # the distance to a mean without the window itself
    figures = []
    for target, scores in (("class means", known), ("class means, left out (control)", without)):
        ratios = likelihood_ratios(scores, np.stack([near(half) for half in halves]), halves)
        by = f"likelihood ratio of {target}"
        figures += membership_figures(ratios, inside, units, "", by)
    return figures


def pooled(estimates: list[Estimate]) -> Estimate:
    """Return the mean of draws of the noise: what windows leave uncertain, and what noise does."""
    values = np.array([each.value for each in estimates])
    errors = np.array([(each.high - each.low) / (2 * 1.96) for each in estimates])
    if len(values) == 1:
        return estimates[0]
    half = 1.96 * float(np.sqrt((errors**2).mean() + values.var(ddof=1) / len(values)))
    value = float(values.mean())
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), estimates[0].n)


def network(members: People, sfreq: float) -> AnchorInvClassifier:
    """Return a model with the network that several methods share, its replay left out."""
    model = AnchorInvClassifier(
        sfreq=sfreq, random_state=0, method="anchorinv", epochs=EPOCHS, inversion_steps=0
    )
    return model.fit(members.signals, members.labels)


def with_memory(
    trained: AnchorInvClassifier, members: People, method: str, **settings: object
) -> AnchorInvClassifier:
    """Return the same network with what another method keeps of the base classes."""
    model = AnchorInvClassifier.from_bundle(trained.to_bundle()).set_params(method=method, **settings)
    names = model._names.tolist()
    numbers = torch.tensor([model.state_.classes[names.index(each)] for each in members.labels.tolist()])
    whose = torch.from_numpy(np.unique(members.people, return_inverse=True)[1])
    recipe = recipe_of(model.get_params(deep=False), model.geometry_, len(members))
    bare = replace(model.state_, anchors=None, replay=None, recordings=None, signals=None)
    batch = Batch(standardise(model, members), numbers, whose)
    state = recipe.start(bare, batch, rng=stream(model.seed_, "base"))
    if "inversion_steps" in settings:
        state = recipe.recall(state, rng=stream(model.seed_, "base"))
    model._know(state_=state)
    return model


def networks(members: People, sfreq: float) -> Iterator[tuple[str, Callable[[], AnchorInvClassifier]]]:
    """Yield models of one network with several memories."""

    @cache
    def trained() -> AnchorInvClassifier:
        return network(members, sfreq)

    @cache
    def alone() -> AnchorInvClassifier:
        model = AnchorInvClassifier(sfreq=sfreq, random_state=0, method="finetune", epochs=EPOCHS)
        return model.fit(members.signals, members.labels)

    for method in SHARED:
        yield method, lambda method=method: with_memory(trained(), members, method)
    for anchors in (10, 50):
        name = f"fecam, {anchors} anchors of five windows"
        yield (
            name,
            lambda n=anchors: with_memory(trained(), members, "fecam", privacy="aggregate", n_anchors=n),
        )
    yield "fecam, 10 anchors", lambda: with_memory(trained(), members, "fecam", n_anchors=10)
    for name, (n, epsilon) in NOISY_ANCHORS.items():
        options = {"privacy": Privacy(epsilon), "n_anchors": n}
        yield name, lambda options=options: with_memory(trained(), members, "fecam", **options)
    yield (
        REPLAYED,
        lambda: with_memory(trained(), members, "anchorinv", n_anchors=10, inversion_steps=REPLAY_STEPS),
    )
    yield WITH_SHADOWS, lambda: with_memory(trained(), members, "protonet")
    yield WEIGHTS_ALONE, alone
    yield WEIGHTS_WITH_SHADOWS, alone


def macro_f1(labels: np.ndarray, predicted: np.ndarray, units: np.ndarray) -> Estimate:
    """Return the macro-F1 of predictions (n,), with percentiles over resampled units (n,) as its interval."""
    classes, (names, places) = np.unique(labels), np.unique(units, return_inverse=True)
    true, given = labels[:, None] == classes, predicted[:, None] == classes  # (n, n_classes)
    counts = np.zeros((3, len(names), len(classes)))
    for row, values in zip(counts, (true & given, true, given), strict=True):
        np.add.at(row, places, values)
    once = np.ones((1, len(names)))
    drawn = np.random.default_rng(0).multinomial(len(names), once[0] / len(names), 1000)
    hits, true, given = np.concatenate([once, drawn]) @ counts  # (3, 1001, n_classes)
    # A class that nobody who was drawn has is left out.
    scores = np.nanmean(np.where(true > 0, 2 * hits / np.maximum(true + given, 1), np.nan), axis=1)
    low, high = np.percentile(scores[1:], (2.5, 97.5))
    return Estimate(float(scores[0]), float(low), float(high), len(labels))


def taught_by_one(path: Path) -> list[Figure]:
    """Return whether classes that one person taught, by ten shots each, are linked to that person."""
    data, rest, sfreq = people(path, "day")
    members, gallery = data.of(rest["day"] <= 20), data.of(rest["day"] > 20)
    base = members.labels < 10
    model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never")
    model.fit(members.signals[base], members.labels[base])
    names = np.unique(members.people)
    rows: dict[str, list[float]] = {"one person": [], "three people": []}
    rng = np.random.default_rng(0)
    for person in names:
        for how in rows:
            shots = []
            for label in range(10, 16):
                own = (members.labels == label) & ((members.people == person) | (how == "three people"))
                shots += rng.permutation(np.flatnonzero(own))[:SHOTS].tolist()
            taught = AnchorInvClassifier.from_bundle(model.to_bundle())
            taught.partial_fit(members.signals[shots], members.labels[shots])
            item = stored_items(taught, members.of(np.array(shots)), invert=False)[0]
            new = np.isin(item.labels, np.arange(10, 16))
            known = Gallery(taught._features(standardise(taught, gallery)), gallery.labels, gallery.people)
            found = known.identify(item.values[torch.from_numpy(new)], item.labels[new])
            shares = item.shares_of(members.people[shots], names)[new]
            rows[how] += shares[np.arange(len(found)), np.searchsorted(names, found)].tolist()
    figures = []
    for how, values in rows.items():
        share = Estimate.share(sum(values), len(values))
        target, measure = f"means of classes taught by {how}", f"top-1 of {len(names)} people"
        figures.append(Figure("re-identification", target, measure, share, 1 / len(names)))
    return figures


def forgetting(path: Path) -> list[Figure]:
    """Return what is left of a taught class and of a base class once forgotten, by two methods."""
    data, rest, sfreq = people(path, "day")
    some = np.isin(data.labels, (0, 1, 2, 3, 4, 10)) & (rest["day"] <= 10)
    members, others = data.of(some & (rest["repetition"] <= 2)), data.of(some & (rest["repetition"] > 2))
    base, figures = members.labels < 10, []
    for method in ("discriminant", "fecam"):
        model = AnchorInvClassifier(
            sfreq=sfreq, random_state=0, network="never", method=method, epochs=EPOCHS
        )
        model.fit(members.signals[base], members.labels[base])
        model.partial_fit(members.signals[~base], members.labels[~base])
        for label, kind in ((10, "taught later"), (4, "base class")):
            found = audit_forgetting(model, label, members, others).figures
            figures += [replace(each, target=f"{method}, {kind}, {each.target}") for each in found]
    return figures


def one_shot(path: Path) -> list[Figure]:
    """Return how close inversion comes to a window that a class of the default method was taught by alone."""
    ecg = "ecg" in path.name
    data, rest, sfreq = people(path, "none" if ecg else "day")
    early = (rest["sample"] < 433_333) if ecg else (rest["day"] <= 10)
    n_base = 4 if ecg else 10
    few = np.random.default_rng(0).permutation(np.flatnonzero(early & (data.labels < n_base)))[:1200]
    model = AnchorInvClassifier(sfreq=sfreq, random_state=0, network="never")
    model.fit(data.signals[few], data.labels[few])
    new = np.random.default_rng(1).permutation(np.flatnonzero(early & np.isin(data.labels, NEW[ecg])))[:20]
    names = 100 + np.arange(len(new))
    model.partial_fit(data.signals[new], names)
    means = next(
        item for item in stored_items(model, data.of(few), invert=False) if item.name == "class means"
    )
    values = means.values[torch.from_numpy(np.isin(means.labels, names))]
    places = np.flatnonzero(early & np.isin(data.labels, data.labels[new]))
    weights = (places == new[:, None]).astype(float)
    item = StoredItems("class means of one window", "features", values, data.labels[new], weights)
    return list(reconstruction(model, [invert_items(model, item)], data.of(places), []))


def done() -> list[dict[str, object]]:
    """Return the lines of the record."""
    lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.is_file() else []
    return [json.loads(line) for line in lines]


def rounded(value: object) -> object:
    """Return plain values with four digits: a record is to be published."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def note(facts: dict[str, object]) -> None:
    """Add a line to the record."""
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(rounded(facts)) + "\n")
    words = f"{facts['set']}, {facts['split']}: {facts['setting']}, {facts.get('seconds', 0):.0f} s"
    sys.stderr.write(words + "\n")


def compute(name: str, path: Path, *, kinds: tuple[str, ...]) -> None:
    """Add what the record does not have of a set."""
    have = {(line["set"], line["split"], line["setting"]) for line in done()}
    ways = {"closed": closed_forms, "networks": networks}
    for split, sfreq, (members, others) in SETS[name](path):
        same = {"set": name, "split": split, "members": len(members), "others": len(others)}
        units = units_of(members, others, [])[0][len(members) :]
        if "noise" in kinds and (name, split, LAST) not in have:
            began = time.process_time()
            for line in noisy(members, others, sfreq, compact=name == "emg-longterm"):
                if (name, split, line["setting"]) not in have:
                    note(same | line | {"seconds": time.process_time() - began})
                began = time.process_time()
        if "control" in kinds and (name, split, "control") not in have:
            figures = [each.facts() for each in control(members, others, sfreq)]
            note(same | {"setting": "control", "figures": figures})
        for kind in (each for each in kinds if each in ways):
            for setting, make in ways[kind](members, sfreq):
                if (name, split, setting) in have or split not in ONLY.get(setting, (split,)):
                    continue
                began = time.process_time()
                model = make()
                shadows = N_SHADOWS if setting in (WITH_SHADOWS, WEIGHTS_WITH_SHADOWS) else None
                found = audit(model, members, others, shadows=shadows, invert=setting in INVERTED)
                score = macro_f1(others.labels, model.predict(others.signals), units)
                facts = {"setting": setting, "macro_f1": score.value, "macro_f1_of": asdict(score)}
                note(same | facts | found.facts() | {"seconds": time.process_time() - began})
    extras = {"taught": taught_by_one, "forgotten": forgetting} if name == "emg-longterm" else {}
    extras |= {"one shot": one_shot} if name in ("emg-longterm", "ecg-beats") else {}
    for setting, extra in extras.items() if "closed" in kinds else ():
        if (name, "extra", setting) not in have:
            figures = [each.facts() for each in extra(path)]
            note({"set": name, "split": "extra", "setting": setting, "figures": figures})


def main() -> None:
    """Compute what was asked for, or make what the page has of the record."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    kinds = tuple(word for word in sys.argv[1:] if word in KINDS) or KINDS
    for name, path in given.items():
        compute(name, Path(path), kinds=kinds)
    if not given:
        from privacy_pages import draw, fill

        fill()
        draw("emg-longterm", "other days")


if __name__ == "__main__":
    main()

"""Attacks find what there is to find, and nothing where there is nothing."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorinv import AnchorInvClassifier, Geometry, Privacy
from anchorinv.core import privacy as privacy_module
from anchorinv.core.types import stream
from anchorinv.datasets import synthetic
from anchorinv.persistence.manifest import MEASURED
from anchorinv.serving import membership as membership_module
from anchorinv.serving.attacks import (
    Estimate,
    Gallery,
    Membership,
    clustered_auroc,
    identification_rate,
    likelihood_ratios,
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
from anchorinv.serving.membership import CONTROL, People, means_ratios, membership, shadow_logits

# Small sets and much noise, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:with this noise")

RECORD = Path(__file__).parents[2] / "docs" / "results" / "privacy.ndjson"
# What attacks look at is as much as such a network keeps: its features have 88 dimensions instead of 560.
SMALL = Geometry(4, 120, kernel=9, pool=16, pool_stride=8, width=8, heads=2, depth=2, dropout=0.1)
# It keeps more: enough to learn labels by heart, and to find back the window of an anchor.
WIDE = replace(SMALL, pool=8, width=24, depth=1, dropout=0.0)
GUESSING = 3  # standard errors from chance that chance may bring


@pytest.fixture(scope="module")
def everybody():
    """Six people whose electrodes have gains of their own: easily told apart."""
    data = synthetic.emg(
        n_classes=3, n_subjects=6, n_sessions=2, n_per_class=8, n_chans=4, n_times=120, seed=0
    )
    gains = np.exp(0.8 * np.random.default_rng(0).normal(size=(6, 4, 1)))
    return People(data.signals * gains[data.subjects], data.labels, data.subjects, data.sessions)


@pytest.fixture(scope="module")
def halves(everybody):
    """Every other trial was learned."""
    learned = np.arange(len(everybody)) % 2 == 0
    return everybody.of(learned), everybody.of(~learned)


def fitted(members, **settings):
    settings = {"geometry": SMALL, **settings} if "method" in settings else settings
    return AnchorInvClassifier(random_state=0, **settings).fit(members.signals, members.labels)


@pytest.fixture(scope="module")
def by_statistics(halves):
    return fitted(halves[0], network="never")


def figure(found, attack, target, measure):
    (line,) = [
        each for each in found.figures
        if (each.attack, each.target) == (attack, target) and each.measure.startswith(measure)
    ]  # fmt: skip
    return line


def naive_auroc_variance(inside, outside):
    """DeLong's variance by its definition."""
    wins = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    return np.var(wins.mean(1), ddof=1) / len(inside) + np.var(wins.mean(0), ddof=1) / len(outside)


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(2, 30))
@settings(max_examples=30, deadline=None)
def test_error_of_single_windows_is_delongs(seed, n, m):
    rng = np.random.default_rng(seed)
    inside, outside = rng.integers(0, 6, n).astype(float), rng.integers(0, 6, m).astype(float)
    _, error = clustered_auroc(inside, outside)
    assert error**2 == pytest.approx(naive_auroc_variance(inside, outside), abs=1e-12)


def test_windows_of_a_group_are_no_independent_evidence():
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(20), 10)
    scores = rng.normal(size=20)[people] + 0.1 * rng.normal(size=200)
    groups = (people[:100], people[100:])
    alone, together = (clustered_auroc(scores[:100], scores[100:], each)[1] for each in (None, groups))
    by_person = scores.reshape(20, 10).mean(1)
    assert together > 2 * alone
    assert together == pytest.approx(clustered_auroc(by_person[:10], by_person[10:])[1], rel=0.3)


def test_true_positives_at_few_false_ones_by_hand():
    others = np.arange(200.0)
    found = Membership.of(np.array([198.5, 197.0, 500.0]), others).true_positives
    assert found[0.01].value == pytest.approx(2 / 3)  # above 197: two of two hundred others
    assert found[0.001] is None


@given(st.integers(0, 50), st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_wilsons_interval_holds_the_share(count, more):
    share = Estimate.share(count, count + more)
    assert 0 <= share.low <= share.value <= share.high <= 1


def test_guessing_is_right_as_often_as_there_are_names_whatever_the_shares():
    rng = np.random.default_rng(0)
    names, shares = np.array(["a", "b", "c", "d"]), rng.dirichlet(np.ones(4), size=4000)
    guess = identification_rate(rng.choice(names, 4000), shares, names)
    assert abs(guess.value - 0.25) < GUESSING * (guess.high - guess.low) / (2 * 1.96)
    assert identification_rate(names[shares.argmax(1)], shares, names).value > 0.5


def test_likelihood_ratio_by_hand():
    inside = np.array([[True], [True], [False], [False]])
    shadows = np.array([[5.0], [3.0], [1.0], [-1.0]])
    # Both spreads are 1, the means 4 and 0.
    assert likelihood_ratios(np.array([4.0]), shadows, inside) == pytest.approx([8.0])
    assert likelihood_ratios(np.array([2.0]), shadows, inside) == pytest.approx([0.0])


def test_likelihood_ratio_is_the_published_one():
    """Algorithm 1 of Carlini et al. (2022), with one variance for all windows as in its section VI.C."""
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    inside = np.concatenate([half := rng.random((4, 30)) < 0.5, ~half])
    shadows, target = rng.normal(size=(8, 30)) + inside, rng.normal(size=30)
    parts = []
    for chosen in (inside, ~inside):
        means = np.array([shadows[chosen[:, i], i].mean() for i in range(30)])
        residuals = np.concatenate([shadows[chosen[:, i], i] - means[i] for i in range(30)])
        parts.append(norm.logpdf(target, means, np.sqrt((residuals**2).mean())))
    assert likelihood_ratios(target, shadows, inside) == pytest.approx(parts[0] - parts[1])


def test_intervals_of_shares_hold_the_truth_as_often_as_they_say():
    """Of 400 drawn sets of groups whose members are alike; windows as independent would hold 65 %."""
    rng, held, naive = np.random.default_rng(0), 0, 0
    for _ in range(400):
        chances = rng.beta(2, 2, 25)
        groups = np.repeat(np.arange(25), 12)
        values = rng.random(300) < chances[groups]
        found, plain = Estimate.clustered(values, groups), Estimate.share(values.sum(), 300)
        held += found.low <= 0.5 <= found.high
        naive += plain.low <= 0.5 <= plain.high
    assert held / 400 > 0.92 and naive / 400 < 0.8


def test_intervals_of_true_positives_hold_the_truth():
    """The threshold is an estimate, too: an interval that takes it as given holds the truth half the time."""
    from scipy.stats import norm

    truth, rng = norm.sf(norm.isf(0.01) - 2), np.random.default_rng(0)
    found = [
        Membership.of(rng.normal(2, 1, 600), rng.normal(size=600)).true_positives[0.01] for _ in range(50)
    ]
    plain = [Estimate.share(each.value * 600, 600) for each in found]
    held, naive = (np.mean([each.low <= truth <= each.high for each in some]) for some in (found, plain))
    assert held > 0.9 and naive < 0.75


def test_the_same_share_of_everything_is_known_exactly():
    for share in (1 / 3, 0.1):
        found = Estimate.clustered(share + np.array([0, 1e-17, -1e-16]))
        assert found.low == found.value == found.high


def test_the_mean_of_four_values_has_students_interval():
    found = Estimate.mean([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.high - found.value) == pytest.approx((2.5, 3.182446 * (5 / 3) ** 0.5 / 2))


def test_a_gallery_finds_a_person_whose_label_it_has_not_seen():
    rng = np.random.default_rng(0)
    people, labels = np.repeat(["a", "b"], 40), np.tile([0, 1], 40)
    features = (
        rng.normal(size=(80, 3)) + 6.0 * (people == "b")[:, None] * [1, 0, 0] + labels[:, None] * [0, 6.0, 0]
    )
    known = ~((people == "b") & (labels == 1))
    gallery = Gallery(torch.from_numpy(features[known]), labels[known], people[known])
    assert (gallery.identify(torch.from_numpy(features[~known]), labels[~known]) == "b").all()


def test_stored_recordings_are_linked_to_their_people(halves):
    members, others = halves
    model = fitted(members, method="real-replay", epochs=1, n_anchors=10, inversion_steps=0)
    found = audit(model, members, others, invert=False)
    stored = figure(found, "re-identification", "recordings", "top-1")
    assert stored.estimate.value > 0.95 and stored.chance == pytest.approx(1 / 6)
    assert figure(found, "re-identification", "raw storage", "top-1").estimate.value > 0.95
    nearest = figure(found, "membership", "window, by distance to recordings", "TPR at 1 %")
    assert nearest.estimate.value == pytest.approx(30 / len(members), abs=0.02)  # those stored, and no other


def test_an_overfitted_model_tells_its_members(by_statistics, halves):
    """Half as many features as windows: a covariance knows each window by itself."""
    found = audit(by_statistics, *halves, invert=False)
    assert figure(found, "membership", "window, by distance to class means", "AUROC").estimate.value >= 0.8
    assert (
        figure(found, "membership", "window, by likelihood ratio of density", "AUROC").estimate.value >= 0.95
    )
    by_means = figure(found, "membership", "window, by likelihood ratio of class means", "AUROC")
    assert by_means.estimate.value >= 0.8
    means = figure(found, "re-identification", "class means", "top-1")
    assert means.estimate.value == pytest.approx(means.chance)  # a mean over all people is nobody's


def test_no_attack_finds_members_among_windows_that_were_not_learned(by_statistics, halves):
    _, unseen = halves
    lots = np.random.default_rng(1).permutation(len(unseen)) % 2 == 0
    found = audit(by_statistics, unseen.of(lots), unseen.of(~lots), shadows=8, invert=False)
    lines = [each for each in found.figures if each.measure == "AUROC"]
    assert len(lines) == 6
    for line in lines:
        error = (line.estimate.high - line.estimate.low) / (2 * 1.96)
        assert abs(line.estimate.value - 0.5) < GUESSING * error, line


def near_chance(found):
    """All AUROCs of an audit, each with whether it is within three standard errors of 0.5."""
    lines = [each for each in found.figures if each.measure == "AUROC"]
    assert len(lines) >= 4
    return {
        each.target: abs(each.estimate.value - 0.5)
        <= GUESSING * (each.estimate.high - each.estimate.low) / (2 * 1.96)
        for each in lines
    }


def test_shuffled_membership_is_not_found(by_statistics, halves):
    """Half of either side was learned."""
    mixed = People(*(np.concatenate([getattr(each, name) for each in halves])
                     for name in ("signals", "labels", "people")))  # fmt: skip
    lots = np.random.default_rng(2).permutation(len(mixed)) % 2 == 0
    found = near_chance(audit(by_statistics, mixed.of(lots), mixed.of(~lots), shadows=8, invert=False))
    assert all(found.values()), found


def test_people_of_whom_none_was_learned_are_not_told_apart():
    data = synthetic.emg(
        n_classes=2, n_subjects=30, n_sessions=1, n_per_class=5, n_chans=4, n_times=120, seed=3
    )
    everybody = People(data.signals, data.labels, data.subjects)
    model = fitted(everybody.of(data.subjects < 10), network="never")
    some, others = (everybody.of((data.subjects >= 10) & (data.subjects % 2 == odd)) for odd in (0, 1))
    found = near_chance(audit(model, some, others, shadows=8, invert=False))
    assert all(found.values()) and any(name.startswith("person") for name in found), found


def test_an_overfitted_network_tells_its_members_by_loss_and_shadow_networks(halves):
    """Labels at random: what it knows of them it has learned by heart."""
    pool = halves[0]
    rng = np.random.default_rng(0)
    pool = People(pool.signals, rng.integers(0, 2, len(pool)))
    places = rng.permutation(len(pool))
    members, others = pool.of(places[:32]), pool.of(places[32:64])
    model = fitted(members, method="finetune", geometry=WIDE, epochs=40)
    found = audit(model, members, others, shadows=4, invert=False)
    for by in ("loss", "likelihood ratio of confidence"):
        assert figure(found, "membership", f"window, by {by}", "AUROC").estimate.value >= 0.8
    control = figure(found, "membership", f"window, by {CONTROL}", "AUROC").estimate
    assert control.low < 0.5 < control.high


def test_sessions_are_found_if_they_differ_and_not_if_they_mean_nothing(everybody):
    learned = np.arange(len(everybody)) % 2 == 0
    gains = np.array([0.3, 3.0])[everybody.sessions][:, None, None]
    loud = People(everybody.signals * gains, everybody.labels, everybody.people, everybody.sessions)
    settings = {"method": "real-replay", "epochs": 1, "n_anchors": 20, "inversion_steps": 0}
    found = audit(fitted(loud.of(learned), **settings), loud.of(learned), loud.of(~learned), invert=False)
    assert figure(found, "attribute", "recordings", "top-1 of 2 sessions").estimate.value > 0.95
    drawn = np.random.default_rng(0).permutation(everybody.sessions)
    mixed = People(loud.signals, loud.labels, loud.people, drawn)
    found = audit(fitted(mixed.of(learned), **settings), mixed.of(learned), mixed.of(~learned), invert=False)
    line = figure(found, "attribute", "recordings", "top-1 of 2 sessions")
    assert abs(line.estimate.value - 0.5) < GUESSING * np.sqrt(0.25 / line.estimate.n)


def test_inverted_replay_is_traced_to_the_windows_of_its_anchors(halves):
    members, others = halves
    model = fitted(members, method="anchorinv", epochs=1, n_anchors=3, inversion_steps=20)
    items = {item.name: item for item in stored_items(model, members, invert=False)}
    assert (items["inverted replay"].weights == items["anchors"].weights).all()
    found = audit(model, members, others, invert=False)
    assert figure(found, "re-identification", "inverted replay", "top-1").estimate.n == 9
    assert figure(found, "membership", "window, by distance to inverted replay", "AUROC").estimate.n == 288
    assert not any(each.attack == "reconstruction" for each in found.figures)


def test_a_class_that_was_just_taught_has_no_replay_yet_and_is_audited_all_the_same(halves):
    """Its anchors are inverted when the next one is learned."""
    members, others = halves
    new = members.labels == 2
    settings = {"epochs": 1, "n_anchors": 3, "inversion_steps": 2, "finetune_steps": 2}
    model = fitted(members.of(~new), method="anchorinv", **settings)
    model.partial_fit(members.signals[new], members.labels[new])
    found = audit(model, members, others, invert=False)
    line = figure(found, "membership", "window, by distance to inverted replay", "AUROC")
    assert line.estimate.n == 288 and 0 < line.estimate.value < 1


def test_the_window_behind_a_class_of_one_window_is_approached_from_its_statistics(by_statistics, halves):
    members, _ = halves
    features = by_statistics._features(torch.from_numpy(by_statistics.standardisation_(members.signals)))
    item = StoredItems(
        "means of one window", "features", features[:6], members.labels[:6], np.eye(len(members))[:6]
    )
    made = invert_items(by_statistics, item)
    closer = [each for each in reconstruction(by_statistics, [made], members, [])
              if each.measure == "closer than any real window, covariance distance"]  # fmt: skip
    assert closer[0].estimate.value > 0.5


def test_names_that_mean_nothing_are_not_found(halves):
    members, others = halves
    rng = np.random.default_rng(0)
    members, others = (
        People(each.signals, each.labels, rng.permutation(each.people)) for each in (members, others)
    )
    model = fitted(members, method="real-replay", epochs=1, n_anchors=40, inversion_steps=0)
    line = figure(audit(model, members, others, invert=False), "re-identification", "recordings", "top-1")
    error = np.sqrt(line.chance * (1 - line.chance) / line.estimate.n)
    assert abs(line.estimate.value - line.chance) < GUESSING * error


def test_people_who_were_not_learned_are_told_as_people(everybody):
    """Whole people are members or not; one line each for windows and for people."""
    learned = everybody.people < 3
    model = fitted(everybody.of(learned), network="never")
    found = audit(model, everybody.of(learned), everybody.of(~learned), shadows=8, invert=False)
    assert figure(found, "membership", "person, by loss", "AUROC").estimate.n == 6
    assert any(note.startswith("No re-identification by people") for note in found.notes)


def test_inverted_anchors_come_closer_to_their_windows_than_other_windows(halves):
    members, others = halves
    model = fitted(members, method="anchorinv", geometry=WIDE, epochs=1, n_anchors=2, inversion_steps=0)
    found = audit(model, members, others)
    name = "signals inverted from anchors"
    own = figure(found, "reconstruction", name, "closer than any real window, correlation").estimate
    assert own.value > 0.5 and own.n == 6
    made = next(item for item in stored_items(model, members) if item.name == name)
    assert made.weights.max(1) == pytest.approx(1.0)


def test_what_aggregated_anchors_are_made_of_is_found_out(halves):
    members, _ = halves
    model = AnchorInvClassifier(random_state=0, method="fecam", epochs=1, privacy="aggregate")
    model.fit(members.signals, members.labels, members.people)
    anchors = next(item for item in stored_items(model, members, invert=False) if item.name == "anchors")
    shares = anchors.shares_of(members.people, np.arange(6))
    assert shares.sum(1) == pytest.approx(1.0) and shares.max() < 0.45
    assert (np.sort(anchors.weights, 1)[:, -5] > 0.1).all()


def test_noise_on_anchors_hides_members(halves, monkeypatch):
    """Class means give them away without noise, less so with little, and not with much."""
    members, others = halves
    seeds, found = count(), []
    for module in (privacy_module, membership_module):
        # In use nobody knows the seed; here the draws are the same each time.
        monkeypatch.setattr(module, "unknown_generator", lambda: stream(next(seeds)))
    for privacy in (None, Privacy(1000.0, 0.9), Privacy(0.1)):
        model = fitted(members, method="fecam", geometry=WIDE, epochs=1, n_anchors=1, privacy=privacy)
        figures = membership(model, members, others, [], shadows=None, seed=0)
        means = "window, by likelihood ratio of class means"
        found.append(figure(Audit("none", tuple(figures)), "membership", means, "AUROC").estimate)
    without, little, much = found
    assert without.value > 0.95 and little.low > 0.5
    assert abs(much.value - 0.5) <= GUESSING * (much.high - much.low) / (2 * 1.96)


def test_a_class_of_few_windows_has_no_noisy_halves(halves):
    members, others = (half.of(np.flatnonzero(half.labels < 2)[:14]) for half in halves)
    model = fitted(members, method="fecam", epochs=1, privacy=Privacy(1.0))
    assert means_ratios(model, members, None, by_unit=False, seed=0) is None
    assert audit(model, members, others, invert=False).figures


def test_a_taught_class_is_forgotten_without_a_trace(halves):
    members, others = halves
    base = members.labels < 2
    model = fitted(members.of(base), network="never").partial_fit(
        members.signals[~base], members.labels[~base]
    )
    before, after, never = (each.estimate for each in audit_forgetting(model, 2, members, others).figures)
    assert before.value > 0.6
    assert after.value == pytest.approx(never.value, abs=1e-6)


def test_shadow_models_learn_halves_in_pairs(by_statistics, halves):
    data = halves[0]
    _, _, inside = shadow_logits(by_statistics, data, 4, by_unit=True, seed=0)
    assert (inside[0] == ~inside[1]).all()
    for half in inside:
        assert len(set(data.people[half]) & set(data.people[~half])) == 0


def test_unknown_classes_are_left_out_and_said(by_statistics, halves):
    members, others = halves
    odd = People(
        others.signals, np.where(others.labels == 2, 9, others.labels), others.people, others.sessions
    )
    found = audit(by_statistics, members, odd, shadows=0, invert=False)
    assert any("classes that the model does not know" in note for note in found.notes)
    nobody = People(others.signals, others.labels + 50)
    with pytest.raises(ValueError, match="knows none of the classes of the others"):
        audit(by_statistics, members, nobody)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_class_without_windows_has_no_shadow_models(by_statistics, halves, missing):
    """Shadow models without it would be compared with a model that knows it."""
    members, others = (data.of(data.labels != missing) for data in halves)
    found = audit(by_statistics, members, others, invert=False)
    assert not any("confidence" in each.target for each in found.figures)
    assert any(f"there are no windows of {missing}" in note for note in found.notes)


def test_columns_must_fit():
    with pytest.raises(ValueError, match="people have shape"):
        People(np.zeros((3, 1, 9)), np.zeros(3), np.zeros(2))


def test_what_info_quotes_is_in_the_record():
    """Figures that files are sent out with are those of the study, and stay so."""
    lines = {
        (line["split"], line["setting"]): line["figures"]
        for line in map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())
        if line["set"] == "emg-longterm"
    }

    def best(setting, attack, measure, split="other days"):
        return max(
            each["value"] for each in lines[split, setting]
            if each["attack"] == attack and each["measure"].startswith(measure)
            and each["target"] != "raw storage" and not each["target"].startswith(("session", "person"))
        )  # fmt: skip

    def percent(value):
        return f"{100 * value:.0f} %"

    identify = {
        name: best(name, "re-identification", "top-1") for name in ("anchorinv", "fecam", "real-replay")
    }
    assert (
        percent(identify["anchorinv"]) == percent(identify["fecam"])
        and percent(identify["fecam"]) in MEASURED["anchors"]
    )
    assert percent(identify["real-replay"]) in MEASURED["real recordings"]
    raw = next(each["value"] for each in lines["other days", "fecam"] if each["target"] == "raw storage")
    assert f"recordings in {percent(raw)}" in MEASURED["anchors"]
    noisy = best("fecam, 1 noisy anchors, epsilon 1", "membership", "TPR at 1 %")
    assert f"{percent(noisy)} of the windows" in MEASURED["noisy anchors"]
    grouped = best("fecam, 50 anchors of five windows", "re-identification", "top-1")
    assert f"in {percent(grouped)} " in MEASURED["aggregate"]
    told = best("discriminant", "membership", "TPR at 1 %")
    assert f"{percent(told)} of the windows" in MEASURED["class statistics"]
    assert best("taught", "re-identification", "top-1", "extra") == 1
    hidden = best("discriminant, epsilon 1", "membership", "TPR at 1 %")
    assert f"{percent(hidden)} of the windows" in MEASURED["epsilon"]
    assert f"AUROC of {best('protonet', 'membership', 'AUROC'):.2f}" in MEASURED["none"]
    alone = best("finetune, weights alone", "membership", "AUROC")
    assert f"AUROC of {alone:.2f}" in MEASURED["weights alone"]


def test_no_line_of_the_record_is_left_over_and_none_is_missing():
    """Every kind of memory was attacked on every split of the four sets; each macro-F1 has an interval."""
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    have = [(line["set"], line["split"], line["setting"]) for line in lines]
    assert len(have) == len(set(have)) and not any("earlier" in line for line in lines)
    splits = {key[:2] for key in have if key[1] != "extra"}
    memories = ("real-replay", "latent-replay", "anchorinv", "anchorinv, 10 anchors, inverted replay",
                "protonet", "discriminant", "finetune, weights alone")  # fmt: skip
    assert len(splits) == 6
    assert {(*split, each) for split in splits for each in memories} <= set(have)
    assert all("macro_f1_of" in line for line in lines if "macro_f1" in line)

"""What holds between methods: special cases that collapse to others, and parts against direct computation."""

import copy
import math
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F

from anchorinv.core import catalogue
from anchorinv.core.conformer import Conformer, FrontEnd
from anchorinv.core.heads import DotRegression, simplex_etf
from anchorinv.core.inversion import (
    Inversion,
    Prior,
    energy,
    length,
    roughness,
    statistics,
    total_variation,
    with_priors,
)
from anchorinv.core.prototypes import (
    MEASURES,
    SELECTIONS,
    Closest,
    KMeans,
    RandomClosest,
    calibrated,
    mean_of_shots,
    next_vertices,
    selection,
)
from anchorinv.core.registry import METHODS
from anchorinv.core.training import Finetune
from anchorinv.core.types import Batch, Session, scoped_seed, stream
from tests import naive
from tests.core.small import SMALL, base_spec, randn, toy

BASE = toy(8).of(1, 2, 3)
NEW = toy(6).of(5)
TEST = toy(5).values
FOUNDATION = base_spec(epochs=3)
STILL = Finetune(steps=(0,), lr=1e-3)


def learned(recipe, *, n_sessions=1):
    state = recipe.fit_base(BASE, rng=stream(5))
    for index in range(1, n_sessions + 1):
        state = recipe.learn_session(state, Session(index, toy(6).of(3 + index)), rng=stream(6, index))
    return state


class TestSpecialCases:
    @pytest.mark.parametrize("name", ["anchorinv", "real-replay", "latent-replay", "deepdream", "deepinv"])
    def test_no_steps_from_mean_prototypes_is_protonet(self, name):
        options = {} if "replay" in name else {"inversion": Inversion(steps=1)}
        method = METHODS[name].build(FOUNDATION, start=mean_of_shots, adapt=STILL, per_class=2, **options)
        proto = catalogue.protonet(FOUNDATION)
        assert torch.equal(method.predict(learned(method), TEST), proto.predict(learned(proto), TEST))

    def test_teen_without_calibration_is_protonet(self):
        teen, proto = catalogue.teen(FOUNDATION, alpha=0.0), catalogue.protonet(FOUNDATION)
        one, two = learned(teen), learned(proto)
        torch.testing.assert_close(F.normalize(one.head.prototypes), F.normalize(two.head.prototypes))
        assert torch.equal(teen.predict(one, TEST), proto.predict(two, TEST))

    def test_real_and_latent_replay_are_the_same_numbers(self):
        plan = Finetune(steps=(3,), lr=1e-3)
        real, latent = (
            make(FOUNDATION, adapt=plan, per_class=4)
            for make in (catalogue.real_replay, catalogue.latent_replay)
        )
        one, two = learned(real, n_sessions=2), learned(latent, n_sessions=2)
        torch.testing.assert_close(one.head.prototypes, two.head.prototypes)
        torch.testing.assert_close(one.replay.values, two.replay.values[: len(one.replay)])
        assert len(one.recordings) == 3 * 4 + 8 + 8 and two.recordings is None

    def test_latent_replay_is_textbook_real_replay(self):
        """The whole network in every step, on raw signals: the same weights to 1e-9."""
        plan = Finetune(steps=(5,), lr=1e-3)
        with scoped_seed(stream(3)):
            twin = naive.TwoConvConformer(**asdict(SMALL)).double()
        recipe = catalogue.latent_replay(FOUNDATION, start=mean_of_shots, adapt=plan, per_class=4)
        real = catalogue.real_replay(FOUNDATION, per_class=4)
        base, new = (Batch(part.values.double(), part.labels) for part in (BASE, NEW))
        state = recipe.base_spec.fit(base, rng=stream(5))
        ours = Conformer.from_conv2d_state(twin.state_dict(), SMALL).eval().requires_grad_(False)
        state = replace(state, trunk=ours.trunk, tail=ours.tail)
        started = recipe.start(state, base, rng=stream(5))
        shots = Session(1, new)
        adapted = recipe.learn_session(started, shots, rng=stream(6))

        kept = real.start(state, base, rng=stream(5)).recordings
        old = state.head.prototypes
        start = ours(new.values).mean(0, keepdim=True)
        naive.finetune(
            twin,
            old,
            start,
            new.values,
            torch.full((len(new),), 3),
            kept.values,
            state.columns(kept.labels),
            5,
            1e-3,
            1.0,
        )
        twins = Conformer.from_conv2d_state(twin.state_dict(), SMALL)
        for mine, theirs in zip(adapted.tail.parameters(), twins.tail.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


class TestRows:
    """What stands beside the paper's methods."""

    def test_every_method_says_whose_idea_it_is_and_goes_by_its_name(self):
        made = {name: make(FOUNDATION) for name, make in ((n, spec.build) for n, spec in METHODS.items())}
        assert all(METHODS[name].citation and recipe.name == name for name, recipe in made.items())
        rows = {"fecam": "Goswami", "mdm": "Barachant", "ranpac": "McDonnell", "lda": "Fisher"}
        assert all(author in METHODS[name].citation for name, author in rows.items())

    def test_those_of_the_paper_are_marked_and_no_two_look_alike(self):
        assert sum(spec.published for spec in METHODS.values()) == 9
        assert not any(METHODS[name].published for name in ("fecam", "ranpac", "lda", "mdm", "discriminant"))
        assert len({spec.look for spec in METHODS.values()}) == len(METHODS) == len({*METHODS})

    def test_those_with_a_network_share_protonets(self):
        rows = (catalogue.fecam(FOUNDATION), catalogue.ranpac(FOUNDATION), catalogue.protonet(FOUNDATION))
        assert len({recipe.base_spec for recipe in rows}) == 1
        assert catalogue.mdm(FOUNDATION).base_spec == catalogue.mdm(base_spec(epochs=9)).base_spec

    def test_fecam_without_a_covariance_is_the_nearest_mean(self):
        recipe = catalogue.fecam(FOUNDATION, prior=1e12)
        state = learned(recipe)
        features = state.tail(state.trunk(TEST))
        shot_correction = state.head.shot_correction.sqrt()
        nearest = (shot_correction * torch.cdist(features, state.head.prototypes)).argmin(1)
        assert torch.equal(recipe.predict(state, TEST), torch.tensor(state.classes)[nearest])


class TestWholeNetwork:
    """Finetune with ``whole_network``: the paper's "the model", read literally."""

    def test_the_base_model_is_the_same(self):
        part, whole = (catalogue.finetune(FOUNDATION, adapt=STILL, whole_network=w) for w in (False, True))
        one, two = learned(part), learned(whole)
        assert torch.equal(part.predict(one, TEST), whole.predict(two, TEST))
        assert list(two.trunk.parameters()) == []

    def test_everything_is_trained_and_equals_torchs_own_loop(self):
        plan = Finetune(steps=(3,), lr=1e-3)
        still, moved = (catalogue.finetune(FOUNDATION, adapt=a, whole_network=True) for a in (STILL, plan))
        before, after = learned(still), learned(moved)
        network, head = copy.deepcopy(before.tail), copy.deepcopy(before.head)
        params = [*network.requires_grad_().parameters(), *head.requires_grad_().parameters()]
        optimiser = torch.optim.Adam(params, lr=plan.lr)
        shots = toy(6).of(4)
        for _ in range(3):
            optimiser.zero_grad()
            targets = torch.full((len(shots),), 3)
            F.cross_entropy(head(network(shots.values)), targets).backward()
            optimiser.step()
        for name, value in network.state_dict().items():
            # Biases of keys have a gradient of rounding errors alone, which Adam makes steps of.
            torch.testing.assert_close(after.tail.state_dict()[name], value, rtol=1e-4, atol=2e-4)
        still_there = before.tail.state_dict()
        moved_names = {n for n, v in after.tail.state_dict().items() if not torch.equal(v, still_there[n])}
        assert any("time_weight" in name for name in moved_names)
        assert not any("running" in name for name in moved_names)


class TestTeen:
    def test_by_hand(self):
        base = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
        new = torch.tensor([[1.0, 1.0]])
        # Equally like both: drawn to the diagonal, where it is.
        torch.testing.assert_close(calibrated(new, base, tau=32, alpha=0.5), F.normalize(new))

    def test_a_sharp_weighting_takes_the_nearest(self):
        base = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        moved = calibrated(torch.tensor([[3.0, 1.0]]), base, tau=1e4, alpha=1.0)
        torch.testing.assert_close(moved, base[:1])


class TestVertices:
    @pytest.mark.parametrize(("n", "dim"), [(2, 2), (4, 7), (16, 512)])
    def test_gram_matrix(self, n, dim):
        vertices = simplex_etf(n, dim, rng=stream(1))
        wanted = torch.full((n, n), -1 / (n - 1)).fill_diagonal_(1)
        torch.testing.assert_close(vertices @ vertices.T, wanted, atol=1e-5, rtol=0)

    def test_too_many(self):
        with pytest.raises(ValueError, match="5 classes need vertices in at least 5 dimensions, got 4"):
            simplex_etf(5, 4)
        with pytest.raises(ValueError, match="reserved vertices for 3"):
            DotRegression(simplex_etf(3, 4, rng=stream(0)), 4)

    def test_dot_regression_against_its_closed_form(self):
        head = DotRegression(simplex_etf(5, 6, rng=stream(2)).double(), 3)
        features, targets = randn(7, 6, seed=1), torch.tensor([0, 1, 2, 0, 1, 2, 2])
        direct = sum(
            0.5 * (float(feature / feature.norm() @ head.vertices[target]) - 1) ** 2
            for feature, target in zip(features, targets, strict=True)
        )
        assert float(head.loss(features, targets)) == pytest.approx(10 * direct / 7)
        weights = torch.tensor([1.0, 2.0, 5.0]).double()
        each = [
            float(head.loss(f[None], t[None])) * float(weights[t])
            for f, t in zip(features, targets, strict=True)
        ]
        assert float(head.loss(features, targets, weights)) == pytest.approx(
            sum(each) / float(weights[targets].sum())
        )

    def test_nc_fscil_takes_a_mean_over_the_shots_and_one_over_the_stored_means(self):
        recipe = catalogue.nc_fscil(FOUNDATION, n_all=5, adapt=Finetune(steps=(1,), lr=1e-3))
        before = recipe.fit_base(BASE, rng=stream(5))
        after = recipe.learn_session(before, Session(1, NEW), rng=stream(6))
        head = next_vertices(before, NEW)
        shots, means = before.trunk(NEW.values), before.replay
        reached = [head(before.tail(x)) for x in (shots, means.values)]
        new = 5 * (reached[0][:, 3] - 1).square()  # weight 10, and a half
        old = 5 * (reached[1].gather(1, before.columns(means.labels)[:, None])[:, 0] - 1).square()
        start = float(after.curves[-1].values[0])
        assert start == pytest.approx(float(new.mean() + old.mean()), rel=1e-5)
        # One mean over both, as in NC-FSCIL's own code, is the same up to a factor with another weight.
        joined, weight = torch.cat([new, old]).mean(), len(old) / len(new)
        factor = (len(new) + len(old)) / len(new)
        assert float(factor * joined) == pytest.approx(float(new.mean() + weight * old.mean()), rel=1e-5)
        lighter = replace(recipe, adapt=Finetune(steps=(1,), lr=1e-3, replay_weight=weight))
        other = lighter.learn_session(before, Session(1, NEW), rng=stream(6)).curves[-1].values[0]
        assert float(other) == pytest.approx(float(factor * joined), rel=1e-5) != start

    def test_nc_fscil_splits_after_the_pooling_and_keeps_a_mean_per_class(self):
        recipe = catalogue.nc_fscil(FOUNDATION, n_all=5, adapt=Finetune(steps=(2,), lr=1e-3))
        state = learned(recipe, n_sessions=2)
        assert state.replay.values.shape == (5, 512) and state.replay.classes == (1, 2, 3, 4, 5)
        before = recipe.fit_base(BASE, rng=stream(5))
        assert all(
            torch.equal(a, b)
            for a, b in zip(before.trunk.parameters(), state.trunk.parameters(), strict=True)
        )
        torch.testing.assert_close(state.replay.values[0], state.trunk(BASE.of(1).values).mean(0))


class TestPriors:
    def test_statistics_against_a_direct_computation(self):
        with scoped_seed(stream(4)):
            front = FrontEnd(SMALL).double().requires_grad_(False)
            front(randn(6, SMALL.n_chans, SMALL.n_times, seed=3))  # moves the running statistics
        signals = randn(5, SMALL.n_chans, SMALL.n_times, seed=9)
        inner = F.conv1d(signals, *front.fused())  # (n, width, steps)
        flat = inner.transpose(0, 1).flatten(1)
        mean, var = flat.mean(1), flat.var(1, correction=0)
        direct = math.dist(mean.tolist(), front.norm.running_mean.tolist()) + math.dist(
            var.tolist(), front.norm.running_var.tolist()
        )
        assert float(statistics(front, signals)) == pytest.approx(direct, rel=1e-9)

    def test_terms_by_hand(self):
        ramp = torch.tensor([[[0.0, 1.0, 3.0]]])
        assert float(energy(None, ramp)) == pytest.approx(10 / 3)
        assert float(length(None, ramp)) == pytest.approx(10**0.5)
        assert float(total_variation(None, ramp)) == pytest.approx(1.5)
        assert float(roughness(None, ramp)) == pytest.approx(1.0)

    def test_the_norm_pulls_all_signals_alike_and_the_mean_square_the_large_ones_more(self):
        signals = torch.stack([torch.ones(2, 8), 3 * torch.ones(2, 8), torch.zeros(2, 8)]).requires_grad_()
        pulls = [
            torch.autograd.grad(term(None, signals).sum(), signals)[0].flatten(1).norm(dim=1)
            for term in (length, energy)
        ]
        assert pulls[0].tolist() == pytest.approx([1, 1, 0]), "and none where there is nothing to pull"
        assert (pulls[1] / pulls[1][0]).tolist() == pytest.approx([1, 3, 0])

    @pytest.mark.parametrize("make", [catalogue.deepdream, catalogue.deepinv])
    def test_l2_is_ours_unless_asked_otherwise(self, make):
        assert make(FOUNDATION).memory.priors[0] == Prior("l2", energy)
        assert make(FOUNDATION, l2=length).memory.priors[0] == Prior("l2", length)

    def test_open_weights_start_at_the_goals_magnitude_and_fixed_ones_stay(self):
        start = randn(4, 2, 9, seed=0)
        priors = (Prior("l2", energy), Prior("tv", total_variation), Prior("rough", roughness, weight=0.05))
        goal, weights = with_priors(lambda signals, part: signals.abs().mean((1, 2)) * 7, priors, None, start)
        magnitude = 7 * start.abs().mean()
        assert weights["l2"] * energy(None, start).mean() == pytest.approx(float(magnitude))
        assert weights["tv"] * total_variation(None, start).mean() == pytest.approx(float(magnitude))
        assert weights["rough"] == 0.05
        total = 3 * magnitude + 0.05 * roughness(None, start).mean()
        assert float(goal(start, slice(None)).mean()) == pytest.approx(float(total))

    def test_the_weights_used_are_recorded(self):
        recipe = catalogue.deepinv(FOUNDATION, adapt=STILL, per_class=2, inversion=Inversion(steps=2))
        names = [curve.name for curve in learned(recipe).curves]
        assert names == ["base", "invert", "weight of l2", "weight of tv", "weight of statistics", "finetune"]

    def test_labels_alone_are_kept_and_inverted_signals_come_closer_to_them(self):
        recipe = catalogue.deepdream(
            FOUNDATION, adapt=STILL, per_class=4, inversion=Inversion(steps=30, lr=0.05)
        )
        state = learned(recipe, n_sessions=2)
        assert state.anchors.values.shape == (3 * 4 + 8 + 8, 0) and len(state.replay) == 3 * 4 + 8
        curve = next(curve.values for curve in state.curves if curve.name == "invert")
        assert curve[-1] < 0.8 * curve[0]


def textbook_distance(row, rows, measure):
    """Written out: how far a row is from the mean of all rows."""
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    if measure == "euclidean":
        return sum((x - m) ** 2 for x, m in zip(row, mean, strict=True)) ** 0.5
    product = sum(x * m for x, m in zip(row, mean, strict=True))
    return 1 - product / (math.hypot(*row) * math.hypot(*mean))


class TestSelections:
    FEATURES = randn(40, 6, seed=5) + 3

    @pytest.mark.parametrize("name", sorted(SELECTIONS))
    @pytest.mark.parametrize("quota", [1, 12, 100])
    def test_fill_the_quota_or_take_all(self, name, quota):
        anchors = SELECTIONS[name](self.FEATURES, quota, stream(1))
        near = {"random-closest-30": 12, "random-closest-50": 20, "random-closest-70": 28}
        assert anchors.shape == (min(quota, near.get(name, 40)), 6)

    @pytest.mark.parametrize("measure", sorted(MEASURES))
    def test_closest_are_the_textbooks(self, measure):
        rows = self.FEATURES.tolist()
        order = sorted(range(40), key=lambda i: textbook_distance(rows[i], rows, measure))
        for quota in (1, 3, 40):
            anchors = selection("closest", measure)(self.FEATURES, quota, stream(0))
            assert torch.equal(anchors, self.FEATURES[order[:quota]])

    @pytest.mark.parametrize("measure", sorted(MEASURES))
    def test_random_closest_draws_from_the_near_share_alone(self, measure):
        near = selection("closest", measure)(self.FEATURES, 12, stream(0))
        drawn = [
            selection("random-closest-30", measure)(self.FEATURES, 5, stream(seed)) for seed in range(40)
        ]
        assert all((near == anchor).all(1).any() for anchors in drawn for anchor in anchors)
        everything = torch.cat(drawn).unique(dim=0)
        assert len(everything) == 12, "and from all of it"

    def test_the_two_measures_by_hand(self):
        # The mean is (10, 0): in its direction but far away, or beside it and near.
        features = torch.tensor([[19.0, 0.0], [9.0, 2.0], [9.0, -2.0], [3.0, 0.0]])
        found = {name: selection("closest", name)(features, 1, stream(0)).tolist() for name in MEASURES}
        assert found == {"cosine": [[19.0, 0.0]], "euclidean": [[9.0, 2.0]]}

    def test_the_two_measures_agree_on_part_of_fifty_anchors(self):
        # Lengths that vary by a fifth, as those of trained features do: less than half is the same.
        directions = F.normalize(1 + 0.5 * randn(300, 200, seed=1))
        features = directions * torch.exp(0.2 * randn(300, 1, seed=2))
        ours, theirs = (
            {tuple(row) for row in selection("closest", name)(features, 50, stream(0)).tolist()}
            for name in MEASURES
        )
        assert 5 < len(ours & theirs) < 30

    @pytest.mark.parametrize(
        ("n", "share", "n_near"), [(39, 0.3, 11), (33, 0.5, 16), (9, 0.7, 6), (2, 0.3, 1)]
    )
    def test_a_share_is_rounded_down_but_to_one_at_least(self, n, share, n_near):
        assert len(RandomClosest(share)(randn(n, 3, seed=0), 50, stream(0))) == n_near

    def test_a_measure_changes_nothing_where_closeness_is_not_asked_for(self):
        for name in SELECTIONS:
            one, other = (selection(name, measure) for measure in MEASURES)
            assert (one == other) == (name in ("random", "kmeans"))
            assert one == SELECTIONS[name], "cosine, unless another one is named"
        assert Closest() == SELECTIONS["closest"]

    def test_kmeans_centroids_repeat_in_turn(self):
        blobs = torch.cat([torch.full((8, 2), 10.0 * i) for i in range(5)]) + 0.01 * randn(40, 2, seed=1)
        anchors = KMeans(5)(blobs, 12, stream(3))
        assert torch.equal(anchors[:5], anchors[5:10]) and torch.equal(anchors[:2], anchors[10:])
        assert sorted((anchors[:5, 0] / 10).round().tolist()) == [0, 1, 2, 3, 4]

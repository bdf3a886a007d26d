import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorinv.live.stream import KEPT, Contact, Scope


class TestScope:
    @given(
        sfreq=st.sampled_from([100.0, 200.0, 1000.0, 2048.0]),
        cuts=st.lists(st.integers(0, 700), max_size=6),
        seed=st.integers(0, 99),
    )
    def test_no_peak_is_lost_however_it_is_cut(self, sfreq, cuts, seed):
        samples = np.random.default_rng(seed).normal(size=(3, 700)).astype(np.float32)
        scope = Scope(3, sfreq)
        for part in np.split(samples, sorted(cuts), axis=1):
            scope.push(part)
        first, columns = scope.since(0)
        each = round(sfreq / scope.rate)
        whole = samples[:, : 700 // each * each].reshape(3, -1, each)
        assert first == 0 and np.array_equal(columns[..., 0], whole.min(2).T)
        assert np.array_equal(columns[..., 1], whole.max(2).T)

    def test_who_falls_behind_gets_the_latest(self):
        scope = Scope(1, 200.0)
        for i in range(40):
            scope.push(np.full((1, 100), float(i)))
        first, columns = scope.since(0)
        assert len(columns) == round(KEPT * scope.rate) and first + len(columns) == scope.n_columns
        assert columns[-1, 0, 0] == 39 and scope.since(scope.n_columns)[1].size == 0

    def test_a_gap_stays_one(self):
        scope = Scope(1, 200.0)
        scope.push(np.array([[1.0, np.nan, 2.0]]))
        assert np.isnan(scope.since(0)[1][:, 0, 0]).tolist() == [False, True, False]


class TestContact:
    def verdict(self, channel, sfreq=250.0):
        contact = Contact(1, sfreq)
        for part in np.array_split(channel, 7):
            contact.push(part[None])
        return contact.verdicts()[0]

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    def test_each_kind(self, scale):
        rng, t = np.random.default_rng(0), np.arange(500) / 250
        noise = scale * rng.normal(size=500)
        assert self.verdict(noise) == "ok"
        assert self.verdict(np.full(500, 7 * scale)) == "flat"
        assert self.verdict(noise + 3 * scale * np.sin(2 * np.pi * 60 * t)) == "mains hum"
        assert self.verdict(np.clip(noise, -scale, scale)) == "saturated"
        assert self.verdict(np.where(rng.random(500) < 0.3, np.nan, noise)) == "missing"

    def test_slow_waves_and_coarse_converters_are_fine(self):
        t = np.arange(500) / 250
        assert self.verdict(np.sin(2 * np.pi * 10 * t)) == "ok"
        assert self.verdict(np.round(2 * np.random.default_rng(0).normal(size=500))) == "ok"

    def test_nothing_is_said_of_too_few_samples(self):
        contact = Contact(2, 250.0)
        contact.push(np.zeros((2, 100)))
        assert contact.verdicts() == ["ok", "ok"]

"""What a training will take: told before it begins, only where it is worth telling, and to no effect."""

import io
from contextlib import redirect_stderr

import numpy as np
import pytest
import torch

from anchorinv import AnchorInvClassifier
from anchorinv.core.types import Batch
from anchorinv.progress import listening
from anchorinv.settings import (
    PER_VALUE,
    PER_WINDOW,
    PRODUCT,
    Forecast,
    announce,
    forecast_of,
    n_steps,
    recipe_of,
)
from tests.core.small import untouched_generators
from tests.models import SETTINGS, SMALL, windows


class Slow:
    """A clock on which all that is timed takes so many seconds."""

    def __init__(self, *times):
        self.times, self.now = list(times), 0.0

    def __call__(self):
        self.now += self.times.pop(0) if self.times else 0.0
        return self.now


def batch(n=48):
    X, y = windows(n)
    return Batch(torch.tensor(X, dtype=torch.float32), torch.tensor(np.unique(y, return_inverse=True)[1]))


def recipe(method, **changes):
    settings = AnchorInvClassifier(**{**SETTINGS, "method": method, **changes}).get_params(deep=False)
    return recipe_of(settings, SMALL, 48)


def test_a_network_is_timed_by_its_steps():
    made = recipe("protonet", epochs=10)
    with untouched_generators():
        found = forecast_of(made, batch(), clock=Slow(0, 5, 1, 3))  # warm, one step, three of them
    assert n_steps(made.base_spec, 48) == 30 and found.seconds == pytest.approx(30.0) and found.maybe == 0


def test_an_inversion_takes_longer():
    plain, inverting = (
        forecast_of(recipe(method), batch(), clock=Slow(0, 5, 1, 3)) for method in ("protonet", "anchorinv")
    )
    assert inverting.seconds > plain.seconds and inverting.n_bytes == plain.n_bytes


def test_networks_that_may_be_needed_are_told_apart():
    clock = (0, 10 * PRODUCT, 0, 5, 1, 3)
    always, maybe = (
        forecast_of(recipe("discriminant", network=n), batch(), clock=Slow(*clock))
        for n in ("always", "rehearse")
    )
    classical = 48 * (PER_WINDOW + 4 * 64 * PER_VALUE)
    assert maybe.seconds == pytest.approx(classical) and maybe.maybe > 1
    assert always.seconds == pytest.approx(classical + maybe.maybe) and always.maybe == 0


def test_a_machine_that_is_half_as_fast_takes_twice_as_long():
    one, two = (forecast_of(recipe("lda"), batch(), clock=Slow(0, k * PRODUCT)).seconds for k in (10, 20))
    assert two == pytest.approx(2 * one) and one > 0


def test_what_else_the_machine_does_is_not_counted(monkeypatch):
    monkeypatch.setattr("time.thread_time", Slow(0, 5, 1, 3))
    assert forecast_of(recipe("protonet", epochs=10), batch()).seconds == pytest.approx(30.0)


def test_only_what_takes_seconds_is_told():
    heard = []
    with listening(heard.append):
        announce(recipe("protonet"), batch(), clock=Slow())
        assert heard == [], "neither little work nor its trial"
        announce(recipe("protonet", epochs=10), batch(), clock=Slow(0, 5, 1, 3))
    (told,) = heard
    assert told.sentence and told.task.startswith("training on 48 windows of 4 x 64: about 30 s and ")


def test_nobody_who_listens_costs_nothing():
    announce(recipe("protonet"), batch(), clock=pytest.fail)


def test_it_changes_nothing_that_is_learned():
    kept = {**SETTINGS, "method": "protonet"}
    quiet = AnchorInvClassifier(**kept).fit(*windows())
    said = io.StringIO()
    with redirect_stderr(said):
        verbose = AnchorInvClassifier(**kept, verbose=True).fit(*windows())
    assert "base training: done" in said.getvalue()
    assert np.array_equal(quiet.predict_proba(windows()[0]), verbose.predict_proba(windows()[0]))


def test_in_words():
    maybe = (
        "about 21 s, up to 5 min more only if classical features fail, and 90 MB of memory beside the data"
    )
    assert str(Forecast(21, 300, 90_000_000)) == maybe
    assert str(Forecast(3000, 0, 2_500_000_000)) == "about 50 min and 2.5 GB of memory beside the data"

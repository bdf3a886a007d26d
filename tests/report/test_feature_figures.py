"""Figures of features and signals show what the run's own base model makes of its recordings."""

import re
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from anchorinv.core.networks import encode
from anchorinv.core.prototypes import SELECTIONS
from anchorinv.report.feature_figures import (
    _DRAWN,
    ITERATIONS,
    LEAST_STEPS,
    PERPLEXITY,
    Unavailable,
    downsample,
    fitted_run,
    inverted_pairs,
    selected_anchors,
    tsne_embedding,
)
from anchorinv.report.gather import gather
from anchorinv.report.page import make_report


@pytest.fixture(scope="module")
def fitted(ran):
    return fitted_run(gather([ran])[0], "", {})


def test_the_run_keeps_what_the_selection_selects(fitted):
    latents = fitted.base.with_values(encode(fitted.state.trunk, fitted.base.values))
    shown = selected_anchors(fitted, list(SELECTIONS), latents)
    assert shown["random"].inverted is not None, "the run's own selection was inverted"
    assert torch.equal(shown["random"].inverted.labels, shown["random"].anchors.labels)
    assert all(each.inverted is None for name, each in shown.items() if name != "random")
    features = encode(nn.Sequential(fitted.state.trunk, fitted.state.tail), fitted.base.values)
    apart = (shown["closest"].anchors.values[:, None] - features).abs().amax(2)
    assert apart.min(1).values.max() < 1e-4, "anchors are features of training samples"


def test_inverted_signals_share_their_anchor(fitted):
    network = nn.Sequential(fitted.state.trunk, fitted.state.tail)
    for pair in inverted_pairs(fitted):
        one, other = (encode(network, torch.from_numpy(x)[None]) for x in (pair.real, pair.inverted))
        assert pair.error == pytest.approx(float((one - other).abs().mean()), rel=1e-4)
        assert pair.error < pair.start and pair.steps == LEAST_STEPS
        assert any(np.array_equal(pair.real, real) for real in fitted.base.of(pair.label).values.numpy())


def test_the_page_shows_features_and_prints_the_error(with_features, fitted):
    page = (with_features / "report.html").read_text()
    for name in (
        "tsne",
        "signals-0",
        "signals-1",
        "inversion",
        "confusion",
        "differences",
        "sessions",
        "cost",
    ):
        assert f'id="figure-bci2a-{name}"' in page
        for ending in ("png", "pdf", "svg"):
            assert (with_features / "figures" / f"bci2a-{name}.{ending}").stat().st_size > 1000
    perplexity = re.search(r"perplexity (\d+), 1000 iterations", page)
    assert perplexity and int(perplexity[1]) <= 30, "fewer than 91 points allow less than the paper's 30"
    svg = (with_features / "figures" / "bci2a-signals-0.svg").read_text()
    errors = [pair.error for pair in inverted_pairs(fitted)]
    assert f"feature MAE {errors[0]:.3f} (paper: 0.06–0.08)" in svg
    assert f"feature MAE {errors[1]:.3f}, the paper reports 0.06–0.08" in page


def test_a_damaged_model_is_said_in_place_of_its_figures(ran, tmp_path, undrawn):
    copy = shutil.copytree(ran, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    for path in (copy / "bases").glob("base-*"):
        path.write_bytes(path.read_bytes()[:-20])
    page = make_report([copy], tmp_path / "report").read_text()
    assert page.count("needs intact files") == 3 and "Macro-F1 (all classes)" in page


def test_recordings_are_asked_for(ran):
    (run,) = gather([ran])
    real = run.study.variants[""].model_copy(update={"synthetic": None})
    run.study.variants[""] = real
    with pytest.raises(Unavailable, match="--data bci2a=FOLDER"):
        fitted_run(run, "", {})


def test_points_are_arranged_as_in_the_paper():
    values = np.random.default_rng(0).normal(size=(100, 5))
    points, perplexity = tsne_embedding(np.concatenate([values, values[:3]]))
    assert perplexity == PERPLEXITY == 30 and ITERATIONS == 1000
    assert np.array_equal(points[:3], points[-3:]), "what lies at one place is one point"
    with pytest.raises(Unavailable, match="too few"):
        tsne_embedding(values[:6])


def test_long_traces_keep_their_peaks():
    x = np.arange(5000.0)
    y = np.sin(x / 7) + (x == 1234) * 9 - (x == 4321) * 9
    short_x, short_y = downsample(x, y)
    assert len(short_x) <= 2 * _DRAWN and {1234.0, 4321.0} <= set(short_x)
    assert (np.diff(short_x) > 0).all() and np.array_equal(short_y, y[short_x.astype(int)])


def test_signals_of_people_come_with_a_warning(fitted, tmp_path):
    from dataclasses import replace

    from anchorinv.report.feature_figures import signals_figure

    real = replace(fitted, experiment=fitted.experiment.model_copy(update={"synthetic": None}))
    figure = signals_figure("x", real, inverted_pairs(fitted)[0], "class 0")
    assert re.search(r"shows a person's recording", figure.caption)

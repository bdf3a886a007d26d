"""Equal settings have equal names; whatever makes a difference makes another name."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from anchorinv.core import catalogue
from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine, Mlp
from anchorinv.core.recipe import Foundation
from anchorinv.core.schedule import OneCycle
from anchorinv.core.training import Training
from anchorinv.study.identity import described, digest
from tests.core.small import SMALL, foundation


def test_settings_made_twice_are_the_same() -> None:
    assert digest(foundation()) == digest(foundation())
    assert digest(catalogue.anchorinv(foundation())) == digest(catalogue.anchorinv(foundation()))


@pytest.mark.parametrize(
    "other",
    [
        replace(foundation(), head=Mlp.start),
        replace(foundation(), training=Training(epochs=4, batch_size=8, lr=1e-3)),
        replace(foundation(), backbone=partial(Conformer, replace(SMALL, depth=3))),
        catalogue.nc_fscil(foundation(), n_all=4).foundation,
        catalogue.finetune(foundation()).foundation,
    ],
)
def test_every_difference_counts(other: Foundation) -> None:
    assert digest(other) != digest(foundation())


def test_arrays_count_by_shape_kind_and_value() -> None:
    names = [
        digest(torch.zeros(4)),
        digest(torch.zeros(2, 2)),
        digest(torch.zeros(4, dtype=torch.int32)),
        digest(torch.ones(4)),
        digest(torch.zeros(4), 1),
        digest(1, torch.zeros(4)),
    ]
    assert len(set(names)) == len(names)
    assert digest(np.zeros(4, dtype=np.float32)) == names[0]
    strided = torch.arange(8.0).reshape(4, 2).T
    assert digest(strided) == digest(strided.contiguous())


def test_a_functions_name_is_its_home() -> None:
    assert described(Cosine.start) == "anchorinv.core.heads.Cosine.start"


@pytest.mark.parametrize("nameless", [lambda: None, object()])
def test_what_has_no_name_is_refused(nameless: object) -> None:
    with pytest.raises(TypeError, match="name of its own"):
        described(nameless)


def test_a_setting_that_came_later_is_told_when_it_is_on() -> None:
    # The name of the paper's training before schedules were there: base models made then are found again.
    assert digest(Training()) == "36367ad2bcce75fdf4b7c73e"
    later = [{"schedule": OneCycle()}, {"patience": 3}, {"gain": 0.1}]
    assert len({digest(replace(Training(), **each)) for each in ({}, *later)}) == 4

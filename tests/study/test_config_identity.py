"""Equal settings have equal names; whatever makes a difference makes another name."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from anchorinv.core import catalogue
from anchorinv.core.conformer import Conformer
from anchorinv.core.heads import Cosine, Mlp
from anchorinv.core.minimise import OneCycle
from anchorinv.core.recipe import BaseSpec
from anchorinv.core.registry import METHODS
from anchorinv.core.training import Training
from anchorinv.study.config import FORMER_DOTTED_NAMES, described, digest
from tests.core.small import SMALL, base_spec


def test_settings_made_twice_are_the_same() -> None:
    assert digest(base_spec()) == digest(base_spec())
    assert digest(catalogue.anchorinv(base_spec())) == digest(catalogue.anchorinv(base_spec()))


@pytest.mark.parametrize(
    "other",
    [
        replace(base_spec(), head=Mlp.start),
        replace(base_spec(), training=Training(epochs=4, batch_size=8, lr=1e-3)),
        replace(base_spec(), backbone=partial(Conformer, replace(SMALL, depth=3))),
        catalogue.nc_fscil(base_spec(), n_all=4).base_spec,
        catalogue.finetune(base_spec()).base_spec,
    ],
)
def test_every_difference_counts(other: BaseSpec) -> None:
    assert digest(other) != digest(base_spec())


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


@pytest.mark.parametrize(
    ("name", "base", "with_memory"),
    [
        ("anchorinv", "61fd3309fe01f2cbb597ecd2", "e0a56b2ef9d5840704319f43"),
        ("deepinv", "61fd3309fe01f2cbb597ecd2", "5d30e39ef16209df80916901"),
        ("finetune", "e487c78a356280d771098936", "0b6c8c9beb160654b1dad4df"),
        ("mdm", "728629602dd907969ae3286c", "9c7587c8dfeee31554c9e6f2"),
    ],
)
def test_base_models_of_former_versions_are_found(name: str, base: str, with_memory: str) -> None:
    # Who renames or moves a class adds its former dotted name to FORMER_DOTTED_NAMES, and these stay.
    method = METHODS[name].make(base_spec(), {"network": "never"})  # the only choice that there was
    assert digest(method.base_spec) == base
    assert digest(method.base_spec, method.memory) == with_memory


def test_base_models_that_are_computed_otherwise_now_are_not_found() -> None:
    # Before densities were Student's t and windows were held out to measure confidence.
    method = METHODS["discriminant"].make(base_spec(), {"network": "never"})
    assert digest(method.base_spec) != "375ffca2347457f6b3dd8633"


def test_a_class_that_was_renamed_is_hashed_by_its_former_name(monkeypatch: pytest.MonkeyPatch) -> None:
    present, former = "anchorinv.core.training.Training", "anchorinv.core.minimise.Plan"
    monkeypatch.setitem(FORMER_DOTTED_NAMES, present, former)
    assert described(Training())["type"] == former

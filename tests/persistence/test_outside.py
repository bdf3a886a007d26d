"""A method, a head and a memory from elsewhere go into a model file and come out, held to what they say."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from anchorinv import AnchorInvClassifier
from anchorinv.core.heads import HEADS, HeadFacts, PrototypeHead, Scale, without_row
from anchorinv.core.memory import Memory, without_class
from anchorinv.core.networks import encode
from anchorinv.core.prototypes import mean_of_shots
from anchorinv.core.recipe import Recipe
from anchorinv.core.registry import METHODS, MethodSpec
from anchorinv.core.training import NoAdaptation
from anchorinv.core.types import Batch, concat
from anchorinv.persistence.bundle import load_bundle, read_facts, save_bundle
from anchorinv.persistence.format import assemble, read_container
from anchorinv.persistence.manifest import manifest, manifest_lines
from tests.models import fitted, windows


class Manhattan(PrototypeHead):
    """Minus the sum of absolute differences from the prototypes."""

    kind, parts = "manhattan", ("fixed",)

    class Facts(HeadFacts):
        """The scale."""

        scale: Scale

    def __init__(self, prototypes, *, scale=1.0):
        super().__init__(prototypes[:0].clone(), prototypes, scale=scale)

    def forward(self, features):
        return -self.scale * torch.cdist(features, self.prototypes, p=1)

    def with_prototypes(self, prototypes):
        return Manhattan(prototypes.detach().clone(), scale=self.scale)

    def without(self, column, anchors=None):
        return self.with_prototypes(without_row(self.prototypes, column))

    @classmethod
    def n_values(cls, dim, n_classes, n_anchors):
        return n_classes * dim


@dataclass(frozen=True, slots=True)
class FirstSamples(Memory):
    """Keep the features of the first two samples of each class."""

    stores = ("anchors",)
    keeps = "features of real samples"

    def keep(self, state, train, latents, *, rng):
        anchors = [latents.of(label)[torch.arange(2)] for label in latents.classes]
        features = [each.with_values(encode(state.tail, each.values)) for each in anchors]
        return replace(state, anchors=concat(state.anchors, *features))

    def n_kept(self, counts):
        return 2 * len(counts)


def manhattan(base_spec):
    def fit(state, features: Batch):
        return Manhattan(state.head.prototypes.detach().clone())

    return Recipe("manhattan", base_spec, mean_of_shots, NoAdaptation(), FirstSamples(), fit)


SPEC = MethodSpec(
    name="manhattan",
    title="Manhattan",
    citation="",
    build=manhattan,
    head="manhattan",
    memory=FirstSamples,
)


@pytest.fixture(autouse=True)
def registered():
    METHODS.register("manhattan", SPEC)
    HEADS.register("manhattan", Manhattan)
    yield
    METHODS.unregister("manhattan")
    HEADS.unregister("manhattan")


@pytest.fixture
def bundle():
    """A model of the method, by the base network of another one."""
    ours = fitted("protonet", taught=False)
    recipe = METHODS["manhattan"].build(ours._recipe(24).base_spec)
    X, y = windows()
    signals = ours.standardisation_(X)
    labels = torch.tensor(np.searchsorted(["left", "right"], y))
    train = Batch(torch.tensor(signals, dtype=torch.float32), labels)
    state = recipe.start(ours.state_, train, rng=torch.Generator())
    return replace(ours.to_bundle(), method="manhattan", state=state)


def test_it_comes_back_as_it_was(bundle, tmp_path):
    save_bundle(tmp_path / "m", bundle)
    again = load_bundle(tmp_path / "m")
    features = torch.randn(5, bundle.state.head.prototypes.shape[1])
    assert isinstance(again.state.head, Manhattan) and again.memory == "features of real samples"
    assert torch.equal(again.state.head(features), bundle.state.head(features))
    assert torch.equal(again.state.anchors.values, bundle.state.anchors.values)


def test_the_manifest_tells_what_it_holds(bundle, tmp_path):
    save_bundle(tmp_path / "m", bundle)
    facts = manifest(*read_facts(tmp_path / "m"))
    assert facts["anchors"] == {"left": 2, "right": 2} and facts["memory"] == "features of real samples"
    assert any("Anchors are feature vectors of real samples" in line for line in manifest_lines(facts))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda facts, tensors: facts["state"]["head"].update(scale=-1.0), "state.head is wrong .*scale is"),
        (lambda facts, tensors: facts["state"]["head"].update(more=1), "state.head is wrong .*more is"),
        (lambda facts, tensors: facts["state"]["head"].update(kind="oracle"), "there is no head 'oracle'"),
        (
            lambda facts, tensors: facts["state"]["head"].update(kind=3),
            "there is no head 3; known are ",
        ),
        (lambda facts, tensors: facts["state"]["head"].update(kind="mlp"), "state.head is wrong"),
        (lambda facts, tensors: facts["state"]["head"].pop("kind"), "there is no head None"),
        (
            lambda facts, tensors: tensors.update({"head.fixed": tensors["head.fixed"][:1].clone()}),
            "the head does not fit 2 classes",
        ),
        (
            lambda facts, tensors: tensors.update({"head.fixed": torch.zeros(2)}),
            "do not fit this network|the head does not fit",
        ),
        (
            lambda facts, tensors: tensors.update({"anchors.labels": torch.zeros(4, dtype=torch.int64)}),
            "anchors of class 1 are missing",
        ),
    ],
)
def test_damage_is_told_in_a_sentence(bundle, change, words, tmp_path):
    save_bundle(tmp_path / "m", bundle)
    _, header, payload = read_container(tmp_path / "m")
    facts, tensors = json.loads(header), load(payload)
    change(facts, tensors)
    (tmp_path / "m").write_bytes(assemble(json.dumps(facts).encode(), save(tensors)))
    with pytest.raises(ValueError, match=words):
        load_bundle(tmp_path / "m")


def test_without_the_package_that_brought_it_the_file_is_refused_by_name(bundle, tmp_path):
    save_bundle(tmp_path / "m", bundle)
    METHODS.unregister("manhattan")
    try:
        with pytest.raises(ValueError, match=r"its method 'manhattan' is unknown; known are"):
            AnchorInvClassifier.load(tmp_path / "m")
    finally:
        METHODS.register("manhattan", SPEC)


def test_it_forgets(bundle):
    grown = replace(
        bundle.state,
        classes=(*bundle.state.classes, 7),
        head=bundle.state.head.with_prototypes(
            torch.cat([bundle.state.head.prototypes, torch.ones_like(bundle.state.head.prototypes[:1])])
        ),
    )
    assert torch.equal(without_class(grown, 7).head.prototypes, bundle.state.head.prototypes)

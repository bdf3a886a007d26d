"""Backbones through the estimator, its files, ``train`` and studies: braindecode's, one's own, factories."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.base import clone
from torch import Tensor, nn

from anchorinv import AnchorInvClassifier, Backbone, Geometry
from anchorinv.backbones import architecture_for, as_backbone, braindecode_models
from anchorinv.core.cut import BackboneError
from anchorinv.core.networks import encode
from anchorinv.core.registry import METHODS
from anchorinv.errors import MissingExtra
from anchorinv.persistence import limits
from anchorinv.persistence.bundle import read_facts
from anchorinv.persistence.limits import check_geometry
from anchorinv.study.config import Experiment, digest
from anchorinv.study.loading import base_spec_of, methods_of

# Of braindecode's models: smaller kernels for short windows; of torch: how their convolutions are padded.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:n_times \(\d+\) is smaller", "ignore:Using padding='same'", "ignore:Parameter 'final_layer"
)

SHAPE = (4, 160)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, *SHAPE)).astype(np.float32)
y = np.repeat(["fist", "open", "point", "rest"], 10)
X += (np.searchsorted(np.unique(y), y)[:, None, None] == np.arange(4)[:, None]) * RNG.standard_normal(X.shape)
BASE, NEW = y != "rest", y == "rest"
SHORT = {
    "epochs": 1,
    "n_anchors": 3,
    "inversion_steps": 2,
    "finetune_steps": 2,
    "random_state": 0,
    "sfreq": 100.0,
}


class Small(nn.Module):
    """Somebody's own network, with a normalisation within what is finetuned."""

    def __init__(self, n_chans: int, n_times: int, n_classes: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(n_chans, 6, 9, stride=4), nn.BatchNorm1d(6), nn.ELU())
        self.second = nn.Sequential(nn.Conv1d(6, 5, 5), nn.BatchNorm1d(5), nn.ELU(), nn.AdaptiveAvgPool1d(6))
        self.classify = nn.Linear(30, n_classes)

    def forward(self, signals: Tensor) -> Tensor:
        return self.classify(self.second(self.first(signals)).flatten(1))


def made_for(backbone: Backbone, n_classes: int, sfreq: float | None = None) -> object:
    return architecture_for(backbone, Geometry.for_shape(*SHAPE), n_classes, sfreq)


def taught(backbone: object, method: str = "anchorinv", **settings: object) -> AnchorInvClassifier:
    model = AnchorInvClassifier(backbone=backbone, method=method, **SHORT | settings)
    return model.fit(X[BASE], y[BASE]).partial_fit(X[NEW][:5], y[NEW][:5])


@pytest.mark.parametrize("name", ["eegnet", "shallow", "atcnet", "eegconformer", "EEGNeX"])
def test_models_of_braindecode_learn_invert_and_are_kept(name, tmp_path):
    model = taught(name)
    assert model.classes_.tolist() == ["fist", "open", "point", "rest"]
    assert model.state_.signals.values.shape[1:] == SHAPE  # inverted
    model.save(tmp_path / "m")
    again = AnchorInvClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    header, _ = read_facts(tmp_path / "m")
    assert header.backbone.kind == "braindecode" and header.backbone.version
    again.add_shots(X[NEW][5:], y[NEW][5:])
    again.partial_fit(-X[NEW][5:], ["other"] * 5)
    assert again.predict(X).shape == (40,)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_an_own_network(method, tmp_path):
    spec = METHODS[method]
    settings = {"network": "always"} if "network" in spec.options else {}
    if not spec.network and not settings:
        with pytest.warns(
            UserWarning, match=rf"{method} has no network, so the backbone .*make_small is not used"
        ):
            model = taught(make_small, method)
    else:
        model = taught(make_small, method, **settings)
    assert np.isfinite(model.predict_proba(X)).all()
    model.save(tmp_path / "m", allow_recordings=True)
    given = make_small if spec.network or settings else None
    again = AnchorInvClassifier.load(tmp_path / "m", allow_recordings=True, backbone=given)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def make_small(n_chans: int, n_times: int, n_classes: int) -> nn.Module:
    return Small(n_chans, n_times, n_classes)


def test_an_instance_is_where_training_starts_and_stays_as_it_is():
    torch.manual_seed(1)
    network = Small(*SHAPE, 7)  # made for other classes: its classifier is not used
    before = {name: values.clone() for name, values in network.state_dict().items()}
    model = AnchorInvClassifier(backbone=network, method="protonet", **SHORT, lr=1e-12).fit(X[BASE], y[BASE])
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    learned = model.state_.trunk.state_dict()
    torch.testing.assert_close(learned["network.first.inner.0.weight"], before["first.0.weight"])
    copy = clone(model)
    assert copy.backbone is not network and not hasattr(copy, "state_")
    again = clone(model).fit(X[BASE], y[BASE])
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_the_tail_is_finetuned_and_nothing_else_moves():
    model = AnchorInvClassifier(backbone=make_small, method="anchorinv", **SHORT, finetune_lr=1e-2)
    before = model.fit(X[BASE], y[BASE]).state_
    after = model.partial_fit(X[NEW][:5], y[NEW][:5]).state_
    assert after.trunk is before.trunk
    moved = {
        name.rpartition(".")[2]
        for name, values in after.tail.state_dict().items()
        if not torch.equal(values, before.tail.state_dict()[name])
    }
    assert moved == {"weight", "bias"}  # no running mean, no running variance
    alone = torch.cat([encode(after.tail, part) for part in after.replay.values.split(1)])
    torch.testing.assert_close(alone, encode(after.tail, after.replay.values))


def test_epochs_with_a_single_window_at_the_end():
    # 30 windows in batches of 29: the last one is alone, which a BatchNorm of features cannot normalise.
    network = nn.Sequential(
        nn.Conv1d(4, 3, 9, stride=8), nn.ReLU(), nn.Conv1d(3, 3, 3), nn.Flatten(), nn.BatchNorm1d(51),
        nn.Linear(51, 3),
    )  # fmt: skip
    model = AnchorInvClassifier(backbone=network, method="protonet", **SHORT, batch_size=29)
    assert np.isfinite(model.fit(X[BASE], y[BASE]).predict_proba(X)).all()


class TestFiles:
    def test_an_own_network_is_named_and_never_brought_along(self, tmp_path, run):
        model = taught(Backbone(make_small, tail="first"))
        model.save(tmp_path / "m")
        assert b"make_small" in (tmp_path / "m").read_bytes()
        words = r"m cannot be used here: its network is tests\.test_backbones\.make_small.*backbone=\.\.\."
        words = words.replace(r"tests\.test_backbones", r"\S*test_backbones")
        with pytest.raises(ValueError, match=words):
            AnchorInvClassifier.load(tmp_path / "m")
        code, _, err = run("info", tmp_path / "m")
        assert code == 1 and "which is not stored in the file" in err and "Traceback" not in err
        # The tail that the file tells is taken, whatever the factory alone would give.
        again = AnchorInvClassifier.load(tmp_path / "m", backbone=make_small)
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        assert again.backbone == Backbone(make_small, tail="first")
        with pytest.raises(BackboneError, match="pass the backbone that it was trained with"):
            AnchorInvClassifier.load(tmp_path / "m", backbone="eegnet")

    def test_without_the_library_there_is_a_remedy(self, tmp_path, monkeypatch):
        taught("eegnet", "protonet").save(tmp_path / "m")
        for name in [name for name in sys.modules if name.partition(".")[0] in ("braindecode", "torchaudio")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr("importlib.import_module", _missing)
        import anchorinv.backbones

        anchorinv.backbones._sizes.cache_clear()
        for load in (AnchorInvClassifier.load, read_facts):
            with pytest.raises(MissingExtra, match=r"is needed.*pip install 'anchorinv\[braindecode\]'"):
                load(tmp_path / "m")

    def test_weights_of_another_version_are_told_so(self, tmp_path):
        model = taught("eegnet", "protonet")
        model.architecture_ = replace(model.architecture_, version="0.9")
        model.save(tmp_path / "m")  # fits: nothing is said
        again = AnchorInvClassifier.load(tmp_path / "m")
        assert again.architecture_.version == "0.9"
        again.architecture_ = replace(again.architecture_, backbone=Backbone("shallow"))
        with pytest.raises(
            ValueError, match=r"written with braindecode 0\.9, here is .*pip install braindecode==0\.9"
        ):
            again.save(tmp_path / "other")

    def test_its_own_network_has_no_such_fact(self, tmp_path):
        model = AnchorInvClassifier(method="protonet", **SHORT).fit(X[BASE], y[BASE])
        model.save(tmp_path / "m")
        assert b'"backbone"' not in (tmp_path / "m").read_bytes()
        with pytest.raises(BackboneError, match="leave backbone out"):
            AnchorInvClassifier.load(tmp_path / "m", backbone=make_small)


def _missing(name: str) -> object:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])


class TestWeights:
    @pytest.fixture
    def file(self, tmp_path):
        torch.manual_seed(3)
        network = Small(*SHAPE, 9)
        save_file(network.state_dict(), tmp_path / "w.safetensors")
        return tmp_path / "w.safetensors", network.state_dict()

    def test_from_a_file_all_but_the_classifier(self, file):
        path, weights = file
        made = made_for(Backbone(make_small, weights=path), 3)()
        torch.testing.assert_close(
            made.trunk.state_dict()["network.first.inner.0.weight"], weights["first.0.weight"]
        )
        torch.testing.assert_close(
            made.tail.state_dict()["network.second.inner.0.bias"], weights["second.0.bias"]
        )

    def test_names_and_shapes_are_held_to(self, file, tmp_path):
        _, weights = file
        changed = {name: values for name, values in weights.items() if name != "first.0.bias"}
        changed |= {"first.0.weight": torch.zeros(2), "third.bias": torch.zeros(1)}
        save_file(changed, tmp_path / "other")
        words = r"other: first\.0\.bias is missing, third\.bias is not in the network, first\.0\.weight has"
        with pytest.raises(BackboneError, match=words + r".*except those of the classifier \(classify\)"):
            made_for(Backbone(make_small, weights=tmp_path / "other"), 3)()
        (tmp_path / "text").write_text("no tensors")
        with pytest.raises(ValueError, match=r"text is not a safetensors file"):
            made_for(Backbone(make_small, weights=tmp_path / "text"), 3)()
        with pytest.raises(FileNotFoundError, match=r"weights file .*none not found"):
            made_for(Backbone(make_small, weights=tmp_path / "none"), 3)()

    def test_of_this_packages_network(self, tmp_path):
        first = AnchorInvClassifier(method="protonet", **SHORT).fit(X[BASE], y[BASE])
        parts = {"trunk": first.state_.trunk, "tail": first.state_.tail}
        weights = {f"{part}.{name}": v for part, m in parts.items() for name, v in m.state_dict().items()}
        save_file(weights, tmp_path / "w")
        backbone = Backbone("conformer", weights=tmp_path / "w")
        second = AnchorInvClassifier(backbone=backbone, method="protonet", lr=1e-12, **SHORT).fit(
            X[BASE], y[BASE]
        )
        torch.testing.assert_close(second.state_.tail.state_dict(), first.state_.tail.state_dict())
        second.save(tmp_path / "m")
        again = AnchorInvClassifier.load(tmp_path / "m")
        np.testing.assert_array_equal(again.predict_proba(X), second.predict_proba(X))


def test_train_takes_a_backbone_and_weights(run, tmp_path):
    np.savez(tmp_path / "base.npz", X=X[BASE], y=y[BASE], sfreq=100.0)
    models = braindecode_models()
    start = models.EEGNet(n_chans=4, n_times=160, n_outputs=5)
    weights = {n: v for n, v in start.state_dict().items() if "final_layer" not in n}
    save_file(weights, tmp_path / "w.safetensors")
    short = ("--epochs", 1, "--seed", 0, "--method", "protonet")
    command = ("train", "base.npz", "-o", "m", *short, "--backbone", "eegnet")
    code, out, _ = run(*command, "--weights", "w.safetensors")
    assert code == 0 and "started from the weights in w.safetensors, all but those of its classifier" in out
    assert AnchorInvClassifier.load(tmp_path / "m").backbone == "EEGNet"
    assert "backbone     EEGNet of braindecode" in run("info", "m")[1]
    assert "Backbone: EEGNet of braindecode" in run("info", "m", "--card")[1]
    code, _, err = run("train", "base.npz", "-o", "m2", *short, "--backbone", "eegnett")
    assert code == 1 and "backbone (='eegnett') must be a name (conformer, atcnet," in err
    code, _, err = run("train", "base.npz", "-o", "m2", *short, "--backbone", "Xyz")
    assert code == 1 and "has no model 'Xyz'; it has ATCNet" in err and not (tmp_path / "m2").exists()
    assert (
        "did you mean 'eegnet'?" in run("train", "base.npz", "-o", "m2", *short, "--backbone", "eegnett")[2]
    )
    assert "did you mean EEGNet" in run("train", "base.npz", "-o", "m2", *short, "--backbone", "EEGNett")[2]


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"backbone": 5}, r"backbone \(=5\) must be a name"),
            ({"backbone": Small}, "pass an instance, or a function that returns one"),
            (
                {"backbone": "eegnet", "geometry": Geometry.for_shape(*SHAPE)},
                "another backbone is given; leave it out",
            ),
            ({"backbone": lambda *sizes: "text", "method": "protonet"}, "the factory returned a str"),
            (
                {"backbone": "DGCNN", "method": "protonet"},
                "backbone DGCNN: it cannot be built for 4 channels",
            ),
        ],
    )
    def test_mistakes(self, settings, words):
        with pytest.raises(ValueError, match=words):
            AnchorInvClassifier(**SHORT | settings).fit(X[BASE][:, :, :20], y[BASE])

    def test_too_large(self, monkeypatch):
        spec = made_for(Backbone(make_small), 3)
        with pytest.raises(ValueError, match="1025 channels are too many"):
            check_geometry(replace(spec, n_chans=1025))
        monkeypatch.setattr(limits, "MOST_BYTES", limits._ROOM + 1000)
        with pytest.raises(ValueError, match=r"bytes of weights are too many.*a smaller backbone"):
            check_geometry(spec)

    def test_one_form(self):
        assert as_backbone(None) is None and as_backbone("conformer") is None
        assert as_backbone("eegnet") == Backbone("eegnet")


def test_a_study_takes_a_backbone_and_former_hashes_stay():
    protocol = {"base_classes": [0, 1], "sessions": [2], "shots": 2, "trials": 1}
    plain = Experiment(protocol=protocol, methods=("protonet",))
    other = plain.model_copy(update={"backbone": "eegnet"})
    geometry = Geometry.for_shape(*SHAPE)
    before = base_spec_of(plain, geometry, (0, 1))
    spec = made_for(Backbone("eegnet"), 2, 100.0)
    made = methods_of(other, base_spec_of(other, spec, (0, 1)))["protonet"].base_spec
    assert digest(made) != digest(before) and digest(made) == digest(base_spec_of(other, spec, (0, 1)))
    assert made.backbone().dim == spec.dim
    with pytest.raises(ValueError, match="'eegnett' must be a name"):
        Experiment(protocol=protocol, methods=("protonet",), backbone="eegnett")

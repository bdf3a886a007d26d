"""Networks on a device: every path on one that is pretended, compared with the CPU bit by bit.

No real GPU was ever asked. What these tests can show is in ``pretend.py``; that they can fail is here, too.
"""

import pickle
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anchorinv import AnchorInvClassifier
from anchorinv.core import networks, training
from anchorinv.core.catalogue import finetune
from anchorinv.core.conformer import Conformer
from anchorinv.core.encoder import Encoder
from anchorinv.core.inversion import Inversion, Prior, invert, roughness, statistics
from anchorinv.core.mahalanobis import FitMahalanobis
from anchorinv.core.minimise import EarlyStopping
from anchorinv.core.networks import CHUNK, choose_device, device_of, encode
from anchorinv.core.prototypes import mean_of_shots, selection
from anchorinv.core.recipe import placed
from anchorinv.core.registry import METHODS
from anchorinv.core.training import CrossValidatedFinetune, Finetune
from anchorinv.core.types import Session, State, stream
from anchorinv.persistence.format import packed
from anchorinv.report.feature_figures import fitted_run
from anchorinv.report.gather import gather
from anchorinv.study.config import digest
from anchorinv.study.execute import run_study
from anchorinv.study.folder import RunFolder
from anchorinv.study.ray_executor import RayExecutor
from tests.core.small import Drawer, anchorinv, base_spec, toy
from tests.models import SETTINGS, windows
from tests.pretend import NAME, PRETENDED, DeviceCount, WrongDevice, pretending
from tests.study.little import lines, little
from tests.test_backbones import Small

SHORT = {**SETTINGS, "epochs": 1, "batch_size": 24, "inversion_steps": 2, "finetune_steps": 2}
LESSON = windows(6, classes=("tongue",), seed=1)
ASKED = windows(CHUNK + 6, classes=("left", "right", "tongue"), seed=5)[0]  # more than a chunk
NETWORKS = {"method": "discriminant", "network": "always"}
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in METHODS},
    "discriminant, with networks": NETWORKS,
}
SMOOTH = (Prior("smoothness", roughness), Prior("statistics", statistics, 0.1))
COMPOSED = {
    "validated and refreshed": replace(
        anchorinv(
            base_spec(), start=mean_of_shots, adapt=CrossValidatedFinetune((0, 2), (1e-3,), 2, refresh=True)
        ),
        refresh=True,
    ),
    "with views, by Adam, in chunks": replace(
        anchorinv(base_spec(), inversion=Inversion(steps=3, chunk=4)),
        fit_head=FitMahalanobis(),
        views=("spectrum", "covariance"),
    ),
    "L-BFGS that stops": anchorinv(
        base_spec(), inversion=Inversion(6, use_lbfgs=True, stop=EarlyStopping(2, tolerance=0.9, patience=1))
    ),
    "with priors": anchorinv(base_spec(), priors=SMOOTH, select=selection("kmeans")),
    "the whole network": finetune(base_spec(), adapt=Finetune((2,), 1e-3), whole_network=True),
}


def taught(**settings: Any) -> AnchorInvClassifier:
    return AnchorInvClassifier(**{**SHORT, **settings}).fit(*windows()).partial_fit(*LESSON)


def same_states(some: State, other: State) -> bool:
    (tensors, facts), (others, other_facts) = packed(some), packed(other)
    equal = tensors.keys() == others.keys() and all(torch.equal(tensors[n], others[n]) for n in tensors)
    return facts == other_facts and equal


def networks_of(state: State) -> list[nn.Module]:
    return [*state.trunk.networks] if isinstance(state.trunk, Encoder) else [state.trunk, state.tail]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_method_learns_the_same_there_and_its_files_load_everywhere(name: str, tmp_path: Path) -> None:
    settings, allow = VARIANTS[name], {"allow_recordings": True}
    here = taught(**settings)
    answers = here.predict_proba(ASKED)
    here.save(tmp_path / "here", with_signals=True, **allow)
    with pretending() as moved:
        there = taught(**settings)
        assert there.device_ == NAME
        networks = [each for each in networks_of(there.state_) if next(each.parameters(), None) is not None]
        assert {device_of(network) for network in networks} <= {PRETENDED}
        assert (
            bool(networks) == bool(moved["there"]) == (METHODS[here.method].network or "network" in settings)
        )
        assert {t.device.type for t in there.state_.head.state_dict().values()} <= {"cpu"}
        np.testing.assert_array_equal(there.predict_proba(ASKED), answers)
        assert same_states(there.state_, here.state_)
        there.save(tmp_path / "there", with_signals=True, **allow)
        brought = AnchorInvClassifier.load(tmp_path / "here", **allow)
        np.testing.assert_array_equal(brought.predict_proba(ASKED), answers)
    back = AnchorInvClassifier.load(tmp_path / "there", **allow)
    assert same_states(back.state_, AnchorInvClassifier.load(tmp_path / "here", **allow).state_)
    assert back.device_ == "cpu"
    np.testing.assert_array_equal(back.predict_proba(ASKED), answers)


class Scaled(Small):
    """With a weight of its own between two blocks of the trunk, which the tail's pass meets, too."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.between, self.scale = nn.Conv1d(6, 6, 3), nn.Parameter(torch.full((6, 1), 0.5))

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return self.classify(self.second(self.between(self.scale * self.first(signals))).flatten(1))


@pytest.mark.parametrize(
    ("method", "kind"), [("anchorinv", Small), ("deepinv", Small), ("anchorinv", Scaled)]
)
def test_a_network_that_was_cut_learns_the_same_there(method: str, kind: type[Small]) -> None:
    settings = {"method": method, "backbone": lambda *sizes: kind(*sizes), "geometry": None}
    here = taught(**settings)
    with pretending():
        there = taught(**settings)
        assert {device_of(network) for network in networks_of(there.state_)} == {PRETENDED}
        assert np.array_equal(there.predict_proba(ASKED), here.predict_proba(ASKED))
        assert same_states(there.state_, here.state_)


@pytest.mark.parametrize("name", COMPOSED)
def test_other_compositions_learn_the_same_there(name: str) -> None:
    recipe, train = COMPOSED[name], toy(4)
    there = replace(recipe, base_spec=replace(recipe.base_spec, device=NAME))

    def learned(method: Any) -> State:
        base = method.fit_base(train.of(0, 1, 2), rng=stream(0))
        return method.learn_session(base, Session(1, train.of(3)), rng=stream(1))

    here = learned(recipe)
    with pretending() as moved:
        assert same_states(learned(there), here) and moved["there"]


def test_the_rest_of_the_estimator_works_there_and_pickles_are_read_here() -> None:
    def asked(model: AnchorInvClassifier) -> list[np.ndarray]:
        model.calibrate(ASKED, force=True)
        model.add_shots(*LESSON).forget_class("left")
        answers = [model.transform(ASKED), model.novelty(ASKED), model.predict_set(ASKED)]
        suggestion = model.suggest_class(ASKED, reject=0.9, least=2)
        return [*answers, model.uncalibrate().predict(ASKED), np.array(str(suggestion))]

    model = taught(**NETWORKS)
    here = asked(copy(model))
    with pretending():
        model_there = taught(**NETWORKS)
        there = asked(copy(model_there))
        pickled = pickle.dumps(model_there)
        assert device_of(networks_of(pickle.loads(pickled).state_)[0]) == PRETENDED
    read = pickle.loads(pickled)  # where there is no such device
    assert read.device_ == "cpu" and same_states(read.state_, model.state_)
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_inversion_by_itself_takes_and_returns_what_is_in_host_memory() -> None:
    state, start = taught(method="anchorinv").state_, torch.tensor(ASKED[:5], dtype=torch.float32)
    network = nn.Sequential(state.trunk, state.tail)
    anchors, plan = encode(network, start.flip(0)), Inversion(3, chunk=4)
    here = invert(network, anchors, start, plan)
    with pretending():
        there = invert(network.to(PRETENDED), anchors, start, plan)
        for one, other in zip(
            (here.signals, here.errors, here.curve), (there.signals, there.errors, there.curve), strict=True
        ):
            assert other.device.type == "cpu" and torch.equal(one, other)


class TestStudy:
    def test_a_trial_is_the_same_there(self, tmp_path: Path) -> None:
        study = little(
            methods=["anchorinv", "deepinv", "discriminant"],
            protocol={"trials": 1, "sessions": [10]},
            finetuning={"steps": {"anchorinv": [2], "deepinv": [2]}},
        )
        run_study(study, tmp_path / "here")
        with pretending() as moved:
            run_study(study, tmp_path / "there", cache=tmp_path / "bases")
            assert moved["there"] > 25
            run_study(study, tmp_path / "again", cache=tmp_path / "bases")
        assert lines(tmp_path / "here") == lines(tmp_path / "there") == lines(tmp_path / "again")
        assert [start["device"] for start in RunFolder(tmp_path / "there").starts()] == [NAME]
        (run,) = gather([tmp_path / "there"])
        fitted = fitted_run(run, next(iter(study.variants)), {}, tmp_path / "bases")
        assert device_of(fitted.state.trunk).type == "cpu" and fitted.replay

    def test_a_folder_that_was_begun_before_devices_were_noted_goes_on(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        study = little(methods=["mdm"], protocol={"trials": 1})
        run_study(study, tmp_path)
        environment = tmp_path / "environment.json"
        environment.write_text(environment.read_text().replace('"device"', '"former"'))
        run_study(study, tmp_path)
        assert not caplog.records

    def test_base_models_of_a_device_have_names_of_their_own(self) -> None:
        spec = base_spec()
        assert digest(replace(spec, device="cpu")) == digest(spec) != digest(replace(spec, device="cuda"))

    def test_workers_have_their_networks_on_the_gpu_that_they_are_given(self) -> None:
        assert RayExecutor(2).choose_device("auto") == "cpu"
        assert RayExecutor(2, gpus=0.5).choose_device("auto") == "cuda"
        assert RayExecutor(2, gpus=0.5).choose_device("cpu") == "cpu"
        with pytest.raises(ValueError, match="--gpus-per-worker"):
            RayExecutor(2).choose_device("cuda")
        with pytest.raises(ValueError, match="pass cuda, not cuda:1"):
            RayExecutor(2, gpus=1).choose_device("cuda:1")


def test_a_training_goes_on_on_another_device() -> None:
    spec, samples = base_spec(patience=2, class_weights=True, batch_size=64), toy(3, 70)
    drawer = Drawer()
    with pretending():
        there = replace(spec, device=NAME)
        whole = there.fit(samples, checkpoint=drawer, rng=stream(0))
    assert all(tensor.device.type == "cpu" for tensor in drawer.kept[0].values())
    assert same_states(spec.fit(samples, checkpoint=Drawer(drawer.kept[0]), rng=stream(0)), whole)
    with pretending():
        taken_up = there.fit(samples, checkpoint=Drawer(drawer.kept[0]), rng=stream(0))
        assert same_states(taken_up, whole)


class TestCounting:
    """Where the work is done: layers of networks on the device alone, all else in host memory alone."""

    LAYERS = ("conv2d", "bmm", "linear", "layer_norm", "batch_norm")
    CLOSED = ("eigh", "svd", "cholesky", "randn", "randperm", "random_", "uniform_")

    def counted(self, learn: Callable[[], Any]) -> DeviceCount:
        with DeviceCount() as count:
            learn()
        return count

    @pytest.mark.parametrize("method", ["anchorinv", "anchorinv-plus", "discriminant"])
    def test_layers_run_on_the_device(self, method: str) -> None:
        network = Conformer(SHORT["geometry"])
        one_window = self.counted(lambda: network(torch.zeros(1, 4, 64))).of(*self.LAYERS)
        with pretending():
            count = self.counted(lambda: taught(method=method, network="always"))
        layers, n_networks = count.of(*self.LAYERS), 3 if method == "discriminant" else 1
        # A window goes through each network before it is moved, to see how many features there are.
        assert layers.pop(("host",)) == n_networks * (one_window.total() - 1)  # the BatchNorm is folded in
        assert layers.keys() == {("device",)} and layers.total() > 100
        closed = count.of(*self.CLOSED)
        assert ("device",) not in closed and ("device", "host") not in closed and closed[("host",)]

    def test_nothing_is_there_without_one(self) -> None:
        count = self.counted(lambda: taught(method="anchorinv"))
        assert {places for _, places in count.calls} == {(), ("host",)}

    def test_windows_go_there_and_back_in_chunks(self) -> None:
        model = taught(method="protonet")
        with pretending() as moved:
            state = placed(model.state_, NAME)
            before = moved.copy()
            encode(nn.Sequential(state.trunk, state.tail), torch.zeros(3 * CHUNK, 4, 64))
            assert moved - before == {"there": 3, "back": 3}
            assert placed(state, NAME) is state


class TestPretendedDevice:
    """It refuses what it is there to refuse."""

    @pytest.mark.parametrize(
        ("mistake", "words"),
        [
            (lambda there: there + torch.ones(2), "in host memory"),
            (lambda there: torch.cat([there, torch.ones(2)]), "in host memory"),
            (lambda there: torch.ones(2)[there.long()], "in host memory"),
            (lambda there: nn.Linear(2, 1)(there), "in host memory"),
            (lambda there: torch.rand(2, device=PRETENDED), "draws on the device"),
            (lambda there: there.uniform_(), "draws on the device"),
            (lambda there: there.double(), "float64 on the device"),
            (lambda there: torch.linalg.eigh(torch.outer(there, there)), "may not know it"),
        ],
    )
    def test_mistakes(self, mistake: Callable[[torch.Tensor], Any], words: str) -> None:
        with pretending(), pytest.raises(WrongDevice, match=words):
            mistake(torch.ones(2).to(PRETENDED))

    def test_it_is_no_array(self) -> None:
        with pretending(), pytest.raises(RuntimeError, match="numpy"):
            torch.ones(2).to(PRETENDED).numpy()

    def test_what_a_gpu_allows(self) -> None:
        with pretending():
            there = torch.arange(4.0).to(PRETENDED)
            there[torch.tensor([0, 2])] += torch.tensor(2.0)
            kept = torch.zeros(4)
            kept[:] = there * 3
        assert kept.tolist() == [6.0, 3.0, 12.0, 9.0]

    def test_a_network_left_behind_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(training, "device_of", lambda network: torch.device("cpu"))
        with pretending(), pytest.raises(WrongDevice):
            taught(method="anchorinv")


class TestChoice:
    @pytest.mark.parametrize(
        ("cuda", "mps", "best"), [(True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
    )
    def test_the_best_there_is(
        self, cuda: bool, mps: bool, best: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        assert choose_device("auto") == best == choose_device(best)
        assert choose_device("cpu") == "cpu" and networks.device_here("xpu") == best
        if cuda:
            assert choose_device("cuda:1") == "cuda:1"
            with pytest.raises(ValueError, match="no device 'cuda:2' here"):
                choose_device("cuda:2")

    def test_one_that_is_not_there_is_said_before_anything_begins(self, tmp_path: Path) -> None:
        sentence = "no device 'cuda' here: torch .* finds cpu; use one of these or auto, or install"
        with pytest.raises(ValueError, match=sentence):
            AnchorInvClassifier(device="cuda").fit(*windows())
        with pytest.raises(ValueError, match=sentence):
            AnchorInvClassifier.load(tmp_path / "none", device="cuda")
        with pytest.raises(ValueError, match=sentence):
            run_study(little(), tmp_path / "run", device="cuda")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("odd", ["gpu", "cuda:-1", 1, None, "CUDA", "mps:0"])
    def test_what_is_no_device(self, odd: Any) -> None:
        with pytest.raises(ValueError, match=r"device \(=.*\) must be auto, cpu, cuda, cuda:NUMBER or mps"):
            AnchorInvClassifier(device=odd).fit(*windows())

    def test_commands_take_one(self, run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
        X, y = windows()
        np.savez(tmp_path / "base.npz", X=X, y=y, sfreq=128.0)
        np.savez(tmp_path / "new.npz", X=LESSON[0], y=LESSON[1], sfreq=128.0)
        cpu, cuda = ("--device", "cpu"), ("--device", "cuda")
        words: dict[str, tuple[object, ...]] = {
            "train": ("base.npz", "-o", "m", "--network", "never", "--seed", 0),
            "learn": ("m", "new.npz", "-o", "taught"),
            "add": ("m", "base.npz", "-o", "more"),
            "calibrate": ("m", "base.npz", "-o", "theirs", "--force"),
            "predict": ("m", "base.npz", "-q"),
            "evaluate": ("m", "base.npz"),
        }
        for command, rest in words.items():
            code, _, err = run(command, *rest, *cuda)
            assert code == 1 and "no device 'cuda' here" in err, command
            assert run(command, *rest, *cpu)[0] == 0, command
        code, _, err = run("run", "demo", *cuda)
        assert code == 1 and "no device 'cuda' here" in err and not (tmp_path / "runs").exists()
        code, _, err = run("run", "demo", "--workers", 2, *cuda)
        assert code == 1 and "workers have no GPU" in err

"""Models as graphs of ONNX: they say in onnxruntime, and without torch, what the model says."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime import InferenceSession
from torch import nn

from anchorinv.core.confidence import SHARES, Confidence, Scores
from anchorinv.core.discriminant import Discriminant
from anchorinv.core.registry import METHODS
from anchorinv.serving.export import (
    DOMAIN,
    INPUT,
    OPSET,
    TOLERANCE,
    ModelGraph,
    PValues,
    difference,
    eigh_function,
    eigh_name,
    export_model,
    graph_facts,
    onnx_graph,
    onnx_of,
)
from tests.models import again, fitted, windows
from tests.test_backbones import Small

EXAMPLES = Path(__file__).parents[2] / "examples" / "onnx"
NOVEL = windows(30, classes=("left", "right", "tongue", "none"), seed=7)[0].astype(np.float32)
#: Whose graphs are made as a whole: two kinds of features, networks with and without views, a projector.
WHOLE = ["discriminant", "protonet", "nc-fscil", "anchorinv-plus", "mdm"]
#: Whose heads are made into one graph; their features come from what the graphs above have.
HEADS = ["finetune", "ridge", "whitened", "fecam", "ranpac", "lda"]


class Several(Small):
    """One activation between all blocks, and modules behind the classifier."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.act, self.end = nn.ELU(), nn.Sequential(nn.Linear(sizes[2], sizes[2]), nn.LogSoftmax(1))

    def forward(self, signals):
        return self.end(
            self.act(self.classify(self.act(self.second(self.act(self.first(signals)))).flatten(1)))
        )


@lru_cache
def rejecting():
    """The default model, which rejects and has been taught."""
    return again(fitted("discriminant")).set_params(reject=0.05)


@lru_cache
def graph_of(method):
    return onnx_graph(rejecting() if method == "discriminant" else fitted(method)).SerializeToString()


def said(model, signals=NOVEL):
    """What the module that is traced says, in torch."""
    with torch.no_grad():
        graph = ModelGraph(model).eval()
        return dict(zip(graph.outputs, (each.numpy() for each in graph(torch.tensor(signals))), strict=True))


def agree(model, signals=NOVEL):
    """Whether the module that is traced says what the estimator says."""
    given, names = said(model, signals), [*model.classes_.tolist(), "unknown"]
    np.testing.assert_allclose(given["probabilities"], model.predict_proba(signals), atol=1e-6)
    assert [names[label] for label in given["label"]] == model.predict(signals).tolist()
    assert ("novelty" in given) == (model.state_.confidence is not None)
    if "novelty" in given:
        np.testing.assert_allclose(given["novelty"], model.novelty(signals), atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestGraph:
    @pytest.mark.parametrize("method", list(METHODS))
    def test_what_is_traced_says_what_the_model_says(self, method):
        agree(fitted(method))

    @pytest.mark.parametrize("method", WHOLE)
    def test_onnxruntime_says_what_the_model_says(self, method):
        model = rejecting() if method == "discriminant" else fitted(method)
        session = InferenceSession(graph_of(method))
        found = difference(model, session, NOVEL)
        assert found.largest < TOLERANCE and found.n_labels == 0
        assert difference(model, session, NOVEL[:1]).largest < TOLERANCE
        assert [each.name for each in session.get_outputs()] == [
            each["name"] for each in graph_facts(model)["outputs"]
        ]

    def test_onnxruntime_has_the_heads_of_all_other_methods(self):
        heads = {method: fitted(method).state_.head for method in HEADS}
        features = {method: torch.from_numpy(fitted(method).transform(NOVEL)) for method in heads}
        for head in heads.values():
            head.prepare()

        class Side(nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = nn.ModuleList(heads.values())

            def forward(self, *given):
                return tuple(head(each) for head, each in zip(self.heads, given, strict=True))

        side, given = Side().eval(), tuple(features.values())
        proto = onnx_of(side, given, outputs=list(heads)).SerializeToString()
        session = InferenceSession(proto)
        names = [each.name for each in session.get_inputs()]
        found = session.run(list(heads), dict(zip(names, (each.numpy() for each in given), strict=True)))
        with torch.no_grad():
            for logits, known in zip(found, side(*given), strict=True):
                wanted = known.softmax(1).numpy()
                np.testing.assert_allclose(torch.tensor(logits).softmax(1), wanted, atol=TOLERANCE)

    def test_no_head_of_the_catalogue_is_left_out(self):
        heads = {METHODS[method].head for method in [*WHOLE, *HEADS]}
        assert heads == {METHODS[method].head for method in METHODS}

    def test_a_graph_has_operators_of_onnx_alone(self):
        graph = onnx.load_from_string(graph_of("discriminant"))
        onnx.checker.check_model(graph)
        assert not graph.functions and {node.domain for node in graph.graph.node} == {""}
        assert {each.version for each in graph.opset_import if not each.domain} == {OPSET}

    def test_rejected_windows_have_no_class(self):
        model = again(rejecting()).set_params(reject=0.5)
        labels = said(model)["label"]
        assert (labels == -1).any() and not (labels == -1).all()
        agree(model)

    def test_a_model_calibrated_for_a_person(self):
        model = again(rejecting()).calibrate(1.5 * windows(24, seed=3)[0], force=True)
        assert model.state_.trunk.shift.abs().max() > 0
        agree(model)

    @pytest.mark.parametrize("label", ["left", "tongue"])
    def test_a_model_that_forgot_a_class(self, label):
        model = again(fitted("discriminant"))
        model.partial_fit(*windows(10, classes=("feet",), seed=2)).forget_class(label)
        agree(model)

    def test_a_gaussian_as_former_versions_had_it(self):
        model = again(fitted("discriminant"))
        head = model.state_.head
        former = Discriminant(
            head.counts,
            head.means,
            head.scatters,
            n_base=head.n_base,
            shrinkage=head.shrinkage,
            student=False,
            scale=head.scale,
        )
        model.state_ = replace(model.state_, head=former)
        agree(model)

    def test_a_model_before_anything_is_taught(self):
        agree(fitted("discriminant", taught=False))

    def test_networks_among_the_blocks(self):
        agree(fitted("discriminant", network="always", epochs=1))

    @pytest.mark.parametrize("backbone", ["eegnet", Several], ids=["of braindecode", "own"])
    def test_networks_that_were_cut(self, backbone):
        given = backbone if isinstance(backbone, str) else lambda *sizes: backbone(*sizes)
        model = fitted("anchorinv", backbone=given, geometry=None, epochs=1)
        found = difference(model, InferenceSession(onnx_graph(model).SerializeToString()), NOVEL)
        assert found.largest < TOLERANCE and found.n_labels == 0

    def test_a_trunk_that_cannot_be_followed_is_named(self):
        class Undecided(nn.Module):
            def forward(self, signals):
                return signals if signals.sum() > 0 else -signals

        model = again(fitted("protonet"))
        model.state_ = replace(model.state_, trunk=nn.Sequential(Undecided(), model.state_.trunk))
        with pytest.raises(ValueError, match=r"^the model's trunk \(Sequential\) cannot be exported to ONNX"):
            onnx_graph(model)

    def test_what_is_missing_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxscript", None)
        with pytest.raises(ValueError, match=r"onnxscript is needed .*-m pip install 'anchorinv\[onnx\]'"):
            onnx_graph(fitted("protonet"))


class TestEigenvalues:
    @staticmethod
    @lru_cache
    def session(size):
        shapes = {"matrices": ["n", size, size], "values": ["n", size], "vectors": ["n", size, size]}
        one, *others = (
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, shape)
            for name, shape in shapes.items()
        )
        node = onnx.helper.make_node(eigh_name(size), ["matrices"], ["values", "vectors"], domain=DOMAIN)
        model = onnx.helper.make_model(
            onnx.helper.make_graph([node], "eigenvalues", [one], others),
            functions=[eigh_function(size, opset=OPSET)],
            opset_imports=[onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, 1)],
            ir_version=10,
        )
        return InferenceSession(model.SerializeToString())

    @settings(max_examples=40)
    @given(
        st.sampled_from([1, 2, 3, 4, 7, 8, 22]),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0.0, 2.0, 6.0, 10.0]),
    )
    def test_logarithms_are_those_of_the_matrices(self, size, seed, decades):
        rng = np.random.default_rng(seed)
        axes = np.linalg.qr(rng.normal(size=(3, size, size)))[0]
        known = 10 ** rng.uniform(-decades, 0, size=(3, size))
        matrices = (axes * known[:, None]) @ axes.swapaxes(1, 2)
        values, vectors = self.session(size).run(None, {"matrices": matrices})
        np.testing.assert_allclose(values, np.linalg.eigvalsh(matrices), atol=1e-13)
        logs, truth = (
            (v * np.log(e)[:, None]) @ v.swapaxes(1, 2) for v, e in ((vectors, values), (axes, known))
        )
        np.testing.assert_allclose(logs, truth, atol=1e-14 * size * 10**decades + 1e-12)

    def test_matrices_that_are_diagonal_or_not_finite(self):
        matrices = np.stack([np.diag([3.0, 1.0, 2.0]), np.eye(3), np.full((3, 3), np.nan)])
        values, _ = self.session(3).run(None, {"matrices": matrices})
        assert values[0].tolist() == [1, 2, 3] and values[1].tolist() == [1, 1, 1]
        assert np.isnan(values[2]).all()


@given(
    st.sampled_from(list(SHARES)),
    st.integers(0, 2**32 - 1),
    st.floats(-1e4, 1e4),  # beyond both ends of the tables
)
def test_p_values_are_those_of_the_confidence(n_statistics, seed, far):
    rng = torch.Generator().manual_seed(seed)
    scores = [[torch.randn(n, generator=rng).exp() for _ in range(n_statistics + 1)] for n in (60, 300)]
    scores[0][0] = scores[0][0].round()  # many are equal, so this table is shorter than the others
    tables = [Scores.stack([Scores.of(each) for each in row]) for row in scores]
    confidence = Confidence(torch.ones(3), *tables, tables[0])
    statistics = 3 * torch.randn(20, n_statistics, generator=rng)
    statistics[0] = far
    taught = torch.rand(20, generator=rng) < 0.5
    found = PValues(confidence)(statistics, taught)
    torch.testing.assert_close(found, confidence.p_values(statistics, taught), rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestFiles:
    @pytest.fixture
    def exported(self, tmp_path, monkeypatch):
        """The default model's graph, written with its description, and windows for the examples."""
        made = onnx.load_from_string(graph_of("discriminant"))
        monkeypatch.setattr("anchorinv.serving.export.onnx_graph", lambda model: made)
        facts = export_model(rejecting(), tmp_path / "model.onnx", check=True, windows=NOVEL)
        NOVEL.astype("<f4").tofile(tmp_path / "windows.f32")
        return tmp_path, facts

    def test_a_description_lies_beside_the_graph(self, exported):
        folder, facts = exported
        described = json.loads((folder / "model.json").read_text())
        assert {**described, "checked": facts["checked"]} == facts
        assert described["classes"] == rejecting().classes_.tolist()
        assert described["reject"] == 0.05 and described["reject_label"] == "unknown"
        assert described["input"] == {"name": INPUT, "shape": ["n", 4, 64], "type": "float32"}
        assert described["sfreq"] == 128 and described["window_seconds"] == 0.5
        assert described["sha256"] == hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()
        assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.onnx", "windows.f32"]

    def test_a_graph_that_says_otherwise_is_not_written(self, tmp_path, monkeypatch):
        made = onnx.load_from_string(graph_of("protonet"))
        monkeypatch.setattr("anchorinv.serving.export.onnx_graph", lambda model: made)
        with pytest.raises(ValueError, match="differs from the model on random windows"):
            export_model(fitted("anchorinv"), tmp_path / "model.onnx", check=True)
        assert not list(tmp_path.iterdir())

    def predicted(self):
        """What lines of the examples should hold."""
        model = rejecting()
        best, novelty = model.predict_proba(NOVEL).max(1), model.novelty(NOVEL)
        return list(zip(model.predict(NOVEL).tolist(), best, novelty, strict=True))

    def compare(self, lines):
        rows = [json.loads(line) for line in lines.splitlines()]
        for row, (label, probability, novelty) in zip(rows, self.predicted(), strict=True):
            assert row["class"] == label
            assert (row["probability"], row["novelty"]) == pytest.approx((probability, novelty), abs=2e-4)

    def test_the_example_in_python_needs_no_torch(self, exported):
        folder, _ = exported
        without = "import sys, runpy; sys.modules['torch'] = sys.modules['anchorinv'] = None; "
        run = without + f"runpy.run_path({str(EXAMPLES / 'predict.py')!r})"
        found = subprocess.run(
            [sys.executable, "-c", run, "model.onnx", "windows.f32"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        self.compare(found.stdout)

    @pytest.mark.skipif(not shutil.which("node"), reason="no node here: the example in JavaScript is not run")
    @pytest.mark.skipif(
        not (EXAMPLES / "node_modules/onnxruntime-web").is_dir(),
        reason="onnxruntime-web is not installed: make javascript",
    )
    def test_the_example_in_javascript(self, exported):
        folder, _ = exported
        found = subprocess.run(
            ["node", str(EXAMPLES / "predict.mjs"), "model.onnx", "windows.f32"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        self.compare(found.stdout)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_checks_and_writes(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    fitted("protonet").save(tmp_path / "model.anchorinv")
    made = onnx.load_from_string(graph_of("protonet"))
    monkeypatch.setattr("anchorinv.serving.export.onnx_graph", lambda model: made)
    np.savez(tmp_path / "windows.npz", X=NOVEL)
    code, out, err = run("export", "model.anchorinv", "model.onnx", "--check", "--data", "windows.npz", "-q")
    assert code == 0, err
    assert "Checked on 32 random windows: probabilities differ by" in out
    assert "Checked on 30 data windows: probabilities differ by" in out
    assert "model.onnx (0." in out and "takes signals (n, 4, 64) and gives probabilities, label" in out
    code, out, err = run("export", "model.anchorinv", "-o", "other.onnx", "-q")
    assert code == 0 and "Graph: other.onnx (0." in out and (tmp_path / "other.onnx").exists(), err
    for words, got in (([], "none"), (["a.onnx", "-o", "b.onnx"], "a.onnx and b.onnx")):
        code, _, err = run("export", "model.anchorinv", *words)
        assert code == 2 and f"one graph to write, after the model or with --out; got {got}" in err
    code, _, err = run("export", "model.anchorinv", "model.anchorinv")
    assert code == 1 and "the name of a graph must end in .onnx, got model.anchorinv" in err


@pytest.mark.parametrize("name", ["predict.py", "predict.mjs"])
def test_the_page_shows_the_examples_that_run(name):
    page = (EXAMPLES.parents[1] / "docs/export.md").read_text(encoding="utf-8")
    assert (EXAMPLES / name).read_text(encoding="utf-8").strip() in page

"""A method, a head, a memory and a feature block from another package, found by its entry points, go through
everything: study, report, model file and command line. No file of this package knows of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anchorinv.datasets import synthetic

OUTSIDE = '''
"""Nearest mean of line lengths, by city-block distance; the first shots of each class are kept."""

from dataclasses import dataclass, replace

import torch

from anchorinv.core.training import NoAdaptation
from anchorinv.core.blocks import Block, register_block
from anchorinv.core.closed_form import state_of
from anchorinv.core.encoder import fit_encoder
from anchorinv.core.heads import StatisticalHead, register_head, without_row
from anchorinv.core.memory import Memory
from anchorinv.core.networks import encode
from anchorinv.core.prototypes import add_statistics
from anchorinv.core.recipe import Recipe
from anchorinv.core.registry import method
from anchorinv.core.types import Batch, columns, concat


@register_block
class LineLength(Block):
    name = "line length"
    citation = "Esteller et al., Line length, IEEE EMBS 2001"

    @property
    def size(self):
        return self.n_chans

    def forward(self, signals):
        return torch.log(signals.diff(dim=2).abs().mean(2) + 1e-3)


@register_head
class CityBlock(StatisticalHead):
    kind, parts = "city-block", ("sums", "counts")

    def __init__(self, sums, counts):
        super().__init__()
        self.register_buffer("sums", sums)
        self.register_buffer("counts", counts)

    @property
    def prototypes(self):
        return self.sums / self.counts[:, None]

    def learned(self, features, targets):
        n_new = max(0, int(targets.max()) + 1 - len(self.counts))
        sums = torch.cat([self.sums, self.sums.new_zeros(n_new, self.sums.shape[1])])
        counts = torch.cat([self.counts, self.counts.new_zeros(n_new)])
        ones = torch.ones_like(targets)
        return CityBlock(sums.index_add(0, targets, features), counts.index_add(0, targets, ones))

    def similarity(self, some, others):
        return -torch.cdist(some, others, p=1)

    def forward(self, features):
        return self.similarity(features, self.prototypes)

    def without(self, column, anchors=None):
        return CityBlock(without_row(self.sums, column), without_row(self.counts, column))

    def fits(self, expected):
        shape = (expected.n_classes, expected.dim)
        return self.sums.shape == shape and self.counts.shape == shape[:1] and bool((self.counts > 0).all())

    @classmethod
    def n_values(cls, dim, n_classes, n_anchors):
        return n_classes * (dim + 1)


@dataclass(frozen=True)
class FirstFeatures(Memory):
    """Keep the features of the first sample of each class."""

    stores = ("anchors",)
    keeps = "features of real samples"

    def keep(self, state, train, latents, *, rng):
        first = [latents.of(label).values[:1] for label in latents.classes]
        kept = Batch(encode(state.tail, torch.cat(first)), torch.tensor(latents.classes))
        return replace(state, anchors=concat(state.anchors, kept))

    def n_kept(self, counts):
        return len(counts)


@dataclass(frozen=True)
class LineLengthBase:
    def backbone(self):
        raise TypeError("there is no network to make")

    def fit(self, samples, *, checkpoint=None, rng):
        signals, classes = samples.values, samples.classes
        encoder = fit_encoder(signals, ("line length",), most_random=0, rng=rng)
        empty = CityBlock(torch.zeros(0, encoder.dim).to(signals), torch.zeros(0, dtype=torch.int64))
        head = empty.learned(encode(encoder, signals), columns(samples.labels, classes))
        return state_of(encoder, head, classes, rng)


@method(
    "line-length",
    title="Line length",
    citation="Esteller et al., 2001",
    head="city-block",
    memory=FirstFeatures,
    network=False,
    holds=("It holds a sum of line lengths for each class.",),
    forgetting="its sum is gone.",
)
def line_length(base_spec):
    return Recipe("line-length", LineLengthBase(), add_statistics, NoAdaptation(), FirstFeatures())
'''
CONFIG = """title = "From outside"
reference = "line-length"
methods = ["line-length", "mdm"]
threads = 1
[data]
name = "synthetic"
kind = "emg"
[synthetic]
n_subjects = 1
n_sessions = 2
n_per_class = 12
[geometry]
n_chans = 4
n_times = 100
kernel = 9
pool = 8
pool_stride = 4
[protocol]
base_classes = [0, 1, 2]
sessions = [3]
shots = 5
trials = 2
seeds = [1]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the other package, as installed: a module and the entry points of its metadata."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "outside.py").write_text(OUTSIDE)
    info = folder / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = [f"[anchorinv.{kind}]\noutside = outside" for kind in ("methods", "heads", "blocks")]
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")
    (folder / "study.toml").write_text(CONFIG)
    data = synthetic.emg(
        n_classes=4, n_subjects=1, n_sessions=1, n_per_class=12, n_chans=4, n_times=100, seed=0
    )
    for name, mask in {"base": data.labels < 3, "new": data.labels == 3}.items():
        np.savez(folder / f"{name}.npz", X=data.signals[mask], y=data.labels[mask])
    return folder


# Commands one after another, each as its script starts it; what each prints is kept apart.
PROGRAM = """
import contextlib, io, json, sys
from anchorinv.cli import main
from anchorinv.report import formats
formats.FORMATS = {"svg": {"Date": None}}  # the page shows no other
shown = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise
    shown.append(output.getvalue())
print(json.dumps(shown))
"""


def anchorinv(folder: Path, *lines: str) -> list[str]:
    paths = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([line.split() for line in lines])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(json.loads(done.stdout))


def test_a_study_its_report_and_a_model_file_by_the_command_line(folder: Path) -> None:
    _, _, _, told, _, predicted, _, *forgotten = anchorinv(
        folder,
        "run study.toml --out run",
        "report run",
        "train base.npz -o m.anchorinv --method line-length --seed 1",
        "info m.anchorinv",
        "learn m.anchorinv new.npz -o taught.anchorinv",
        "predict taught.anchorinv new.npz",
        "add taught.anchorinv base.npz -o more.anchorinv",
        "forget taught.anchorinv 0 -o less.anchorinv",
        "info less.anchorinv",
    )
    lines = [json.loads(line) for line in (folder / "run" / "results.jsonl").read_text().splitlines()]
    assert {line["method"] for line in lines} == {"line-length", "mdm"}
    page = (folder / "run" / "report" / "report.html").read_text()
    assert "Line length" in page and "MDM" in page
    assert "line-length" in told and "It holds a sum of line lengths for each class." in told
    assert "3" in predicted
    assert "its sum is gone." in "".join(forgotten)

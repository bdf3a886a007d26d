"""Small models and recordings for the tests of model files and of the commands on them."""

import os
import shlex
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np

import anchorinv
from anchorinv import AnchorInvClassifier, Geometry

SMALL = Geometry(4, 64, kernel=9, pool=16, pool_stride=8, width=8, heads=2, depth=2, dropout=0.1)
CHANNELS = ("C3", "C4", "Cz", "Pz")
RATE = 128.0
SETTINGS = {
    "geometry": SMALL,
    "epochs": 4,
    "lr": 3e-3,
    "n_anchors": 6,
    "inversion_steps": 3,
    "finetune_steps": 3,
    "random_state": 0,
    "sfreq": RATE,
}


def windows(n=24, *, classes=("left", "right"), seed=0):
    """Windows (n, 4, 64) whose classes are loud on different channels, and their labels."""
    rng = np.random.default_rng(seed)
    y = np.array(classes)[np.arange(n) % len(classes)]
    X = rng.normal(size=(n, 4, 64))
    for label in classes:
        X[y == label, sum(map(ord, str(label))) % 4] *= 3
    return X, y


@lru_cache
def fitted(method="anchorinv", *, taught=True, **changes):
    """A model of two base classes and, if taught, a third one. Shared: tests that change it take `again`."""
    model = AnchorInvClassifier(**{**SETTINGS, "method": method, **changes}).fit(*windows())
    return model.partial_fit(*windows(10, classes=("tongue",), seed=1)) if taught else model


def again(model):
    """The same model, free to learn: states are values, so sharing one is safe."""
    return type(model).from_bundle(model.to_bundle())


def command(*words, cwd, into="cat"):
    """Run the command line of the tree that these tests lie in, as a user does; pipe what it shows."""
    line = shlex.join([sys.executable, "-m", "anchorinv", *map(str, words)])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line} | {into}"],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": str(Path(anchorinv.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

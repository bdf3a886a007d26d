"""The demo: three methods learn new classes from synthetic recordings, over paired trials."""

from dataclasses import dataclass
from functools import partial

import torch

from anchorinv.core.catalogue import anchorinv, finetune, protonet
from anchorinv.core.conformer import Conformer
from anchorinv.core.geometry import Geometry
from anchorinv.core.heads import Cosine
from anchorinv.core.inversion import Inversion
from anchorinv.core.protocol import Protocol
from anchorinv.core.prototypes import mean_of_shots
from anchorinv.core.recipe import Foundation, Recipe
from anchorinv.core.standardise import Standardisation
from anchorinv.core.training import Finetune, Training
from anchorinv.core.types import Batch
from anchorinv.data import synthetic

N_BASE, N_NEW = 5, 3

# Set by looking at the base model's macro-F1 alone, which should lie between 80 and 95.
DIFFICULTY = 1.25


@dataclass(frozen=True, slots=True, eq=False)
class Demo:
    """Everything the demo runs: data, protocol and methods."""

    train: Batch
    test: Batch
    protocol: Protocol
    methods: dict[str, Recipe]


def make_demo(*, quick: bool = False, seed: int = 5) -> Demo:
    """Set the demo up; ``quick`` has a smaller network, fewer epochs and fewer steps of inversion."""
    data = synthetic.emg(
        n_classes=N_BASE + N_NEW,
        n_subjects=2,
        n_sessions=3,
        n_per_class=20,
        n_times=250,
        sfreq=500.0,
        difficulty=DIFFICULTY,
        seed=seed,
    )
    tested = data.sessions == data.sessions.max()
    base = ~tested & (data.labels < N_BASE)
    # Statistics of the base classes' training part alone: the rest is not known yet.
    standardised = torch.from_numpy(Standardisation.of(data.signals[base])(data.signals))
    everything = Batch(standardised, torch.from_numpy(data.labels))
    n_chans, n_times = data.signals.shape[1:]
    # Fewer tokens and blocks than the default: a demo is watched.
    geometry = Geometry(n_chans, n_times, pool=50, pool_stride=10, depth=2 if quick else 4)
    training = Training(epochs=20 if quick else 40, batch_size=64, lr=2e-3)
    foundation = Foundation(partial(Conformer, geometry), Cosine.start, training)
    # As far as the paper's for GRABMyo, 1100 steps at 5e-6, in fewer and larger steps; the same for both.
    plan = Finetune(steps=(28,), lr=2e-4) if quick else Finetune(steps=(110,), lr=5e-5)
    inversion = Inversion(steps=40 if quick else 200, lr=5e-2)
    return Demo(
        everything[torch.from_numpy(~tested)],
        everything[torch.from_numpy(tested)],
        Protocol(tuple(range(N_BASE)), tuple(range(N_BASE, N_BASE + N_NEW)), trials=5, seed=seed),
        {
            "AnchorInv": anchorinv(
                foundation, start=mean_of_shots, adapt=plan, per_class=20, inversion=inversion
            ),
            "ProtoNet": protonet(foundation),
            "Finetune": finetune(foundation, adapt=plan),
        },
    )

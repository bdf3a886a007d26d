"""The methods, each a short composition."""

from dataclasses import replace

from anchorinv.core.heads import Mlp
from anchorinv.core.inversion import Inversion
from anchorinv.core.memory import InvertedAnchors, Nothing
from anchorinv.core.prototypes import Placement, mean_of_shots, new_outputs, random_rows
from anchorinv.core.recipe import Foundation, Recipe
from anchorinv.core.training import Finetune, Stay


def anchorinv(
    foundation: Foundation,
    *,
    start: Placement = random_rows,
    finetune: Finetune = Finetune(steps=(1275,), lr=2e-5),
    n_anchors: int = 50,
    inversion: Inversion = Inversion(),
) -> Recipe:
    """Replay signals inverted from anchors while the last block and the new prototypes learn.

    Defaults are the paper's settings for BCI.
    """
    return Recipe(
        "anchorinv",
        foundation,
        place=start,
        adapt=finetune,
        memory=InvertedAnchors(n_anchors, inversion=inversion),
        citation="Li et al., AnchorInv: Few-Shot Class-Incremental Learning of Physiological Signals via "
        "Feature Space-Guided Inversion",
    )


def protonet(foundation: Foundation) -> Recipe:
    """Place new prototypes at the mean of their shots and leave the network alone."""
    return Recipe(
        "protonet",
        foundation,
        place=mean_of_shots,
        adapt=Stay(),
        memory=Nothing(),
        citation="Snell et al., Prototypical Networks for Few-shot Learning, NeurIPS 2017",
    )


def finetune(foundation: Foundation, *, adapt: Finetune = Finetune(steps=(75,), lr=2e-5)) -> Recipe:
    """Train the last block and an ordinary classifier on the new shots alone.

    The length was published as a range, 0 to 150 steps; the default is its middle.
    """
    return Recipe(
        "finetune",
        replace(foundation, head=Mlp.start),
        place=new_outputs,
        adapt=adapt,
        memory=Nothing(),
        citation="Song et al., EEG Conformer, IEEE TNSRE 2023 (classifier); plain finetuning",
    )

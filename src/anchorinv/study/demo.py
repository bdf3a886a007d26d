"""The demo: three methods of the shipped config ``demo`` learn new classes from synthetic recordings."""

from typing import Any

from anchorinv.study.config import Study
from anchorinv.study.loading import load

METHODS = ("anchorinv", "protonet", "finetune")

# A smaller network, trained and inverted for less time; finetuned as far, in fewer and larger steps.
_QUICK: dict[str, Any] = {
    "geometry": {"depth": 2},
    "training": {"epochs": 20},
    "inversion": {"steps": 40},
    "finetuning": {"lr": 2e-4, "steps": {"anchorinv": [28], "finetune": [28]}},
    "threads": 1,  # so small a network is not worth sharing out
}


def demo_study(*, quick: bool = False) -> Study:
    """Return the demo's study; ``quick`` has a smaller network, fewer epochs and fewer steps."""
    study = load("demo", methods=list(METHODS), **(_QUICK if quick else {}))
    return study.model_copy(update={"title": "Three methods on synthetic recordings (anchorinv demo)"})

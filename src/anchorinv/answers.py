"""What a model answers to signals: logits, if they are numbers."""

from torch import Tensor, nn

from anchorinv.core.networks import mapped
from anchorinv.core.types import State


def logits_of(state: State, signals: Tensor) -> Tensor:
    """Return finite logits (n, n_classes) of standardised signals (n, n_chans, n_times)."""
    return finite(mapped(nn.Sequential(state.trunk, state.tail, state.head), signals))


def finite(logits: Tensor) -> Tensor:
    """Return logits (n, n_classes), if classes can be told apart by them."""
    wrong = int((~logits.isfinite()).any(1).sum())
    if wrong:
        raise ValueError(
            f"the model's outputs for {wrong} of {len(logits)} signals are not finite, so they say nothing: "
            f"its weights are damaged or far too large; use an earlier copy of the model, or train it anew"
        )
    return logits

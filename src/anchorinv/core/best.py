"""The best that a training has been, by samples that it does not learn from."""

import torch
from torch import Tensor, nn

from anchorinv.core.heads import Head
from anchorinv.core.networks import mapped
from anchorinv.core.types import Batch


class Best:
    """Keep the weights that did best on samples kept aside, and say when waiting is over.

    Parameters
    ----------
    network, head : what is trained, in place.
    aside : signals (n, n_chans, n_times), labelled by the head's columns.
    weights : (n_classes,) of the classes in the loss, or None.
    patience : so many looks without a better one are the end.
    """

    def __init__(
        self, network: nn.Module, head: Head, aside: Batch, weights: Tensor | None, patience: int
    ) -> None:
        self._network, self._head, self._aside, self._weights = network, head, aside, weights
        self._patience = patience
        self._tensors = [*network.state_dict().values(), *head.state_dict().values()]  # not copies
        self._kept = [tensor.clone() for tensor in self._tensors]
        self._loss, self._stale = torch.tensor(torch.inf, dtype=torch.float64), torch.tensor(0)

    @property
    def buffers(self) -> list[Tensor]:
        """All that is remembered, as tensors: what is put back into them is remembered again."""
        return [*self._kept, self._loss, self._stale]

    @torch.no_grad()
    def ended(self) -> bool:
        """Look how well the samples are told, keep the weights if better than ever, say whether to end."""
        loss = self.loss()
        if loss < self._loss:
            self._loss.fill_(loss)
            self._stale.zero_()
            for kept, tensor in zip(self._kept, self._tensors, strict=True):
                kept.copy_(tensor)
        else:
            self._stale += 1
        return bool(self._stale >= self._patience)

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss of the samples kept aside, without dropout and by the running statistics."""
        self._network.eval()
        self._head.eval()
        features = mapped(self._network, self._aside.values)
        loss = self._head.loss(features, self._aside.labels, self._weights).item()
        self._network.train()
        self._head.train()
        return loss

    @torch.no_grad()
    def restore(self) -> None:
        """Put the best weights back; at the start they are those that training began with."""
        for kept, tensor in zip(self._kept, self._tensors, strict=True):
            tensor.copy_(kept)

"""Tensors and plain facts in one file (safetensors), with a digest: damage is noticed, nothing is run."""

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anchorinv.files import replacing


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (plain JSON values), whole or not at all."""
    told = json.dumps(facts)
    with replacing(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata={"facts": told, "digest": _digest(tensors, told)})
        except SafetensorError as error:  # its word for whatever the system said
            raise OSError(errno.ENOSPC, str(error)) from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a file; a damaged one is an error that names it."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            # Copies, so that they lie in memory as those that were made here: sums are then the same bits.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        told = about["facts"]
        if about["digest"] != _digest(tensors, told):
            raise ValueError("its content is not what was written")
        return tensors, json.loads(told)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None


def _digest(tensors: Mapping[str, Tensor], told: str) -> str:
    found = hashlib.blake2b(told.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        found.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.view(torch.uint8).numpy().data if tensor.dim() else tensor.numpy().tobytes())
    return found.hexdigest()

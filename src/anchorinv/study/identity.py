"""What something is, in plain values: two descriptions are equal when the things would do the same."""

import hashlib
import json
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch


def described(value: Any) -> Any:
    """Return settings as plain JSON values: data classes by their fields, functions by their names.

    Examples
    --------
    >>> from anchorinv.core.training import Stay
    >>> described(partial(round, ndigits=2))
    {'call': 'builtins.round', 'args': [], 'options': {'ndigits': 2}}
    >>> described(Stay())
    {'type': 'anchorinv.core.training.Stay'}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, partial):
        options = described(dict(sorted(value.keywords.items())))
        return {"call": described(value.func), "args": described(value.args), "options": options}
    if is_dataclass(value) and not isinstance(value, type):
        own = {
            field.name: described(getattr(value, field.name))
            for field in fields(value)
            # A setting that came later is not told while it is off: what was made before stays the same.
            if not ("later" in field.metadata and getattr(value, field.name) == field.default)
        }
        return {"type": described(type(value)), **own}
    name = getattr(value, "__qualname__", None)
    if name is None or "<" in name:
        raise TypeError(
            f"{value!r} cannot be told apart from others of its kind; use a function or a data class with a "
            f"name of its own"
        )
    return f"{value.__module__}.{name}"


def digest(*parts: Any) -> str:
    """Return a short name for settings and arrays, the same wherever they are the same.

    Examples
    --------
    >>> digest({"a": 1}, torch.zeros(2)) == digest({"a": 1}, torch.zeros(2))
    True
    """
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().numpy()
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype.str}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        else:
            found.update(json.dumps(described(part), sort_keys=True).encode())
        found.update(b"\0")
    return found.hexdigest()

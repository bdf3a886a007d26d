"""Networks from elsewhere: models of braindecode, which asks for torchaudio; weights from a user's file."""

import sys
import warnings
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from anchorinv.core.calls import BackboneError, reason_of
from anchorinv.errors import import_extra, listed


def version_here() -> str:
    """Return the version of braindecode, or say that it is missing."""
    try:
        return version("braindecode")
    except PackageNotFoundError:
        import_extra("braindecode", extra="braindecode")
        return "unknown"


def braindecode_models() -> ModuleType:
    """Return ``braindecode.models``, also where torchaudio's compiled part cannot be loaded.

    braindecode imports torchaudio, whose wheel on PyPI is linked against CUDA and fails beside a torch for
    the CPU. Its Python code does without: it looks for the compiled part, and is content if there is none.
    """
    version_here()  # before torchaudio, so that the one that a user knows of is named if both are missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries will change in each other is no affair of a user's
        try:
            import_extra("torchaudio", extra="braindecode")
        except OSError:
            # Imported whole before its package failed; asked to look where nothing is, it says so.
            loader = sys.modules["torchaudio._extension.utils"]
            loader._LIB_DIR = Path(__file__).parent / "no-such-folder"  # type: ignore[attr-defined]
        return import_extra("braindecode.models", extra="braindecode")


def model_of(name: str, n_chans: int, n_times: int, n_classes: int, sfreq: float | None) -> nn.Module:
    """Return a model of braindecode by the name of its class."""
    models = braindecode_models()
    kind = getattr(models, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        known = sorted(n for n, each in vars(models).items() if n[:1].isupper() and isinstance(each, type))
        near = get_close_matches(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {listed(known, most=80)}"
        raise BackboneError(f"braindecode {version_here()} has no model {name!r}; {hint}")
    rate = {} if sfreq is None else {"sfreq": sfreq}
    try:
        with warnings.catch_warnings():
            for changing in (DeprecationWarning, FutureWarning):  # of arguments that nobody gave
                warnings.simplefilter("ignore", changing)
            made: nn.Module = kind(n_chans=n_chans, n_times=n_times, n_outputs=n_classes, **rate)
    except Exception as error:
        hint = "; give sfreq (--sfreq)" if sfreq is None and "sfreq" in str(error) else ""
        raise BackboneError(
            f"it cannot be made for {n_chans} channels of {n_times} samples ({reason_of(error)}){hint}; use "
            f"other windows, or a factory that sets what it needs"
        ) from None
    return made


def load_weights(network: nn.Module, path: Path, classifier: list[str]) -> None:
    """Load weights from a file: each name and shape must be the network's, but those of its classifier."""
    tensors = _read_weights(path)
    own = network.state_dict()
    left_out = tuple(f"{name}." for name in classifier)
    named = {name: each for name, each in tensors.items() if not name.startswith(left_out)}
    wanted = {name: each for name, each in own.items() if not name.startswith(left_out)}
    problems = [f"no {name}" for name in wanted if name not in named]
    problems += [f"{name}, which the network does not have" for name in named if name not in wanted]
    problems += [
        f"{name} of shape {tuple(named[name].shape)} where the network has {tuple(each.shape)}"
        for name, each in wanted.items()
        if name in named and named[name].shape != each.shape
    ]
    if problems:
        whole = f"all weights must fit but those of its classifier ({', '.join(classifier) or 'it has none'})"
        raise BackboneError(f"{path} has {listed(problems, most=5)}; {whole}; make it for this shape")
    network.load_state_dict({**own, **named})


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file of weights {path}") from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is no safetensors file ({reason_of(error)}); write one with "
            f"safetensors.torch.save_file(network.state_dict(), path)"
        ) from None

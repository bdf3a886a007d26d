"""Models of braindecode, also without torchaudio's compiled part, and pretrained weights from a file."""

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
    """Return the installed version of braindecode; raise MissingExtra if there is none."""
    try:
        return version("braindecode")
    except PackageNotFoundError:
        import_extra("braindecode", extra="braindecode")
        return "unknown"


def braindecode_models() -> ModuleType:
    """Return ``braindecode.models``, also where torchaudio's compiled part cannot be loaded.

    braindecode imports torchaudio, whose wheel on PyPI is linked against CUDA and fails to import next to a
    CPU build of torch. torchaudio works without its compiled part if it does not find the file.
    """
    version_here()  # first: if both are missing, the error should name braindecode, not torchaudio
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations between these libraries, which users cannot act on
        try:
            import_extra("torchaudio", extra="braindecode")
        except OSError:
            # This module was imported before the package failed; it looks for the compiled part in _LIB_DIR.
            loader = sys.modules["torchaudio._extension.utils"]
            loader._LIB_DIR = Path(__file__).parent / "no-such-folder"  # type: ignore[attr-defined]
        return import_extra("braindecode.models", extra="braindecode")


def model_of(name: str, n_chans: int, n_times: int, n_classes: int, sfreq: float | None) -> nn.Module:
    """Build a braindecode model by the name of its class."""
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
            for changing in (DeprecationWarning, FutureWarning):  # about default arguments
                warnings.simplefilter("ignore", changing)
            made: nn.Module = kind(n_chans=n_chans, n_times=n_times, n_outputs=n_classes, **rate)
    except Exception as error:
        hint = "; give sfreq (--sfreq)" if sfreq is None and "sfreq" in str(error) else ""
        raise BackboneError(
            f"it cannot be built for {n_chans} channels of {n_times} samples ({reason_of(error)}){hint}; use "
            f"other windows, or a factory that sets the arguments it needs"
        ) from None
    return made


def load_weights(network: nn.Module, path: Path, classifier: list[str]) -> None:
    """Load weights from a file; all names and shapes must match, except those of the classifier."""
    tensors = _read_weights(path)
    own = network.state_dict()
    left_out = tuple(f"{name}." for name in classifier)
    named = {name: each for name, each in tensors.items() if not name.startswith(left_out)}
    wanted = {name: each for name, each in own.items() if not name.startswith(left_out)}
    problems = [f"{name} is missing" for name in wanted if name not in named]
    problems += [f"{name} is not in the network" for name in named if name not in wanted]
    problems += [
        f"{name} has shape {tuple(named[name].shape)}, the network {tuple(each.shape)}"
        for name, each in wanted.items()
        if name in named and named[name].shape != each.shape
    ]
    if problems:
        whole = f"all weights must match except those of the classifier ({', '.join(classifier) or 'none'})"
        raise BackboneError(f"{path}: {listed(problems, most=5)}; {whole}; save them from such a network")
    network.load_state_dict({**own, **named})


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"weights file {path} not found") from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is not a safetensors file ({reason_of(error)}); write one with "
            f"safetensors.torch.save_file(network.state_dict(), path)"
        ) from None

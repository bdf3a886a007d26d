"""Backbones: the network of a model, given by name, as a module or as a factory; pretrained weights."""

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorinv.core.conformer import Conformer
from anchorinv.core.cut import BackboneError, classifier_of, reason_of
from anchorinv.core.networks import Geometry
from anchorinv.core.splitting import SplitNetwork, Tail, split
from anchorinv.errors import import_extra, listed

#: (n_chans, n_times, n_classes) -> a network that takes signals (n, n_chans, n_times).
Factory = Callable[[int, int, int], nn.Module]

#: The network of this package.
OWN = "conformer"
#: Short names of braindecode models; all others go by the name of their class.
NAMES = {
    "atcnet": "ATCNet",
    "ctnet": "CTNet",
    "deep4": "Deep4Net",
    "eegconformer": "EEGConformer",
    "eeginception": "EEGInceptionMI",
    "eegnet": "EEGNet",
    "eegnex": "EEGNeX",
    "eegtcnet": "EEGTCNet",
    "shallow": "ShallowFBCSPNet",
    "tcn": "BDTCN",
}
#: Tails that the rule would start in the middle of parallel branches.
_TAILS = {"ATCNet": "attention_blocks"}
_CLASSIFIER = "final_layer"  # name of the classification layers in braindecode models


@dataclass(frozen=True, slots=True)
class Backbone:
    """A network, the start of its tail and the origin of its weights.

    Parameters
    ----------
    network : str, nn.Module or callable
        ``"conformer"``; a braindecode model by its short name (``"eegnet"``, ``"shallow"``, ``"deep4"``,
        ``"atcnet"``, ``"eegconformer"``, …) or the name of its class; a network, which is copied and
        trained from its weights; or a factory ``(n_chans, n_times, n_classes) -> nn.Module``.
    tail : str or None, default=None
        Submodule at which the tail starts, which is finetuned on new classes; None takes the last block.
    classifier : str or None, default=None
        Submodule whose input is the features; None takes the last layer with weights.
    weights : Path, str or None, default=None
        A safetensors file of pretrained weights, under the names of the network's state dict; complete
        except for the classifier, which is not used.

    Examples
    --------
    >>> layers = [nn.Conv1d(8, 6, 9), nn.ReLU(), nn.Conv1d(6, 4, 9), nn.Flatten(), nn.Linear(4 * 34, 3)]
    >>> Backbone(nn.Sequential(*layers), tail="0").tail
    '0'
    """

    network: str | nn.Module | Factory
    tail: str | None = None
    classifier: str | None = None
    weights: Path | str | None = None

    @property
    def name(self) -> str:
        """Its short name, or the module and name of its class or function."""
        network = self.network
        if isinstance(network, str | NotGiven):
            return network if isinstance(network, str) else network.name
        kind = type(network) if isinstance(network, nn.Module) else network
        home = getattr(kind, "__module__", None) or type(kind).__module__
        return f"{home}.{getattr(kind, '__qualname__', None) or type(kind).__qualname__}"

    @property
    def model(self) -> str | None:
        """The name of its class in braindecode, None for other networks."""
        named = isinstance(self.network, str) and self.network != OWN
        return NAMES.get(self.name.lower(), self.name) if named else None


def as_backbone(network: Any) -> Backbone | None:
    """Convert an estimator's setting to a Backbone; None for the Conformer without pretrained weights."""
    backbone = network if isinstance(network, Backbone) or network is None else Backbone(network)
    plain = backbone is None or (backbone.name == OWN and backbone.weights is None)
    return None if plain else backbone


def problem_of(backbone: Any) -> str | None:
    """Return what is wrong with a backbone setting, as far as it shows without building the network."""
    network = backbone.network if isinstance(backbone, Backbone) else backbone
    expected = f"a name ({', '.join((OWN, *NAMES))}, or a class of braindecode), a network or a factory"
    if isinstance(network, type):
        return f"must be {expected}, not a class; pass an instance, or a function that returns one"
    if not isinstance(network, str):
        valid = network is None or isinstance(network, nn.Module) or callable(network)
        return None if valid else f"must be {expected}"
    if network.lower() in (OWN, *NAMES) or network[:1].isupper():
        return None
    near = get_close_matches(network.lower(), (OWN, *NAMES), n=1)
    return f"must be {expected}" + (f"; did you mean {near[0]!r}?" if near else "")


class Sizes(NamedTuple):
    """Sizes of a backbone, for one window."""

    latent: tuple[int, ...]
    dim: int
    n_weights: int
    n_activations: int
    classifier: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackboneFor:
    """A backbone for a shape of signals and a number of classes: call it to build a network.

    Parameters
    ----------
    backbone, n_chans, n_times, n_classes : Backbone, int, int, int
        The network, and the sizes it is built for.
    sfreq : float or None
        In Hz, for models that need it.
    version : str or None
        Of braindecode, for its models.
    geometry : Geometry or None
        Sizes of the Conformer, if it is the network.
    """

    backbone: Backbone
    n_chans: int
    n_times: int
    n_classes: int
    sfreq: float | None = None
    version: str | None = None
    geometry: Geometry | None = None

    def __call__(self) -> SplitNetwork:
        """Build the network with initial or pretrained weights, split into trunk and tail."""
        shape = (self.n_chans, self.n_times)
        with _named(self.backbone), torch.device("cpu"):
            network = self._network()
            classifier = self.backbone.classifier or _usual_classifier(network)
            if self.backbone.weights is not None:
                load_weights(network, Path(self.backbone.weights), classifier_of(network, shape, classifier))
            tail = self.backbone.tail or _TAILS.get(self.backbone.model or "")
            return split(network, shape, tail=tail, classifier=classifier)

    def _network(self) -> nn.Module:
        source, sizes = self.backbone.network, (self.n_chans, self.n_times, self.n_classes)
        if self.geometry is not None:
            return Conformer(self.geometry)
        if isinstance(source, str):
            return model_of(self.backbone.model or source, *sizes, self.sfreq)
        network = copy.deepcopy(source) if isinstance(source, nn.Module) else source(*sizes)
        if not isinstance(network, nn.Module):
            raise BackboneError(f"the factory returned a {type(network).__name__}, an nn.Module is needed")
        return network

    @property
    def sizes(self) -> Sizes:
        """Its sizes; the network is built once to find them."""
        return _sizes(self)

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.sizes.dim


@lru_cache(maxsize=16)
def _sizes(spec: BackboneFor) -> Sizes:
    with torch.random.fork_rng():
        network = spec()
    n_weights = sum(tensor.numel() for tensor in network.state_dict().values())
    names = network.tail.plan.classifiers if isinstance(network.tail, Tail) else ()
    classifier = tuple(dict.fromkeys(path for path, _ in names))
    return Sizes(network.latent_shape, network.dim, n_weights, network.n_activations, classifier)


def architecture_for(
    backbone: Any, geometry: Geometry, n_classes: int, sfreq: float | None = None
) -> Geometry | BackboneFor:
    """Return what builds the networks: the geometry of the Conformer, or another backbone."""
    if (backbone := as_backbone(backbone)) is None:
        return geometry
    rate, installed = (sfreq, braindecode_version()) if backbone.model else (None, None)
    sizes = geometry if backbone.name == OWN else None
    return BackboneFor(backbone, geometry.n_chans, geometry.n_times, n_classes, rate, installed, sizes)


def _usual_classifier(network: nn.Module) -> str | None:
    """Return braindecode's name for the classifier if the network has such a layer with weights."""
    last = getattr(network, _CLASSIFIER, None)
    has = isinstance(last, nn.Module) and any(p.ndim > 1 for p in last.parameters())
    return _CLASSIFIER if has else None


@contextmanager
def _named(backbone: Backbone) -> Iterator[None]:
    try:
        yield
    except BackboneError as error:
        raise BackboneError(f"backbone {backbone.name}: {error}") from error.__cause__


class MissingBackbone(ValueError):  # noqa: N818
    """A model file names a custom network, which has to be passed to load it."""


@dataclass(frozen=True, slots=True)
class NotGiven:
    """A placeholder for a custom network that a file names."""

    name: str

    def __call__(self, n_chans: int, n_times: int, n_classes: int) -> nn.Module:
        """Raise MissingBackbone."""
        raise MissingBackbone(
            f"its network is {self.name}, which is not stored in the file; load it in Python and pass the "
            f"network or its factory: AnchorInvClassifier.load(path, backbone=...)"
        )


def external_backbone(architecture: Geometry | BackboneFor) -> BackboneFor | None:
    """Return a backbone that a file has to name; None for the Conformer, which its geometry describes."""
    if isinstance(architecture, Geometry) or architecture.geometry is not None:
        return None
    return architecture


def backbone_setting(spec: BackboneFor | None) -> Any:
    """Return the shortest ``backbone=`` setting of an estimator that gives a backbone."""
    if spec is None or isinstance(spec.backbone.network, NotGiven):
        return None
    backbone = spec.backbone
    return backbone.network if backbone == Backbone(backbone.network) else backbone


def braindecode_version() -> str:
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
    braindecode_version()  # first: if both are missing, the error should name braindecode, not torchaudio
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
        known = sorted(n for n, value in vars(models).items() if n[:1].isupper() and isinstance(value, type))
        near = get_close_matches(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {listed(known, most=80)}"
        raise BackboneError(f"braindecode {braindecode_version()} has no model {name!r}; {hint}")
    rate = {} if sfreq is None else {"sfreq": sfreq}
    try:
        with warnings.catch_warnings():
            for changing in (DeprecationWarning, FutureWarning):  # about default arguments
                warnings.simplefilter("ignore", changing)
            model: nn.Module = kind(n_chans=n_chans, n_times=n_times, n_outputs=n_classes, **rate)
    except Exception as error:
        hint = "; give sfreq (--sfreq)" if sfreq is None and "sfreq" in str(error) else ""
        raise BackboneError(
            f"it cannot be built for {n_chans} channels of {n_times} samples ({reason_of(error)}){hint}; use "
            f"other windows, or a factory that sets the arguments it needs"
        ) from None
    return model


def load_weights(network: nn.Module, path: Path, classifier: list[str]) -> None:
    """Load weights from a file; all names and shapes must match, except those of the classifier."""
    tensors = _read_weights(path)
    present = network.state_dict()
    left_out = tuple(f"{name}." for name in classifier)
    loaded = {name: tensor for name, tensor in tensors.items() if not name.startswith(left_out)}
    needed = {name: tensor for name, tensor in present.items() if not name.startswith(left_out)}
    problems = [f"{name} is missing" for name in needed if name not in loaded]
    problems += [f"{name} is not in the network" for name in loaded if name not in needed]
    problems += [
        f"{name} has shape {tuple(loaded[name].shape)}, the network {tuple(tensor.shape)}"
        for name, tensor in needed.items()
        if name in loaded and loaded[name].shape != tensor.shape
    ]
    if problems:
        rule = f"all weights must match except those of the classifier ({', '.join(classifier) or 'none'})"
        raise BackboneError(f"{path}: {listed(problems, most=5)}; {rule}; save them from such a network")
    network.load_state_dict({**present, **loaded})


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

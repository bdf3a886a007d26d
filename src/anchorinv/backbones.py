"""Which network a model is built on: a name, a network of one's own or a factory, and its place in files."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from anchorinv.core.backbone import SplitNetwork, Tail
from anchorinv.core.calls import BackboneError
from anchorinv.core.conformer import Conformer
from anchorinv.core.cut import classifier_of
from anchorinv.core.networks import Geometry
from anchorinv.core.splitting import split
from anchorinv.pretrained import load_weights, model_of, version_here

#: (n_chans, n_times, n_classes) -> a network that takes signals (n, n_chans, n_times).
Factory = Callable[[int, int, int], nn.Module]

#: The network of this package, which needs no library.
OWN = "conformer"
#: Short names of braindecode's models; any other of its models goes by the name of its class.
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
#: Where the rule would begin in the middle of branches that are computed one after the other.
_TAILS = {"ATCNet": "attention_blocks"}
#: What braindecode calls the layers that classify.
_CLASSIFIER = "final_layer"


@dataclass(frozen=True, slots=True)
class Backbone:
    """A network, where its tail begins and where its weights come from.

    Parameters
    ----------
    network : str, nn.Module or callable
        ``"conformer"``; a model of braindecode by its short name (``"eegnet"``, ``"shallow"``, ``"deep4"``,
        ``"atcnet"``, ``"eegconformer"``, …) or the name of its class; a network, of which copies are trained
        from the weights that it has; or a factory ``(n_chans, n_times, n_classes) -> nn.Module``.
    tail : str or None, default=None
        Submodule with which the tail begins, which lessons finetune; None takes the last block.
    classifier : str or None, default=None
        Submodule whose input are the features; None takes the last layer with weights.
    weights : Path, str or None, default=None
        A safetensors file of weights to start from, by the names that the network has for them; all must be
        there but those of the classifier, which is not used.

    Examples
    --------
    >>> from torch import nn
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
        """What it is called: by its short name, or by module and class or function."""
        network = self.network
        if isinstance(network, str | _NotGiven):
            return network if isinstance(network, str) else network.name
        kind = type(network) if isinstance(network, nn.Module) else network
        home = getattr(kind, "__module__", None) or type(kind).__module__
        return f"{home}.{getattr(kind, '__qualname__', None) or type(kind).__qualname__}"

    @property
    def model(self) -> str | None:
        """The class of braindecode, or None where it is none of them."""
        named = isinstance(self.network, str) and self.network != OWN
        return NAMES.get(self.name.lower(), self.name) if named else None


def as_backbone(given: Any) -> Backbone | None:
    """Return what an estimator was given, in one form; None is this package's own network as it is."""
    backbone = given if isinstance(given, Backbone) or given is None else Backbone(given)
    plain = backbone is None or (backbone.name == OWN and backbone.weights is None)
    return None if plain else backbone


def problem_of(given: Any) -> str | None:
    """Say what is wrong with a backbone that was asked for, as far as that can be told without making it."""
    network = given.network if isinstance(given, Backbone) else given
    wanted = f"a name ({', '.join((OWN, *NAMES))}, or a class of braindecode), a network or a factory"
    if isinstance(network, type):
        return f"must be {wanted}, not a class; pass an instance, or a function that makes one"
    if not isinstance(network, str):
        known = network is None or isinstance(network, nn.Module) or callable(network)
        return None if known else f"must be {wanted}"
    if network.lower() in (OWN, *NAMES) or network[:1].isupper():
        return None
    near = get_close_matches(network.lower(), (OWN, *NAMES), n=1)
    return f"must be {wanted}" + (f"; did you mean {near[0]!r}?" if near else "")


class Sizes(NamedTuple):
    """What a backbone amounts to, for one window."""

    latent: tuple[int, ...]
    dim: int
    n_weights: int
    n_activations: int
    classifier: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackboneFor:
    """A backbone for signals of a shape and a number of classes: makes networks, each with its own weights.

    Parameters
    ----------
    backbone, n_chans, n_times, n_classes : Backbone, int, int, int
        What it is, and what it is made for.
    sfreq : float or None
        In Hz, for models that ask for it.
    version : str or None
        Of braindecode, where the model is one of its own.
    geometry : Geometry or None
        Sizes of this package's network, where that is meant.
    """

    backbone: Backbone
    n_chans: int
    n_times: int
    n_classes: int
    sfreq: float | None = None
    version: str | None = None
    geometry: Geometry | None = None

    def __call__(self) -> SplitNetwork:
        """Return an untrained network, or one with the weights to start from, in two parts."""
        shape = (self.n_chans, self.n_times)
        with _named(self.backbone), torch.device("cpu"):
            network = self._whole()
            classifier = self.backbone.classifier or _usual_classifier(network)
            if self.backbone.weights is not None:
                load_weights(network, Path(self.backbone.weights), classifier_of(network, shape, classifier))
            tail = self.backbone.tail or _TAILS.get(self.backbone.model or "")
            return split(network, shape, tail=tail, classifier=classifier)

    def _whole(self) -> nn.Module:
        asked, sizes = self.backbone.network, (self.n_chans, self.n_times, self.n_classes)
        if self.geometry is not None:
            return Conformer(self.geometry)
        if isinstance(asked, str):
            return model_of(self.backbone.model or asked, *sizes, self.sfreq)
        network = copy.deepcopy(asked) if isinstance(asked, nn.Module) else asked(*sizes)
        if not isinstance(network, nn.Module):
            raise BackboneError(f"the factory returned a {type(network).__name__}, an nn.Module is needed")
        return network

    @property
    def sizes(self) -> Sizes:
        """Its sizes; it is made once to know them."""
        return _sizes(self)

    @property
    def dim(self) -> int:
        """Number of its features."""
        return self.sizes.dim


@lru_cache(maxsize=16)
def _sizes(spec: BackboneFor) -> Sizes:
    with torch.random.fork_rng():
        made = spec()
    n_weights = sum(tensor.numel() for tensor in made.state_dict().values())
    names = made.tail.plan.classifiers if isinstance(made.tail, Tail) else ()
    classifier = tuple(dict.fromkeys(path for path, _ in names))
    return Sizes(made.latent_shape, made.dim, n_weights, made.n_activations, classifier)


def architecture_for(
    given: Any, geometry: Geometry, n_classes: int, sfreq: float | None = None
) -> Geometry | BackboneFor:
    """Return what networks are made by: the sizes of this package's own, or another backbone."""
    if (backbone := as_backbone(given)) is None:
        return geometry
    rate, here = (sfreq, version_here()) if backbone.model else (None, None)
    own = geometry if backbone.name == OWN else None
    return BackboneFor(backbone, geometry.n_chans, geometry.n_times, n_classes, rate, here, own)


def _usual_classifier(network: nn.Module) -> str | None:
    """Return braindecode's name for the layers that classify, where such layers have weights."""
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
    """A network of one's own, which a file names and cannot bring along."""


@dataclass(frozen=True, slots=True)
class _NotGiven:
    name: str

    def __call__(self, n_chans: int, n_times: int, n_classes: int) -> nn.Module:
        raise MissingBackbone(
            f"its network is {self.name}, which no file can bring along; load it in Python and pass that "
            f"network or its factory: AnchorInvClassifier.load(path, backbone=...)"
        )


def not_given(name: str) -> Backbone:
    """Return what stands for a network of somebody's own until they pass it: making it is an error."""
    return Backbone(_NotGiven(name))


def elsewhere(architecture: Geometry | BackboneFor) -> BackboneFor | None:
    """Return a backbone that a file has to name; that of this package is known by its sizes."""
    if isinstance(architecture, Geometry) or architecture.geometry is not None:
        return None
    return architecture


def asked_for(spec: BackboneFor | None) -> Any:
    """Return what a user would ask an estimator for to have a backbone, as short as can be."""
    if spec is None or isinstance(spec.backbone.network, _NotGiven):
        return None
    backbone = spec.backbone
    return backbone.network if backbone == Backbone(backbone.network) else backbone

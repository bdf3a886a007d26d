"""Split any network into trunk and tail, or raise an error with the reason and a remedy."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorinv.core.backbone import REMEDY, Made, Plan, Run, SplitNetwork, Tail, Trunk, Unit
from anchorinv.core.calls import (
    FEW,
    MORE,
    BackboneError,
    Call,
    Form,
    Key,
    equal,
    finite,
    gradients,
    leaves_of,
    made_up,
    nested_like,
    reason_of,
    record,
    tensors_of,
)
from anchorinv.core.cut import Cut, below, find_classifier, find_cut, takes_planes

_NO_GRADIENT = (
    "its features have no finite gradient with respect to the signals, which inversion needs; replace "
    "operations without one, such as rounding, comparisons or detach()"
)


def split(
    network: nn.Module, shape: tuple[int, int], *, tail: str | None = None, classifier: str | None = None
) -> SplitNetwork:
    """Split a network into trunk and tail; its features (n, dim) are the input of its classifier.

    A network with submodules ``trunk`` and ``tail`` is used as it is. In others, the classifier is the last
    layer with weights, and the tail starts at the last block before it. Both parts are checked on random
    signals. Weights with ``requires_grad=False`` are never trained.

    Parameters
    ----------
    network : nn.Module
        Takes signals (n, n_chans, n_times) or (n, 1, n_chans, n_times); modified.
    shape : (int, int)
        ``(n_chans, n_times)``.
    tail, classifier : str or None
        Names of the first submodule of the tail and of the classifier, to override the rule.

    Examples
    --------
    >>> blocks = [nn.Conv1d(2, 4, 5), nn.ReLU(), nn.Conv1d(4, 4, 5), nn.ReLU(), nn.Flatten()]
    >>> parts = split(nn.Sequential(*blocks, nn.Linear(16, 3)), (2, 12))
    >>> parts.latent_shape, parts.dim
    ((4, 8), 16)
    """
    with torch.enable_grad(), torch.device("cpu"):
        _prepare(network)
        first, last = getattr(network, "trunk", None), getattr(network, "tail", None)
        if isinstance(first, nn.Module) and isinstance(last, nn.Module):
            parts = SplitNetwork(first, last)
        else:
            parts = _attempted(lambda: _divided(network, shape, tail, classifier))
        return _attempted(lambda: _checked(parts.eval(), shape))


def _attempted(make: Callable[[], SplitNetwork]) -> SplitNetwork:
    """Call a function; turn whatever the network's own code raises into a BackboneError."""
    try:
        return make()
    except BackboneError:
        raise
    except Exception as error:
        raise BackboneError(f"it fails if run in two parts ({reason_of(error)}); {REMEDY}") from error


def _prepare(network: nn.Module) -> None:
    """Set a network to evaluation mode on the CPU, and turn frozen weights into buffers."""
    if any(is_lazy(p) for p in (*network.parameters(), *network.buffers())):
        raise BackboneError("some of its weights have no shape yet (lazy modules); run it on a window first")
    network.eval().cpu().float()
    parameters = list(network.named_parameters())
    if not any(p.requires_grad for _, p in parameters):
        why = "requires_grad is False for all of them" if parameters else "it has none"
        raise BackboneError(f"a backbone needs trainable weights, and {why}; pass a network that has some")
    for name, parameter in parameters:
        if not parameter.requires_grad:
            _as_buffer(network, name, persistent=True)


def _as_buffer(network: nn.Module, path: str, *, persistent: bool) -> None:
    owner, _, name = path.rpartition(".")
    module = network.get_submodule(owner)
    values = module._parameters.pop(name)
    assert values is not None
    module.register_buffer(name, values.detach(), persistent=persistent)


def _divided(
    network: nn.Module, shape: tuple[int, int], tail: str | None, classifier: str | None
) -> SplitNetwork:
    few, more = made_up(FEW, shape), made_up(MORE, shape)
    planes = takes_planes(network, few)
    few_fed, more_fed = (signals.unsqueeze(1) if planes else signals for signals in (few, more))
    found = find_classifier(network, few_fed, classifier)
    cut = find_cut(network, few_fed, found, tail)
    units = {unit.key: unit for unit in cut.units}
    again = {call.key: call for call in below(record(network, more_fed))}
    if missing := [key for key in units if key not in again]:
        raise BackboneError(f"whether it calls {missing[0][0]} depends on the number of windows; {REMEDY}")
    order = tuple(key for key in units if key in cut.classifiers)
    plan = Plan(
        before=frozenset(unit.key for unit in cut.before),
        after=frozenset(unit.key for unit in cut.tail),
        classifiers=order,
        shape=shape,
        planes=planes,
        forms={unit.key: _forms(unit, again[unit.key]) for unit in cut.units},
        inputs={key: Form.of(units[key].given[0], again[key].given[0]) for key in order},
    )
    if any(form.dim is None for form in plan.inputs.values()):
        raise BackboneError(f"the input of its classifier has no batch dimension; {REMEDY}")
    _refuse_shared(network, cut)
    end = _part(network, cut, cut.tail)
    plan = _with_needed(end, plan, units, few)
    parts = SplitNetwork(Trunk(_part(network, cut, cut.before), plan), Tail(end, plan)).eval()
    _give_to_one(parts, network, cut, few)
    with torch.no_grad():
        rows = [plan.inputs[key].by_window(units[key].given[0]).flatten(1) for key in order]
        features = finite(torch.cat(rows, dim=1))
        if not equal(parts(few.detach()), features):
            raise BackboneError(f"its features differ if it is run in two parts; {REMEDY}")
    return parts


def _forms(few: Call, more: Call) -> Made:
    leaves = leaves_of(few.returned)
    pairs = zip(leaves, leaves_of(more.returned), strict=True)
    return nested_like(few.returned, iter([None] * len(leaves))), tuple(
        Form.of(a, b) if isinstance(a, Tensor) else a for a, b in pairs
    )


def _refuse_shared(network: nn.Module, cut: Cut) -> None:
    parts = [cut.before, cut.tail, [unit for unit in cut.units if unit.key in cut.classifiers]]
    seen: dict[int, int] = {}
    for i, units in enumerate(parts):
        for unit in units:
            for parameter in unit.module.parameters():
                if seen.setdefault(id(parameter), i) != i:
                    raise BackboneError(
                        f"weights of {unit.name} are used both before and after the start of the tail, so "
                        f"they cannot be frozen in one part and trained in the other; name another tail: "
                        f"Backbone(network, tail='...')"
                    )


def _part(network: nn.Module, cut: Cut, here: Sequence[Call]) -> nn.Module:
    """Copy the network with the weights of some units only."""
    part, kept = copy.deepcopy(network), {unit.name for unit in here}
    names = dict.fromkeys(unit.name for unit in cut.units)
    modules = {name: part.get_submodule(name) for name in names}
    units = {id(module): Unit(name, module, here=name in kept) for name, module in modules.items()}
    for parent in list(part.modules()):
        if id(parent) in units:
            continue
        for name, child in parent._modules.items():
            if id(child) in units:
                parent._modules[name] = units[id(child)]
    return part


def _with_needed(tail: nn.Module, plan: Plan, units: Mapping[Key, Call], signals: Tensor) -> Plan:
    """Return the plan with the outputs of the trunk that the tail depends on."""
    asked: dict[tuple[Key, int], Tensor] = {}
    for key in plan.before:
        for i, leaf in enumerate(leaves_of(units[key].returned)):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                asked[key, i] = leaf.detach().clone().requires_grad_()
    # Cloned, since the network may change its input in place.
    run = Run(plan, True, len(signals), signals, {place: leaf.clone() for place, leaf in asked.items()})
    Tail(tail, plan).run(run, signals.clone())
    features = torch.cat([run.features[key] for key in plan.classifiers], dim=1)
    of_signals, *slopes = gradients(features.sum(), [signals, *asked.values()])
    order = [unit for unit in units if unit in plan.before]
    needed = {place for place, slope in zip(asked, slopes, strict=True) if slope is not None}
    kept = tuple(sorted(needed, key=lambda place: (order.index(place[0]), place[1])))
    for key, i in kept:
        if plan.forms[key][1][i].dim is None:
            raise BackboneError(f"the output of {key[0]} has no batch dimension; {REMEDY}")
    if not kept and of_signals is None:
        raise BackboneError(_NO_GRADIENT)
    return replace(plan, kept=kept, with_signals=of_signals is not None)


def _give_to_one(parts: SplitNetwork, network: nn.Module, cut: Cut, signals: Tensor) -> None:
    """Assign each weight that is used outside of submodules to the part that needs it."""
    inside = tuple(f"{unit.name}." for unit in cut.units)
    between = [name for name, _ in network.named_parameters() if not name.startswith(inside)]
    latents = parts.trunk(signals)
    features = parts.tail(latents.detach())
    for name in between:
        use = [
            gradients(values.sum(), [part.get_parameter(f"network.{name}")])[0] is not None
            for part, values in ((parts.trunk, latents), (parts.tail, features))
        ]
        if all(use):
            raise BackboneError(
                f"its {name} is used both before and after the start of the tail; name another tail: "
                f"Backbone(network, tail='...')"
            )
        for part, needed in zip((parts.trunk, parts.tail), use, strict=True):
            if not needed:
                _as_buffer(part, f"network.{name}", persistent=False)


def _checked(parts: SplitNetwork, shape: tuple[int, int]) -> SplitNetwork:
    """Check that the parts can be trained, inverted and finetuned, and set their sizes."""
    signals = made_up(FEW, shape)
    if not any(True for _ in parts.tail.parameters()):
        raise BackboneError(f"its tail has no weights to finetune; {REMEDY}")
    with torch.no_grad():
        parts.note_changes(signals)
        latents = parts.trunk(signals)
        features = parts.tail(latents)
        if features.ndim != 2 or len(features) != FEW:
            raise BackboneError(
                f"its features must be (n, dim), but for {FEW} windows they are {tuple(features.shape)}; "
                f"flatten them"
            )
        finite(features)
        others = [parts(signals[:1]), parts.tail(latents.flip(0)).flip(0)[:1]]
        if not all(equal(each, features[:1]) for each in others):
            raise BackboneError(
                "in evaluation mode its features of a window depend on the other windows of the batch, or on "
                "chance; use norms with running statistics, and dropout modules"
            )
    slope = gradients(parts(signals).square().sum(), [signals])[0]
    if slope is None or not slope.isfinite().all() or not slope.any():
        raise BackboneError(_NO_GRADIENT)
    parts.latent_shape, parts.dim = tuple(latents.shape[1:]), features.shape[1]
    made = [t for call in record(parts, signals).smallest() for t in tensors_of(call.returned)]
    parts.n_activations = sum(t.numel() for t in made) // FEW
    return parts

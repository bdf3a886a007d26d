"""Windows with their people and sessions, and shadow models, each trained on half of the windows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anchorinv.core.discriminant import Discriminant
from anchorinv.core.privacy import Privacy, clipped, private_statistics, unknown_generator
from anchorinv.estimator import AnchorInvClassifier
from anchorinv.progress import tick
from anchorinv.serving.attacks import likelihood_ratios, nearness, whitening_of

#: Shadow models, where they cost nothing.
SHADOWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class People:
    """Labelled windows, and whose they are.

    Parameters
    ----------
    signals : ndarray, shape (n, n_chans, n_times)
    labels : ndarray, shape (n,)
    people, sessions : ndarray, shape (n,), or None, default=None
        Who was recorded, and on which day, in which run or trial.

    Examples
    --------
    >>> data = People(np.zeros((3, 2, 50)), np.array([0, 1, 0]), np.array(["a", "a", "b"]))
    >>> len(data.of(data.people == "a"))
    2
    """

    signals: np.ndarray
    labels: np.ndarray
    people: np.ndarray | None = None
    sessions: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "people", "sessions"):
            values = getattr(self, name)
            if values is not None and np.shape(values) != (len(self.signals),):
                raise ValueError(
                    f"{name} have shape {np.shape(values)}, {len(self.signals)} windows need one each"
                )

    def __len__(self) -> int:
        return len(self.signals)

    def of(self, chosen: np.ndarray) -> "People":
        """Return some of them, by a mask or by indices."""
        rest = (None if each is None else each[chosen] for each in (self.people, self.sessions))
        return People(self.signals[chosen], self.labels[chosen], *rest)

    def units(self, *, with_sessions: bool) -> np.ndarray | None:
        """Return to which person, or session of a person, each window belongs (n,); None if nobody knows."""
        if self.people is None or (with_sessions and self.sessions is None):
            return None
        sessions = self.sessions if with_sessions and self.sessions is not None else [""] * len(self)
        return np.array(
            [f"{person}\n{session}" for person, session in zip(self.people, sessions, strict=True)]
        )


def standardised(model: AnchorInvClassifier, data: People) -> Tensor:
    """Return signals (n, n_chans, n_times) as the model takes them."""
    return torch.from_numpy(model.standardisation_(data.signals))


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """Logits of shadow models on all windows.

    Parameters
    ----------
    target : Tensor, shape (n, n_classes)
        Those of the model itself, computed in the same way.
    logits : list of Tensor, shape (n, n_classes)
        Columns follow ``classes_``.
    inside : ndarray of bool, shape (n_shadows, n)
    """

    target: Tensor
    logits: list[Tensor]
    inside: np.ndarray


def shadow_logits(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> Shadowed | None:
    """Return what models say that were trained like this one, each on half of all windows; None for none.

    Those of a discriminant take the features of the model, which is in the attacker's hands, and learn the
    statistics anew. Others are trained from the beginning. ``by_unit`` takes all windows of a name among
    ``data.people``, or none.
    """
    closed = isinstance(model.state_.head, Discriminant)
    n_shadows = (SHADOWS if closed else 0) if n_shadows is None else n_shadows
    if n_shadows < 2:
        return None
    signals = standardised(model, data)
    features = model._features(signals)
    parts, logits = [], []
    for number, half in enumerate(
        half_splits(data.labels, data.people if by_unit else None, n_shadows, seed)
    ):
        tick("shadow models", number, n_shadows)
        parts.append(half)
        logits.append(_statistics(model, features, data, half) if closed
                      else _trained(model, data, half, number))  # fmt: skip
    tick("shadow models", n_shadows, n_shadows)
    with torch.no_grad():
        target = model.state_.head(features)[:, model._columns] if closed else model._logits_of(signals)
    return Shadowed(target, logits, np.stack(parts))


def means_ratios(
    model: AnchorInvClassifier, data: People, n_shadows: int | None, *, by_unit: bool, seed: int
) -> np.ndarray | None:
    """Return the likelihood ratio (n,) of each window's distance to its class mean; None without means.

    A mean of n windows in many dimensions leans towards each of them (Dwork et al., Robust Traceability from
    Trace Amounts, FOCS 2015). The features are those of the model, whatever network makes them, so shadow
    means of half of the windows cost nothing; they are whitened by the covariance of the attacker's windows.
    """
    means, n_shadows = (
        getattr(model.state_.head, "prototypes", None),
        n_shadows if n_shadows == 0 else SHADOWS,
    )
    features = model._features(standardised(model, data))
    if means is None or means.shape[1] != features.shape[1] or not n_shadows:
        return None
    columns = np.array([model._names.tolist().index(label) for label in data.labels.tolist()])
    if isinstance(model.privacy, Privacy):
        features = clipped(features, model.privacy.clip)
    whitening = whitening_of(features.double().numpy(), columns)
    whitened = features.double().numpy() @ whitening
    parts = np.stack([*half_splits(data.labels, data.people if by_unit else None, n_shadows, seed)])
    scores = [
        nearness(whitened, columns, _means_of(model, features, data, half, columns) @ whitening)
        for half in parts
    ]
    target = nearness(whitened, columns, means.detach().double().numpy() @ whitening)
    return likelihood_ratios(target, np.stack(scores), parts)


def _means_of(
    model: AnchorInvClassifier, features: Tensor, data: People, half: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Return class means (n_classes, dim) of half of the windows, with noise if the model's have some."""
    if isinstance(model.privacy, Privacy):
        return _learned(model, features, data, half).means.double().numpy()
    known = torch.from_numpy(columns[half])
    sums = torch.zeros(int(columns.max()) + 1, features.shape[1], dtype=torch.float64)
    sums.index_add_(0, known, features[torch.from_numpy(half)].double())
    return (sums / torch.bincount(known, minlength=len(sums)).clamp(min=1)[:, None]).numpy()


def half_splits(labels: np.ndarray, units: np.ndarray | None, n: int, seed: int) -> Iterator[np.ndarray]:
    """Yield halves of all windows (n,), whole units if they are known, and in pairs: a half and the rest."""
    rng = np.random.default_rng(seed)
    units = np.arange(len(labels)) if units is None else units
    names, half = np.unique(units), np.zeros(len(labels), dtype=bool)
    for number in range(n):
        if number % 2:
            yield ~half
            continue
        for _ in range(50):
            half = np.isin(units, rng.permutation(names)[: len(names) // 2])
            if all(len(np.unique(labels[part])) == len(np.unique(labels)) for part in (half, ~half)):
                break
        else:  # classes of one unit alone: windows are drawn, of each class half
            half = np.zeros(len(labels), dtype=bool)
            for label in np.unique(labels):
                own = rng.permutation(np.flatnonzero(labels == label))
                half[own[: max(1, len(own) // 2)]] = True
        yield half


def _statistics(model: AnchorInvClassifier, features: Tensor, data: People, half: np.ndarray) -> Tensor:
    """Return logits (n, n_classes) of a discriminant that learned half of the windows."""
    with torch.no_grad():
        logits: Tensor = _learned(model, features, data, half)(features)[:, model._columns]
    return logits


def _learned(model: AnchorInvClassifier, features: Tensor, data: People, half: np.ndarray) -> Discriminant:
    """Return a discriminant like the model's that learned half of the windows, with noise of its own."""
    head, names = model.state_.head, model._names.tolist()
    assert isinstance(head, Discriminant)
    chosen = torch.from_numpy(half)
    targets = torch.tensor([names.index(label) for label in data.labels[half].tolist()])
    empty = head._with(head.counts[:0], head.means[:0], head.scatters[:0], head.n_base)
    if not isinstance(model.privacy, Privacy):
        return empty.learned(features[chosen], targets)
    whose = None if data.people is None else _numbers(data.people[half])
    return private_statistics(empty, features[chosen], targets, whose, model.privacy, rng=unknown_generator())


def _numbers(names: np.ndarray) -> Tensor:
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


def _trained(model: AnchorInvClassifier, data: People, half: np.ndarray, number: int) -> Tensor:
    """Return logits (n, n_classes) of a model that was trained on half of the windows."""
    shadow = AnchorInvClassifier(**model.get_params(deep=False) | {"random_state": number, "verbose": False})
    base = half & np.isin(data.labels, model.base_classes_)
    shadow.fit(data.signals[base], data.labels[base])
    for name in model._names.tolist()[len(model.base_classes_) :]:
        new = half & (data.labels == name)
        shadow.partial_fit(data.signals[new], data.labels[new])
    return shadow._logits_of(torch.from_numpy(shadow.standardisation_(data.signals)))

"""Differential privacy of statistics and anchors: the Gaussian mechanism, its accounting, what it covers."""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anchorinv.core.closed_form import ClosedForm, state_of
from anchorinv.core.discriminant import Discriminant, triangle_of
from anchorinv.core.encoder import fit_encoder
from anchorinv.core.heads import class_means, prototype_head
from anchorinv.core.memory import Anchors, LatentSamples, RealSamples
from anchorinv.core.minimise import Checkpoint
from anchorinv.core.networks import encode, frozen
from anchorinv.core.prototypes import mixed_cells
from anchorinv.core.recipe import Recipe
from anchorinv.core.types import Batch, State, columns, concat, stream

#: Windows behind each anchor, where privacy is asked for; with noise, at least.
AGGREGATE = 5
#: Of the within-class covariance towards a sphere: fixed, as one that is chosen by data would tell of them.
SHRINKAGE = 0.1
#: Weight of second moments against sums, in units of 1 / clip²: which of both gets the noise.
_BALANCE = 2.0
#: Windows of white noise that show how long the features of a network are.
_N_WHITE = 64
_WHOSE = "privacy of each person needs to know whose windows are whose; pass groups to fit"


@dataclass(frozen=True, slots=True)
class Privacy:
    """Differential privacy of the statistics that the default method learns from, or of anchors.

    Replacing one window (or all windows of one person) by any others changes the probability of every set of
    statistics, or of anchors and class means, by a factor of exp(epsilon) at most, but for a probability of
    delta. That holds given how features are computed, which the base windows determine without noise: the
    weights of a network are not covered. The number of windows of each class and person is taken as public.
    The noise comes from a generator that the operating system seeds, not from ``random_state``.

    Parameters
    ----------
    epsilon : float
        Above 0; the smaller, the more noise.
    delta : float, default=1e-5
        Between 0 and 1; far below one in the number of windows.
    clip : float, default=2.0
        Longer feature vectors are scaled down to this length; about half of all base windows are. For anchors
        in units of half the length that the network's features of white noise have.
    unit : {"window", "person"}, default="window"
        What is protected: one window, or all windows of a person (``groups`` of ``fit``).
    n_features : int, default=32
        Features of a window, for statistics; the noise on the covariance grows with their number.

    Examples
    --------
    >>> round(Privacy(1.0).noise, 2)
    3.73
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 2.0
    unit: Literal["window", "person"] = "window"
    n_features: int = 32

    def __post_init__(self) -> None:
        if self.unit not in ("window", "person"):
            raise ValueError(f"unit (={self.unit!r}) must be 'window' or 'person'")
        if not (0 < self.epsilon <= 1e3 and 0 < self.delta < 1 and 0 < self.clip <= 1e6):
            raise ValueError(
                f"epsilon (={self.epsilon:g}) must be above 0 and at most 1000, delta (={self.delta:g}) "
                f"between 0 and 1, clip (={self.clip:g}) above 0 and at most 1e6"
            )
        if not (isinstance(self.n_features, int) and 2 <= self.n_features <= 768):
            raise ValueError(f"n_features (={self.n_features!r}) must be a whole number from 2 to 768")

    @property
    def noise(self) -> float:
        """Standard deviation of the noise for a sensitivity of 1."""
        return gaussian_sigma(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g} for each {self.unit}"


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """Return the delta of Gaussian noise at an epsilon, exactly.

    See Balle & Wang, Improving the Gaussian Mechanism for Differential Privacy, ICML 2018, Theorem 8.

    Examples
    --------
    >>> round(gaussian_delta(0.0, 0.5), 6)
    0.682689
    """
    from scipy.stats import norm

    near, far = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    # In logarithms: exp(epsilon) may be far beyond what a float can hold.
    return float(norm.cdf(near - far) - math.exp(min(epsilon + norm.logcdf(-near - far), 0.0)))


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest standard deviation of Gaussian noise that is (epsilon, delta)-private.

    Examples
    --------
    >>> round(gaussian_sigma(1.0, 1e-5), 4)
    3.7306
    """
    low, high = 1e-9, 1.0
    while gaussian_delta(epsilon, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) > delta else (low, middle)
    return high * sensitivity


def clipped(features: Tensor, clip: float) -> Tensor:
    """Return features (n, dim), none of them longer than ``clip``."""
    shorter: Tensor = features * (clip / features.norm(dim=1, keepdim=True).clamp(min=clip))
    return shorter


def sensitivity(
    targets: Tensor, groups: Tensor | None, privacy: Privacy, *, weight: float, moments: bool = True
) -> float:
    """Return how far the sums of each class, and ``weight`` times all second moments, can move in all.

    By another window x it is ‖φ(x) - φ(y)‖ with φ(x) = (x, weight · x xᵀ). As ⟨φ(x), φ(y)⟩ = t + weight² t²
    for t = ⟨x, y⟩, which is -1 / (4 weight²) at the least, its square is at most
    2 clip² + 2 weight² clip⁴ + 1 / (2 weight²). By other windows of a person with m windows, m_c of class
    c, its square is at most 4 clip² Σ m_c² + 2 weight² m² clip⁴, since second moments have no negative
    products.
    """
    clip = privacy.clip
    if privacy.unit == "window":
        both = 2 * clip**2 + 2 * weight**2 * clip**4 + 1 / (2 * weight**2)
        return math.sqrt(both) if moments else 2 * clip
    if groups is None:
        raise ValueError(_WHOSE)
    worst = 0.0
    for person in sorted(set(groups.tolist())):
        counts = torch.bincount(targets[groups == person]).double()
        square = 4 * clip**2 * float(counts.square().sum())
        square += 2 * weight**2 * clip**4 * float(counts.sum()) ** 2 if moments else 0.0
        worst = max(worst, square)
    return math.sqrt(worst)


def private_statistics(
    empty: Discriminant,
    features: Tensor,
    targets: Tensor,
    groups: Tensor | None,
    privacy: Privacy,
    *,
    rng: torch.Generator,
) -> Discriminant:
    """Return a discriminant whose means and pooled scatter are private; counts are as they are.

    The scatter is that of all classes together, shared out by their counts: that of each by itself would
    have as much noise as all together. What follows the noise looks at no window again.

    Parameters
    ----------
    empty : Discriminant
        That knows no class yet.
    features : Tensor, shape (n, dim)
    targets, groups : Tensor, shape (n,)
        Columns of classes, and whose windows they are.
    rng : torch.Generator
        Of the noise: of a seed that nobody knows, see :func:`unknown_generator`.
    """
    weight = math.sqrt(_BALANCE) / privacy.clip
    sigma = privacy.noise * sensitivity(targets, groups, privacy, weight=weight)
    values, counts = clipped(features.double(), privacy.clip), torch.bincount(targets)
    sums, moments = noisy_moments(values, targets, sigma=sigma, weight=weight, rng=rng)
    dim = values.shape[1]
    means = sums / counts[:, None]
    within = moments - means.T @ (counts[:, None] * means)
    within = within + sigma**2 * float((1 / counts).sum()) * torch.eye(dim, dtype=values.dtype)
    levels, vectors = torch.linalg.eigh(within)
    # Below what noise alone reaches on average, directions are told apart by chance.
    floor = max(sigma / weight * math.sqrt(dim / 2), 1e-6 * float(levels.max()), 1e-6)
    within = (vectors * levels.clamp(min=floor)) @ vectors.T
    scatters = (counts / counts.sum())[:, None] * triangle_of(within)
    return empty._with(counts, means.to(features), scatters.to(features), empty.n_base)


def noisy_moments(
    values: Tensor, targets: Tensor, *, sigma: float, weight: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the release: sums of each class (n_classes, dim), and second moments (dim, dim), with noise.

    ``sigma`` is the noise of the sums, and of ``weight`` times the moments, of values (n, dim).
    """
    dim = values.shape[1]
    sums = _noisy_sums(values, targets, sigma, rng)
    noise = sigma / weight * torch.randn(dim, dim, dtype=values.dtype, generator=rng)
    # An entry off the diagonal of a symmetric matrix stands for two, and gets 1/√2 of the noise.
    above = noise.triu(1) / math.sqrt(2)
    return sums, values.T @ values + above + noise.diag().diag() + above.T


def _noisy_sums(values: Tensor, targets: Tensor, sigma: float, rng: torch.Generator) -> Tensor:
    sums = values.new_zeros(int(targets.max()) + 1, values.shape[1]).index_add_(0, targets, values)
    return sums + sigma * torch.randn(sums.shape, dtype=values.dtype, generator=rng)


def unknown_generator() -> torch.Generator:
    """Return a generator that nobody can set up again: what noise hides, its seed would show."""
    return stream(secrets.randbits(63))


@dataclass(frozen=True, slots=True)
class PrivateForm:
    """A base model by private statistics; how features are computed follows from the windows as they are.

    No network is trained, and nothing is chosen by rehearsal.
    """

    form: ClosedForm
    privacy: Privacy

    @property
    def backbone(self) -> Callable[[], nn.Module]:
        """There is no network: making one is an error."""
        return ClosedForm().backbone

    def fit(self, samples: Batch, *, checkpoint: Checkpoint | None = None, rng: torch.Generator) -> State:
        """Return the base model of signals (n, n_chans, n_times)."""
        classes = samples.classes
        _refuse_weights(samples)
        encoder = fit_encoder(
            samples.values,
            self.form.blocks,
            most_features=self.privacy.n_features,
            most_random=0,
            by_block=self.form.by_block,
            rng=rng,
        )
        features, targets = encode(encoder, samples.values), columns(samples.labels, classes)
        empty = Discriminant.empty(
            encoder.dim, n_base=len(classes), shrinkage=SHRINKAGE, prior=self.form.prior
        )
        noisy = private_statistics(
            empty, features, targets, samples.groups, self.privacy, rng=unknown_generator()
        )
        return state_of(encoder, noisy, classes, rng)


@dataclass(frozen=True, slots=True)
class PrivatePlacement:
    """Take new classes in by private means; their scatter is taken to be that of the classes before."""

    privacy: Privacy

    def __call__(self, state: State, shots: Batch) -> Discriminant:
        """Return the head with the new classes."""
        head = state.head
        if not isinstance(head, Discriminant):
            raise TypeError(f"private statistics belong to a Discriminant, not to a {type(head).__name__}")
        _refuse_weights(shots)
        targets = columns(shots.labels, shots.classes)
        counts = torch.bincount(targets)
        # A lesson does not say whose its shots are: they may all be one person's.
        whose = torch.zeros_like(targets)
        sigma = self.privacy.noise * sensitivity(targets, whose, self.privacy, weight=1.0, moments=False)
        values = clipped(shots.values.double(), self.privacy.clip)
        sums = _noisy_sums(values, targets, sigma, unknown_generator())
        scatter = head.scatters.double().sum(0) / head.counts.sum()
        return head._with(
            torch.cat([head.counts, counts]),
            torch.cat([head.means, (sums / counts[:, None]).to(head.means)]),
            torch.cat([head.scatters, (counts[:, None] * scatter).to(head.scatters)]),
            head.n_base,
        )


@dataclass(frozen=True, slots=True)
class NoisyAnchors:
    """Anchors with noise in place of a selection: means of groups that hold every window of a class once.

    Which windows share a group does not depend on what they are. Prototypes become the means of the anchors,
    so that they and whatever is computed from both (covariances, replay) are covered as well.
    """

    privacy: Privacy

    def __call__(self, state: State, samples: Batch, quota: int) -> State:
        """Return the state with at most ``quota`` anchors of each class of features (n, dim)."""
        if state.session > 0:
            # A lesson does not say whose its shots are: they may all be one person's.
            samples = replace(samples, groups=torch.zeros_like(samples.labels))
        anchors = noisy_anchors(
            samples, quota, self.privacy, clip=anchor_clip(state, self.privacy), rng=unknown_generator()
        )
        head, labels = prototype_head(state.head), anchors.classes
        prototypes = head.prototypes.detach().clone()
        prototypes[state.columns(torch.tensor(labels))] = class_means(
            anchors.values, columns(anchors.labels, labels)
        )
        return replace(
            state, anchors=concat(state.anchors, anchors), head=frozen(head.with_prototypes(prototypes))
        )


def noisy_anchors(
    samples: Batch, quota: int, privacy: Privacy, *, clip: float, rng: torch.Generator
) -> Batch:
    """Return private anchors of features (n, dim), at most ``quota`` of each class.

    ``groups`` are people, who share anchors as evenly as can be.
    """
    _refuse_weights(samples)
    exact, sensitivity = grouped_means(samples, quota, privacy, clip=clip, rng=rng)
    noise = torch.randn(exact.values.shape, dtype=exact.values.dtype, generator=rng)
    return exact.with_values((exact.values + privacy.noise * sensitivity * noise).to(samples.values))


def grouped_means(
    samples: Batch, quota: int, privacy: Privacy, *, clip: float, rng: torch.Generator
) -> tuple[Batch, float]:
    """Return means of clipped features (n, dim) in groups, and how far all of them can move in all.

    By another window one mean moves, by 2 clip / size at most. By other windows of a person each mean moves
    by that for each of them in its group.
    """
    if privacy.unit == "person" and samples.groups is None:
        raise ValueError(_WHOSE)
    means, furthest, squares = [], 0.0, dict[int, float]()
    for label in samples.classes:
        own = samples.of(label)
        order, cells = mixed_cells(own, max(AGGREGATE, -(-len(own) // quota)), rng=rng)
        sizes = torch.bincount(cells)
        values = clipped(own.values.double(), clip)[order]
        sums = values.new_zeros(len(sizes), values.shape[1]).index_add_(0, cells, values)
        means.append(Batch(sums / sizes[:, None], torch.full((len(sizes),), label)))
        furthest = max(furthest, 2 * clip / int(sizes.min()))
        if privacy.unit == "person" and own.groups is not None:
            for person in sorted(set(own.groups.tolist())):
                shares = torch.bincount(cells[own.groups[order] == person], minlength=len(sizes)) / sizes
                squares[person] = squares.get(person, 0.0) + 4 * clip**2 * float(shares.square().sum())
    return concat(*means), furthest if privacy.unit == "window" else math.sqrt(max(squares.values()))


def anchor_clip(state: State, privacy: Privacy) -> float:
    """Return the length to which features are clipped for anchors.

    It is relative to features of white noise, so that no recording decides it.
    """
    white = torch.randn(_N_WHITE, *state.shape, generator=stream(0, "white noise"))
    latents = encode(state.trunk, white.to(prototype_head(state.head).prototypes.dtype))
    lengths = encode(state.tail, latents).norm(dim=1)
    return privacy.clip / 2 * float(lengths.median())


class PrivateRecipe(Recipe):
    """A method by private statistics or anchors: each window is looked at once."""

    private: ClassVar[bool] = True

    def add_shots(self, state: State, features: Batch, counts: Sequence[int]) -> State:
        """Refuse: more examples of a known class would need noise of their own, and more epsilon."""
        raise ValueError(
            "a model with differential privacy takes no more examples of a class that it knows; forget the "
            "class and teach it anew with all of them"
        )


def _refuse_weights(samples: Batch) -> None:
    if samples.weights is not None:
        raise ValueError("differential privacy takes each window as one; leave out sample_weight")


def private(recipe: Recipe, privacy: "Privacy | str | None") -> Recipe:
    """Return a method as ``privacy`` wants it: as it is, with anchors of several windows, or with noise.

    A method that cannot be what is asked of it is refused.
    """
    if privacy == "aggregate":
        if isinstance(recipe.memory, RealSamples | LatentSamples):
            raise ValueError(
                f"{recipe.name} keeps single samples of people, and privacy='aggregate' means of {AGGREGATE} "
                f"or more; choose another method, or leave privacy out"
            )
        if isinstance(recipe.memory, Anchors):
            return replace(recipe, memory=replace(recipe.memory, aggregate=AGGREGATE))
    if not isinstance(privacy, Privacy):
        return recipe
    parts = {part.name: getattr(recipe, part.name) for part in fields(recipe)}
    if isinstance(recipe.memory, Anchors):
        return PrivateRecipe(**parts | {"memory": replace(recipe.memory, release=NoisyAnchors(privacy))})
    if not isinstance(recipe.base_spec, ClosedForm):
        raise ValueError(
            f"differential privacy is for statistics (methods discriminant and lda) and for anchors (fecam, "
            f"anchorinv and others): what {recipe.name} keeps would not be covered; choose one of these"
        )
    base, place = PrivateForm(recipe.base_spec, privacy), PrivatePlacement(privacy)
    return PrivateRecipe(**parts | {"base_spec": base, "place": place})


def privacy_from(facts: Any) -> "Privacy | str | None":
    """Return what :func:`privacy_facts` made plain."""
    return Privacy(**facts) if isinstance(facts, dict) else facts


def privacy_facts(privacy: Any) -> Any:
    """Return the setting as plain values."""
    return asdict(privacy) if isinstance(privacy, Privacy) else privacy


def privacy_sentences(privacy: "Privacy | str | None", *, anchors: bool) -> list[str]:
    """Return what a file may say about it: what is covered, and what is not."""
    if privacy is None:
        return []
    if not isinstance(privacy, Privacy):
        sentence = (
            f"Anchors are means of {AGGREGATE} windows or more, of as many people as groups of fit named."
        )
        none = "It keeps no anchors: class statistics are sums over all windows of a class already."
        return [sentence if anchors else none, "This is not differential privacy, and no proof of anonymity."]
    kind = (
        f"differentially private ({privacy}, Gaussian mechanism, features clipped"
        f"{'' if anchors else f' to {privacy.clip:g}'}); where the same {privacy.unit} is in several "
        f"lessons, their epsilons and deltas add up."
    )
    others = (
        "channel statistics that new recordings are checked against; the numbers of windows; a calibration."
    )
    if anchors:
        return [
            f"Given the weights of the network, anchors and class means are {kind} Each anchor is a mean of "
            f"{AGGREGATE} windows or more, with noise.",
            f"Not covered: the weights, which base training and finetuning fit to all windows without noise, "
            f"their losses and scores; mean and deviation of channels and scales of views; {others}",
        ]
    return [
        f"Given how features are computed, class means and the pooled scatter are {kind}",
        f"Not covered: how features are computed (mean and deviation of channels, references and scales of "
        f"feature blocks, principal components), which all base windows determine without noise; {others} "
        f"Classes taught later are covered but for their numbers of windows.",
    ]

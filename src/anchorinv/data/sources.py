"""The model behind the synthetic recordings: sources on a ring, and what a class does to them."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Generators = list[np.random.Generator]  # one per repetition

_N_SOURCES = 12
_GOLDEN = (math.sqrt(5) - 1) / 2
START, CLASS, SUBJECT, SESSION, TRIAL = range(5)  # what a random stream is for


@dataclass(frozen=True)
class Kind:
    """What tells one sort of biosignal from another; frequencies in Hz, amplitudes in microvolts."""

    name: str
    stream: int  # keeps the random streams of the kinds apart
    bands: tuple[tuple[float, float, float], ...]  # (centre, width, amplitude) of each rhythm
    background: float
    noise: float
    focus: float  # how narrowly a source reaches the electrodes (von Mises concentration)
    rise: float  # change of log-amplitude by an event at difficulty 1
    signs: tuple[int, ...]  # whether events raise (1) or also lower (-1) the amplitude
    min_sfreq: float
    min_seconds: float


_THETA, _ALPHA, _BETA = (6.0, 1.0, 6.0), (10.5, 1.2, 8.0), (21.0, 2.5, 5.0)
EEG = Kind("eeg", 0, (_THETA, _ALPHA, _BETA), 8.0, 1.5, 4.0, 1.4, (-1, 1), min_sfreq=60, min_seconds=0.4)
EMG = Kind("emg", 1, ((100.0, 40.0, 30.0),), 4.0, 4.0, 8.0, 1.0, (1,), min_sfreq=240, min_seconds=0.1)


@dataclass(frozen=True)
class Plan:
    """A checked request: what :func:`eeg` and :func:`emg` were asked for."""

    kind: Kind
    n_classes: int
    n_subjects: int
    n_sessions: int
    n_per_class: int
    n_chans: int
    n_times: int
    sfreq: float
    difficulty: float
    seed: int

    def __post_init__(self) -> None:
        """Refuse what cannot be generated, naming every problem at once."""
        problems, kind, n_least = [], self.kind, 1
        if kind.min_sfreq <= self.sfreq < math.inf:
            n_least = math.ceil(kind.min_seconds * self.sfreq)
        else:
            problems.append(
                f"sfreq (={self.sfreq}) is too low for {kind.name}; pass {kind.min_sfreq} Hz or more"
            )
        if not 0 <= self.difficulty < math.inf:
            problems.append(f"difficulty (={self.difficulty}) must be finite; pass 0 (very easy) or more")
        least = {"n_classes": 2, "n_subjects": 1, "n_sessions": 1, "n_per_class": 1, "n_chans": 1, "seed": 0}
        for name, low in (least | {"n_times": n_least}).items():
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < low:
                problems.append(f"{name} (={value!r}) must be a whole number; pass {low} or more")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def contrast(self) -> float:
        """How strongly classes differ: 1.5 at difficulty 0, 1 at 1, falling to 0."""
        return 3 / (2 + self.difficulty)

    @property
    def spread(self) -> float:
        """How much all else varies: 0.5 at difficulty 0, 1 at 1, rising to 2 and no further."""
        return (1 + 2 * self.difficulty) / (2 + self.difficulty)

    def stream(self, *path: int) -> np.random.Generator:
        """Return the generator of one purpose, whatever else has been drawn."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.kind.stream, *path)))


@dataclass(frozen=True)
class Setup:
    """One subject in one session."""

    mixing: Array  # (n_chans, n_sources)
    gain: Array  # (n_chans, 1)
    offset: Array  # (n_chans, 1), microvolts
    noise: float  # factor on the electrode noise
    tempo: float  # factor on the frequencies of the rhythms


def _ring(n: int) -> npt.NDArray[np.float64]:
    return 2 * np.pi * np.arange(n) / n


def _nearness(angles: npt.NDArray[np.float64], focus: float) -> Array:
    """Return how near each source is to each angle, 1 at the same place: (len(angles), n_sources)."""
    away = angles[:, None] - _ring(_N_SOURCES)
    return np.asarray(np.exp(focus * (np.cos(away) - 1)), dtype=np.float32)


def setup_of(plan: Plan, subject: int, session: int) -> Setup:
    """Return how one subject is recorded in one session."""
    own = plan.spread * plan.stream(SUBJECT, subject).standard_normal(4)
    rng = plan.stream(SESSION, subject, session)
    day = plan.spread * rng.standard_normal(3)
    uneven, offset, placement = plan.spread * rng.standard_normal((3, plan.n_chans))
    angles = _ring(plan.n_chans) + 0.15 * own[0] + 0.1 * day[0] + 0.03 * placement
    mixing = _nearness(angles, plan.kind.focus)
    return Setup(
        mixing=mixing / np.linalg.norm(mixing, axis=1, keepdims=True),
        gain=np.exp(0.2 * own[1] + 0.15 * day[1] + 0.08 * uneven[:, None]).astype(np.float32),
        offset=(4 * offset[:, None]).astype(np.float32),
        noise=plan.spread * math.exp(0.2 * own[2] + 0.2 * day[2]),
        tempo=math.exp(0.03 * own[3]),
    )


def draw(rngs: Generators, *shape: int) -> Array:
    """Draw standard normals, each repetition from its own generator: (n, *shape)."""
    return np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in rngs])


def _coloured(plan: Plan, rngs: Generators, n_rows: int, spectra: npt.NDArray[np.float64]) -> Array:
    """Draw white Gaussian noise and filter it, once per amplitude spectrum, to unit variance.

    Parameters
    ----------
    spectra : (n_spectra, n_times // 2 + 1), each up to a factor.

    Returns
    -------
    (n, n_spectra, n_rows, n_times)
    """
    scaled = spectra * plan.n_times / (2 * np.linalg.norm(spectra, axis=1, keepdims=True))
    white = draw(rngs, 1, n_rows, spectra.shape[1], 2).view(np.complex64)[..., 0]
    noise = np.fft.irfft(white * scaled[:, None].astype(np.float32), n=plan.n_times)
    return noise.astype(np.float32, copy=False)


def _log_gain(plan: Plan, label: int, rngs: Generators) -> Array:
    """Return what a class does to each rhythm of each source: (n, n_bands, n_sources, n_times)."""
    rng, n_bands = plan.stream(CLASS, label), len(plan.kind.bands)
    n_events = int(rng.integers(2, 4))
    angles = rng.uniform(0, 2 * np.pi, n_events)
    # Steps of the golden ratio keep the first events of any number of classes apart.
    angles[0] = 2 * np.pi * (plan.stream(START).uniform() + label * _GOLDEN)
    # With three bands, no two events of a class share one, so they cannot cancel each other.
    bands = (label + np.arange(n_events) * rng.integers(1, 3)) % n_bands
    signs = rng.choice(plan.kind.signs, n_events)
    weights = rng.uniform(0.7, 1.0, n_events)
    centres, widths = rng.uniform(0.3, 0.7, n_events), rng.uniform(0.2, 0.35, n_events)  # in trial lengths

    chance = plan.spread * draw(rngs, 2, n_events)
    size = plan.contrast * plan.kind.rise * signs * weights * np.exp(0.25 * chance[:, 0])  # (n, n_events)
    times = np.linspace(0, 1, plan.n_times) - (centres + 0.05 * chance[:, 1])[..., None]
    course = size[..., None] * np.exp(-0.5 * (times / widths[:, None]) ** 2)  # (n, n_events, n_times)
    where = np.eye(n_bands, dtype=np.float32)[bands].T[:, None] * _nearness(angles, plan.kind.focus).T
    return np.stack([weight @ course.astype(np.float32) for weight in where], axis=1)


def source_signals(plan: Plan, label: int, setup: Setup, rngs: Generators) -> Array:
    """Return the activity of the latent sources in microvolts: (n, n_sources, n_times)."""
    freqs = np.fft.rfftfreq(plan.n_times, 1 / plan.sfreq)
    pink = (freqs > 0) / np.sqrt(np.maximum(freqs, freqs[1]))
    slow = np.where(freqs > 0, np.exp(-0.5 * (freqs / 2) ** 2), 0.0)
    centres, widths, amplitudes = np.array(plan.kind.bands).T[..., None]  # (n_bands, 1) each
    rhythms = np.exp(-0.5 * ((freqs - setup.tempo * centres) / widths) ** 2)
    # One noise feeds all spectra: a rhythm is the background's own activity, raised in a band.
    spectra = np.vstack([pink, rhythms])
    parts = _coloured(plan, rngs, _N_SOURCES, spectra)  # (n, 1 + n_bands, n_sources, n_times)
    log_gain = _log_gain(plan, label, rngs) + np.log(amplitudes[..., None]).astype(np.float32)
    log_gain += 0.2 * plan.spread * _coloured(plan, rngs, 1, slow[None])
    log_gain += 0.2 * plan.spread * draw(rngs, len(plan.kind.bands), _N_SOURCES, 1)
    activity: Array = plan.kind.background * parts[:, 0] + (parts[:, 1:] * np.exp(log_gain)).sum(axis=1)
    return activity

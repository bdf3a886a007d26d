"""Generate synthetic EEG- and EMG-like recordings for the demo, the docs and the tests.

Everything here is computer-generated. No person was recorded, and a score reached on these signals is no
evidence about real people, patients or devices.

Latent sources sit on a ring (the scalp, the forearm). Each emits a 1/f background and one or more rhythms.
A class is two or three *events*: around some angle, in some band, the rhythm rises or falls for part of the
trial. Volume conduction mixes the sources into electrodes on the same ring, the nearest most::

    source_s(t) = background_s(t) + Σ_b exp(g_bs(t)) · rhythm_bs(t)      g: the class's events, and chance
    signal_c(t) = gain_c · (Σ_s mixing_cs · source_s(t) + noise_c(t)) + offset_c

Subjects and sessions differ in gain, noise level and electrode shift, sessions also in offset, subjects also
in the frequency of their rhythms. All classes are made from one vocabulary (angle, band, rise or fall, time),
so features learned on some of them help with the others without separating them by themselves.

Each recording has its own random stream, addressed by (seed, class, subject, session, repetition): generating
more of any of these never changes earlier recordings.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
_Index = npt.NDArray[np.int64]
Generators = list[np.random.Generator]  # one per repetition

_N_SOURCES = 12
_GOLDEN = (math.sqrt(5) - 1) / 2
_START, _CLASS, _SUBJECT, _SESSION, _TRIAL = range(5)  # purposes of random streams


@dataclass(frozen=True)
class SignalKind:
    """The constants of a kind of biosignal; frequencies in Hz, amplitudes in microvolts."""

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
EEG = SignalKind(
    "eeg", 0, (_THETA, _ALPHA, _BETA), 8.0, 1.5, 4.0, 1.4, (-1, 1), min_sfreq=60, min_seconds=0.4
)
EMG = SignalKind("emg", 1, ((100.0, 40.0, 30.0),), 4.0, 4.0, 8.0, 1.0, (1,), min_sfreq=240, min_seconds=0.1)


@dataclass(frozen=True)
class SyntheticSpec:
    """The validated arguments of :func:`eeg` and :func:`emg`."""

    kind: SignalKind
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
        """Refuse what cannot be generated; all problems are in one message."""
        problems, kind, n_least = [], self.kind, 1
        if kind.min_sfreq <= self.sfreq < math.inf:
            n_least = math.ceil(kind.min_seconds * self.sfreq)
        else:
            slow = f"sfreq (={self.sfreq}) is too low for {kind.name}"
            problems.append(f"{slow}; pass {kind.min_sfreq} Hz or more")
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
        """Return the random generator of one purpose, independent of all others."""
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


def _setup(spec: SyntheticSpec, subject: int, session: int) -> Setup:
    """Return how one subject is recorded in one session."""
    of_subject = spec.spread * spec.stream(_SUBJECT, subject).standard_normal(4)
    rng = spec.stream(_SESSION, subject, session)
    of_session = spec.spread * rng.standard_normal(3)
    gain, offset, shift = spec.spread * rng.standard_normal((3, spec.n_chans))
    angles = _ring(spec.n_chans) + 0.15 * of_subject[0] + 0.1 * of_session[0] + 0.03 * shift
    mixing = _nearness(angles, spec.kind.focus)
    return Setup(
        mixing=mixing / np.linalg.norm(mixing, axis=1, keepdims=True),
        gain=np.exp(0.2 * of_subject[1] + 0.15 * of_session[1] + 0.08 * gain[:, None]).astype(np.float32),
        offset=(4 * offset[:, None]).astype(np.float32),
        noise=spec.spread * math.exp(0.2 * of_subject[2] + 0.2 * of_session[2]),
        tempo=math.exp(0.03 * of_subject[3]),
    )


def _draw(rngs: Generators, *shape: int) -> Array:
    """Draw standard normals, each repetition from its own generator: (n, *shape)."""
    return np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in rngs])


def _coloured_noise(
    spec: SyntheticSpec, rngs: Generators, n_rows: int, spectra: npt.NDArray[np.float64]
) -> Array:
    """Draw white Gaussian noise, filtered to unit variance by each amplitude spectrum (n_times // 2 + 1,).

    Returns (n, n_spectra, n_rows, n_times); a spectrum is given up to a factor.
    """
    scaled = spectra * spec.n_times / (2 * np.linalg.norm(spectra, axis=1, keepdims=True))
    white = _draw(rngs, 1, n_rows, spectra.shape[1], 2).view(np.complex64)[..., 0]
    noise = np.fft.irfft(white * scaled[:, None].astype(np.float32), n=spec.n_times)
    return noise.astype(np.float32, copy=False)


def _log_gain(spec: SyntheticSpec, label: int, rngs: Generators) -> Array:
    """Return the change of log-amplitude of each rhythm by a class: (n, n_bands, n_sources, n_times)."""
    rng, n_bands = spec.stream(_CLASS, label), len(spec.kind.bands)
    n_events = int(rng.integers(2, 4))
    angles = rng.uniform(0, 2 * np.pi, n_events)
    # Steps of the golden ratio keep the first events of any number of classes apart.
    angles[0] = 2 * np.pi * (spec.stream(_START).uniform() + label * _GOLDEN)
    # With three bands, no two events of a class share one, so they cannot cancel each other.
    bands = (label + np.arange(n_events) * rng.integers(1, 3)) % n_bands
    signs = rng.choice(spec.kind.signs, n_events)
    weights = rng.uniform(0.7, 1.0, n_events)
    centres, widths = rng.uniform(0.3, 0.7, n_events), rng.uniform(0.2, 0.35, n_events)  # in trial lengths

    chance = spec.spread * _draw(rngs, 2, n_events)
    size = spec.contrast * spec.kind.rise * signs * weights * np.exp(0.25 * chance[:, 0])  # (n, n_events)
    times = np.linspace(0, 1, spec.n_times) - (centres + 0.05 * chance[:, 1])[..., None]
    course = size[..., None] * np.exp(-0.5 * (times / widths[:, None]) ** 2)  # (n, n_events, n_times)
    where = np.eye(n_bands, dtype=np.float32)[bands].T[:, None] * _nearness(angles, spec.kind.focus).T
    return np.stack([weight @ course.astype(np.float32) for weight in where], axis=1)


def _source_signals(spec: SyntheticSpec, label: int, setup: Setup, rngs: Generators) -> Array:
    """Return the activity of the latent sources in microvolts: (n, n_sources, n_times)."""
    freqs = np.fft.rfftfreq(spec.n_times, 1 / spec.sfreq)
    pink = (freqs > 0) / np.sqrt(np.maximum(freqs, freqs[1]))
    slow = np.where(freqs > 0, np.exp(-0.5 * (freqs / 2) ** 2), 0.0)
    centres, widths, amplitudes = np.array(spec.kind.bands).T[..., None]  # (n_bands, 1) each
    rhythms = np.exp(-0.5 * ((freqs - setup.tempo * centres) / widths) ** 2)
    # One noise feeds all spectra: a rhythm is the background's own activity, raised in a band.
    spectra = np.vstack([pink, rhythms])
    parts = _coloured_noise(spec, rngs, _N_SOURCES, spectra)  # (n, 1 + n_bands, n_sources, n_times)
    log_gain = _log_gain(spec, label, rngs) + np.log(amplitudes[..., None]).astype(np.float32)
    log_gain += 0.2 * spec.spread * _coloured_noise(spec, rngs, 1, slow[None])
    log_gain += 0.2 * spec.spread * _draw(rngs, len(spec.kind.bands), _N_SOURCES, 1)
    activity: Array = spec.kind.background * parts[:, 0] + (parts[:, 1:] * np.exp(log_gain)).sum(axis=1)
    return activity


@dataclass(frozen=True, eq=False)
class SyntheticRecordings:
    """Synthetic recordings and what is known about each.

    Parameters
    ----------
    signals : ndarray of float32, shape (n, n_chans, n_times)
        In microvolts.
    labels, subjects : ndarray of int, shape (n,)
        From 0.
    sessions : ndarray of int, shape (n,)
        From 0 for every subject; by convention the last one is the test part.
    sfreq : float
        Sampling rate in Hz.
    ch_names : tuple of str
        In order around the ring.
    kind : str
        "eeg" or "emg".

    Examples
    --------
    >>> recordings = eeg(n_classes=3, n_per_class=5, seed=0)
    >>> len(recordings), len(recordings.select(recordings.sessions < 2))
    (90, 60)
    """

    signals: Array
    labels: _Index
    subjects: _Index
    sessions: _Index
    sfreq: float
    ch_names: tuple[str, ...]
    kind: str

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, mask: npt.ArrayLike) -> "SyntheticRecordings":
        """Return the recordings where ``mask``, boolean of shape (n,), is true."""
        keep = np.asarray(mask)
        if keep.dtype != np.bool_ or keep.shape != (len(self),):
            expected = f"select takes a boolean mask of shape ({len(self)},), got {keep.dtype} {keep.shape}"
            raise ValueError(f"{expected}; compare a field: recordings.select(recordings.sessions == 0)")
        parts = (self.signals[keep], self.labels[keep], self.subjects[keep], self.sessions[keep])
        return SyntheticRecordings(*parts, sfreq=self.sfreq, ch_names=self.ch_names, kind=self.kind)


def _record(spec: SyntheticSpec) -> SyntheticRecordings:
    """Generate recordings, ordered by subject, session, class and repetition."""
    grid = (spec.n_subjects, spec.n_sessions, spec.n_classes, spec.n_per_class)
    signals = np.empty((*grid, spec.n_chans, spec.n_times), dtype=np.float32)
    for subject, session, label in np.ndindex(grid[:3]):
        setup = _setup(spec, subject, session)
        rngs = [spec.stream(_TRIAL, label, subject, session, i) for i in range(spec.n_per_class)]
        clean = setup.mixing @ _source_signals(spec, label, setup, rngs)  # (n, n_chans, n_times)
        noise = spec.kind.noise * setup.noise * _draw(rngs, spec.n_chans, spec.n_times)
        signals[subject, session, label] = setup.gain * (clean + noise) + setup.offset
    subjects, sessions, labels, _ = np.indices(grid, dtype=np.int64).reshape(4, -1)
    names = tuple(f"{spec.kind.name.upper()}{i:02d}" for i in range(1, spec.n_chans + 1))
    flat = signals.reshape(-1, spec.n_chans, spec.n_times)
    return SyntheticRecordings(flat, labels, subjects, sessions, float(spec.sfreq), names, spec.kind.name)


def eeg(
    *,
    n_classes: int = 8,
    n_subjects: int = 2,
    n_sessions: int = 3,
    n_per_class: int = 20,
    n_chans: int = 8,
    n_times: int = 250,
    sfreq: float = 250.0,
    difficulty: float = 1.0,
    seed: int,
) -> SyntheticRecordings:
    """Generate synthetic EEG-like recordings; no person was recorded.

    A class raises or lowers theta, alpha or beta power at two or three places of the scalp for part of the
    trial (event-related synchronisation and desynchronisation), against a 1/f background.

    Parameters
    ----------
    n_classes : int, default=8
        At least 2; class ``i`` is the same for every ``n_classes``.
    n_subjects, n_sessions : int
        People, and sessions of each.
    n_per_class : int, default=20
        Trials per class, subject and session.
    n_chans : int, default=8
        Channels.
    n_times : int, default=250
        Samples per trial, at least 0.4 s.
    sfreq : float, default=250.0
        Sampling rate in Hz, at least 60.
    difficulty : float, default=1.0
        From 0 (very easy) without limit; the higher, the less classes differ, the more noise there is, and
        the more trials, sessions and subjects differ.
    seed : int
        From 0; no global random state is read or changed.

    Returns
    -------
    SyntheticRecordings
        Ordered by subject, session, class and repetition, the last changing fastest.

    Examples
    --------
    >>> eeg(n_classes=3, n_per_class=5, seed=0).signals.shape
    (90, 8, 250)
    """
    counts = (n_classes, n_subjects, n_sessions, n_per_class, n_chans, n_times)
    return _record(SyntheticSpec(EEG, *counts, sfreq=sfreq, difficulty=difficulty, seed=seed))


def emg(
    *,
    n_classes: int = 8,
    n_subjects: int = 2,
    n_sessions: int = 3,
    n_per_class: int = 20,
    n_chans: int = 8,
    n_times: int = 500,
    sfreq: float = 1000.0,
    difficulty: float = 1.0,
    seed: int,
) -> SyntheticRecordings:
    """Generate synthetic EMG-like recordings; no person was recorded.

    A class activates two or three places around the forearm, each for part of the trial; activity is
    amplitude-modulated noise around 100 Hz. The result is ordered as that of :func:`eeg`.

    Parameters
    ----------
    n_classes, n_subjects, n_sessions, n_per_class, n_chans : int
        As in :func:`eeg`.
    n_times : int, default=500
        Samples per trial, at least 0.1 s.
    sfreq : float, default=1000.0
        Sampling rate in Hz, at least 240.
    difficulty, seed : float, int
        As in :func:`eeg`.

    Examples
    --------
    >>> emg(n_classes=2, n_per_class=5, n_chans=3, seed=0).ch_names
    ('EMG01', 'EMG02', 'EMG03')
    """
    counts = (n_classes, n_subjects, n_sessions, n_per_class, n_chans, n_times)
    return _record(SyntheticSpec(EMG, *counts, sfreq=sfreq, difficulty=difficulty, seed=seed))

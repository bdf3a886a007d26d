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
so what a network learns on some of them helps with, but does not settle, the others.

Each recording has a random stream of its own, addressed by (seed, class, subject, session, repetition):
asking for more of any of these never changes the recordings one had before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchorinv.data.sources import EEG, EMG, TRIAL, Array, Plan, draw, setup_of, source_signals

_Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Recordings:
    """Synthetic recordings and what is known about each.

    Attributes
    ----------
    signals : (n, n_chans, n_times), in microvolts.
    labels : (n,), from 0 to n_classes - 1.
    subjects : (n,), from 0.
    sessions : (n,), from 0 for every subject; by convention the last one is the test part.
    sfreq : samples per second.
    ch_names : one name per channel, in order around the ring.
    kind : ``"eeg"`` or ``"emg"``.
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

    def select(self, mask: npt.ArrayLike) -> "Recordings":
        """Return the recordings where ``mask``, boolean of shape (n,), is true."""
        keep = np.asarray(mask)
        if keep.dtype != np.bool_ or keep.shape != (len(self),):
            raise ValueError(
                f"select wants a boolean mask of shape ({len(self)},), got {keep.dtype} {keep.shape}; "
                "compare a field, as in recordings.select(recordings.sessions == 0)"
            )
        parts = (self.signals[keep], self.labels[keep], self.subjects[keep], self.sessions[keep])
        return Recordings(*parts, sfreq=self.sfreq, ch_names=self.ch_names, kind=self.kind)


def _record(plan: Plan) -> Recordings:
    """Generate what a plan asks for, ordered by subject, session, class and repetition."""
    grid = (plan.n_subjects, plan.n_sessions, plan.n_classes, plan.n_per_class)
    signals = np.empty((*grid, plan.n_chans, plan.n_times), dtype=np.float32)
    for subject, session, label in np.ndindex(grid[:3]):
        setup = setup_of(plan, subject, session)
        rngs = [plan.stream(TRIAL, label, subject, session, i) for i in range(plan.n_per_class)]
        clean = setup.mixing @ source_signals(plan, label, setup, rngs)  # (n, n_chans, n_times)
        noise = plan.kind.noise * setup.noise * draw(rngs, plan.n_chans, plan.n_times)
        signals[subject, session, label] = setup.gain * (clean + noise) + setup.offset
    subjects, sessions, labels, _ = np.indices(grid, dtype=np.int64).reshape(4, -1)
    names = tuple(f"{plan.kind.name.upper()}{i:02d}" for i in range(1, plan.n_chans + 1))
    flat = signals.reshape(-1, plan.n_chans, plan.n_times)
    return Recordings(flat, labels, subjects, sessions, float(plan.sfreq), names, plan.kind.name)


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
) -> Recordings:
    """Generate synthetic EEG-like recordings; nobody was recorded.

    A class raises or lowers theta, alpha or beta power at two or three places of the scalp for part of the
    trial (event-related synchronisation and desynchronisation), against a 1/f background.

    Parameters
    ----------
    n_classes : at least 2; class ``i`` is the same whatever ``n_classes``.
    n_per_class : trials per class, subject and session.
    n_times : samples per trial, at least 0.4 s.
    sfreq : samples per second, at least 60.
    difficulty : from 0, very easy, without limit; more of it means classes that differ less, more noise, and
        trials, sessions and subjects that differ more.
    seed : from 0; decides everything, and no global random state is read or changed.

    Returns
    -------
    n_subjects * n_sessions * n_classes * n_per_class recordings in this order, the last changing fastest.

    Examples
    --------
    >>> recordings = eeg(n_classes=3, n_per_class=5, seed=0)
    >>> recordings.signals.shape
    (90, 8, 250)
    >>> len(recordings.select(recordings.sessions < 2))
    60
    """
    counts = (n_classes, n_subjects, n_sessions, n_per_class, n_chans, n_times)
    return _record(Plan(EEG, *counts, sfreq=sfreq, difficulty=difficulty, seed=seed))


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
) -> Recordings:
    """Generate synthetic EMG-like recordings; nobody was recorded.

    A class activates two or three places around the forearm, each for part of the trial; activity is
    amplitude-modulated noise around 100 Hz. Parameters and result are those of :func:`eeg`, except that
    ``n_times`` must span 0.1 s and ``sfreq`` be 240 or more.

    Examples
    --------
    >>> emg(n_classes=2, n_per_class=5, n_chans=3, seed=0).ch_names
    ('EMG01', 'EMG02', 'EMG03')
    """
    counts = (n_classes, n_subjects, n_sessions, n_per_class, n_chans, n_times)
    return _record(Plan(EMG, *counts, sfreq=sfreq, difficulty=difficulty, seed=seed))

"""Checks of own recordings: what is wrong with each, and what does not fit together."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from anchorinv.data.own_files import Material, Options, Part
from anchorinv.problems import listed
from anchorinv.signal.pipeline import missing_stretches
from anchorinv.signal.preprocessing import Preprocessing
from anchorinv.signal.stages import rate_ratio
from anchorinv.signal.windows import window_starts

#: What a user may let pass with --allow, and what is then done.
ALLOWED = {
    "nan": "windows with missing samples are left out",
    "flat": "flat channels are kept",
    "clipped": "clipped channels are kept",
    "scale": "recordings of very different size are kept",
    "few": "classes with few samples are kept",
    "duplicates": "recordings that are there twice are kept",
    "shared-subjects": "a subject may be on both sides of the split",
    "shared-recordings": "a recording may be on both sides of the split",
}
_SCALE = 1000.0
NO_GAPS = np.empty((2, 0))

#: The kind of a problem ("" for one that cannot be let pass) and its sentence.
Finding = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What the checks need to know of a file, once its signals are gone from memory.

    Parameters
    ----------
    spread : median over channels of the standard deviation.
    digest : of the samples; the same for the same recording under two names.
    twins : places among its parts of separate trials that are the same.
    flat_trials : separate trials with a flat channel.
    gaps : (2, n) first samples of stretches with missing ones, and those after; at the rate it will have.
    """

    name: str
    how: Preprocessing
    units: tuple[str, ...]
    parts: tuple[Part, ...]
    missing: int
    flat: tuple[str, ...]
    clipped: tuple[str, ...]
    spread: float
    digest: str
    twins: tuple[tuple[int, int], ...] = ()
    flat_trials: int = 0
    gaps: npt.NDArray[np.float64] = field(default_factory=lambda: NO_GAPS)

    @property
    def rate(self) -> float:
        """Samples per second that it will have."""
        return self.how.sfreq or 1.0

    def starts(self, part: Part, n_times: int, overlap: float) -> npt.NDArray[np.int64]:
        """Return where the windows of a part begin; those with missing samples are none."""
        starts = part.first + window_starts(part.length, n_times, overlap=overlap)
        after = np.searchsorted(self.gaps[1], starts, side="right")
        following = np.append(self.gaps[0], np.inf)[after]
        found: npt.NDArray[np.int64] = starts[following >= starts + n_times]
        return found


def facts_of(name: str, material: Material) -> Facts:
    """Look at the signals of a file."""
    flat, clipped, spreads, missing = [], [], [], 0
    digest = blake2b(digest_size=16)
    for channel, values in zip(material.names, material.signals, strict=True):
        digest.update(np.ascontiguousarray(values).data)
        known = values[np.isfinite(values)]
        missing += len(values) - len(known)
        if not len(known) or np.ptp(known) == 0:
            flat.append(channel)
        elif is_clipped(known):
            clipped.append(channel)
        spreads.append(float(known.std()) if len(known) else 0.0)
    return Facts(
        name=name,
        how=material.how,
        units=material.units,
        parts=tuple(material.parts),
        missing=missing,
        flat=tuple(flat),
        clipped=tuple(clipped),
        spread=float(np.median(spreads)),
        digest=digest.hexdigest(),
        twins=_twins(material),
        flat_trials=_flat_trials(material, flat),
        gaps=_gaps(material) if missing else NO_GAPS,
    )


def _gaps(material: Material) -> npt.NDArray[np.float64]:
    missing = np.zeros(material.signals.shape[1], dtype=bool)
    for channel in material.signals:
        missing |= ~np.isfinite(channel)
    ratio = rate_ratio(material.sfreq, material.rate)
    # Whole numbers first, then one division: what falls on a sample is exactly there.
    return np.array(missing_stretches(missing)).T * ratio.numerator / ratio.denominator


def _trials(material: Material) -> npt.NDArray[np.float64] | None:
    """Return separate trials (n_chans, n, n_times), or None of a continuous recording."""
    signals = material.signals
    return signals.reshape(len(signals), -1, material.trial) if material.trial else None


def _twins(material: Material) -> tuple[tuple[int, int], ...]:
    trials = _trials(material)
    first: dict[bytes, int] = {}
    found = []
    for i in range(0 if trials is None else trials.shape[1]):
        assert trials is not None
        content = blake2b(np.ascontiguousarray(trials[:, i]).data, digest_size=16).digest()
        if (twin := first.setdefault(content, i)) != i:
            found.append((twin, i))
    return tuple(found)


def _flat_trials(material: Material, flat: Sequence[str]) -> int:
    """Count trials with a channel that is flat there, though not everywhere."""
    trials = _trials(material)
    if trials is None:
        return 0
    known = [i for i, name in enumerate(material.names) if name not in flat]
    return int((np.ptp(trials[known], axis=2) == 0).any(axis=0).sum()) if known else 0


def is_clipped(values: npt.NDArray[np.float64]) -> bool:
    """Tell whether a channel (n,) sits at its lowest or highest value for more than 1 % of the time.

    Only stretches of three samples or more count, and only in channels with more than 32 different values: a
    coarse converter meets its extremes all the time.
    """
    for extreme in (values.min(), values.max()):
        there = values == extreme
        in_a_row = there[:-2] & there[1:-1] & there[2:]
        if np.count_nonzero(in_a_row) > 0.01 * len(values):
            return len(np.unique(values)) > 32
    return False


def findings(every: Sequence[Facts], options: Options) -> Iterator[Finding]:
    """Yield all problems of the files, each and together."""
    for facts in every:
        yield from _alone(facts)
    rates = {facts.name: f"{facts.rate:g} Hz" for facts in every}
    yield from _differing(rates, "bring them to one rate with --resample")
    channels = {facts.name: f"channels {listed(facts.how.ch_names or (), most=40)}" for facts in every}
    yield from _differing(channels, "choose what all have, in one order, with --channels")
    units = {facts.name: f"unit {listed(sorted(set(facts.units))) or 'unknown'}" for facts in every}
    yield from _differing(units, "bring them to one unit")
    yield from _scales(every)
    yield from _lengths(every, options)
    yield from _duplicates(every)


def _alone(facts: Facts) -> Iterator[Finding]:
    if facts.missing:
        yield "nan", f"{facts.name} has {facts.missing} NaN or infinite samples; repair or drop it"
    if facts.flat:
        yield "flat", f"{facts.name} is flat in {listed(facts.flat)}; is an electrode off?"
    if facts.flat_trials:
        yield "flat", f"{facts.name} has {facts.flat_trials} trials with a flat channel; is an electrode off?"
    if facts.clipped:
        yield "clipped", f"{facts.name} is clipped in {listed(facts.clipped)}: it stays at its extreme"


def _differing(values: Mapping[str, Hashable], remedy: str) -> Iterator[Finding]:
    """Yield the files whose value is not that of most."""
    (usual, count), *others = Counter(values.values()).most_common()
    if others:
        odd = [f"{name} has {value}" for name, value in values.items() if value != usual]
        yield "", f"{listed(odd, most=5)}; {count} others have {usual}; {remedy}"


def _scales(every: Sequence[Facts]) -> Iterator[Finding]:
    usual = float(np.median([facts.spread for facts in every]))
    for facts in every:
        if facts.spread > 0 < usual and not 1 / _SCALE < facts.spread / usual < _SCALE:
            yield (
                "scale",
                f"{facts.name} spreads {facts.spread / usual:.1e} times as far as most; another unit?",
            )


def _lengths(every: Sequence[Facts], options: Options) -> Iterator[Finding]:
    n_times = window_length(every, options)
    for facts in every:
        for part in facts.parts:
            if options.window is None and part.length != n_times:
                yield (
                    "",
                    f"{facts.name} has a part of {part.length / facts.rate:g} s, most have "
                    f"{n_times / facts.rate:g} s; cut all to one length, or pass --window",
                )
            elif part.length < n_times:
                yield (
                    "",
                    f"{facts.name} has {part.length / facts.rate:g} s, a window takes {options.window:g} s",
                )


def window_length(every: Sequence[Facts], options: Options) -> int:
    """Return the samples of a window: as asked for, or as most parts have."""
    if options.window is not None:
        return round(options.window * every[0].rate)
    lengths = Counter(part.length for facts in every for part in facts.parts)
    return lengths.most_common(1)[0][0] if lengths else 1


def _duplicates(every: Sequence[Facts]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for facts in every:
        if (twin := first.setdefault(facts.digest, facts.name)) != facts.name:
            yield "duplicates", f"{facts.name} is the same recording as {twin}; list it once"
        if facts.twins:
            one, other = facts.twins[0]
            yield (
                "duplicates",
                f"{facts.name} has {len(facts.twins)} trials twice, the first {one} and {other}; "
                f"keep one of each",
            )
        ordered = sorted(facts.parts, key=lambda part: part.first)
        overlaps = [
            following.first / facts.rate
            for part, following in pairwise(ordered)
            if following.first < part.first + part.length
        ]
        if overlaps:
            more = f" and in {len(overlaps) - 1} more places" if len(overlaps) > 1 else ""
            yield (
                "duplicates",
                f"{facts.name} is listed twice around {overlaps[0]:g} s{more}; its rows overlap",
            )


def split_findings(every: Sequence[Facts], options: Options, *, given: bool) -> Iterator[Finding]:
    """Yield what is wrong with the two sides; those that the user gave may share what they should not."""
    if given:
        yield from _shared(every)
    yield from _few(every, options)


def _shared(every: Sequence[Facts]) -> Iterator[Finding]:
    sides: dict[str, set[str]] = {}
    sittings: dict[tuple[str, str], set[str]] = {}
    for facts in every:
        found = {part.split for part in facts.parts}
        # Separate trials of one file need not be of one recording; then subjects and sessions tell.
        if len(found) > 1 and not facts.name.endswith(".npz"):
            yield (
                "shared-recordings",
                f"{facts.name} has parts in train and in test; keep a recording on one side",
            )
        for part in facts.parts:
            sides.setdefault(part.subject, set()).add(part.split)
            if part.session:
                sittings.setdefault((part.subject, part.session), set()).add(part.split)
    if torn := [name for name, found in sittings.items() if len(found) > 1]:
        named = [f"{session}{f' of {subject}' if subject else ''}" for subject, session in torn]
        yield (
            "shared-recordings",
            f"session {listed(named)} is in train and in test; keep what was recorded at once on one side",
        )
    if shared := [subject for subject, found in sides.items() if subject and len(found) > 1]:
        yield (
            "shared-subjects",
            f"subject {listed(shared)} is in train and in test; keep a subject on one side",
        )


def _few(every: Sequence[Facts], options: Options) -> Iterator[Finding]:
    n_times = window_length(every, options)
    windows: Counter[tuple[str, str]] = Counter()
    for facts in every:
        for part in facts.parts:
            windows[part.label, part.split] += len(facts.starts(part, n_times, options.overlap))
    for label in sorted({label for label, _ in windows}):
        if windows[label, "train"] < options.at_least:
            yield (
                "few",
                f"class {label!r} has {windows[label, 'train']} training samples, {options.at_least} wanted",
            )
        if not windows[label, "test"]:
            yield "few", f"class {label!r} has no test samples"

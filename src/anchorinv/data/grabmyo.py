"""GRABMyo: forearm and wrist EMG of 43 people on three days, sixteen gestures and rest (PhysioNet 1.1.0)."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from anchorinv.data.plan import Piece, Plan, Row, Source
from anchorinv.problems import raise_if_any, ranges
from anchorinv.signal.pipeline import process
from anchorinv.signal.preprocessing import Preprocessing
from anchorinv.signal.readers import open_recording
from anchorinv.signal.recordings import inputs_of
from anchorinv.signal.windows import window_starts

CH_NAMES = tuple([f"F{i}" for i in range(1, 17)] + [f"W{i}" for i in range(1, 13)])
#: The seventeenth is rest, which is not used.
GESTURES = tuple(f"gesture {i}" for i in range(1, 17))
SESSIONS, PARTICIPANTS, TRIALS = range(1, 4), range(1, 44), range(1, 8)
RAW_SFREQ, SFREQ = 2048.0, 256.0
N_TIMES = 5 * 256
HOW = Preprocessing(CH_NAMES, "µV", gaps="zero", sfreq=SFREQ, resampling="fourier", n_times=N_TIMES)
_NAME = re.compile(r"session(\d+)_participant(\d+)_gesture(\d+)_trial(\d+)")

#: Session, participant, gesture, trial.
Key = tuple[int, int, int, int]


def plan_grabmyo(raw: Path, *, allow_missing: bool = False, live: bool = False) -> Plan:
    """Plan to prepare a folder of WFDB records.

    Parameters
    ----------
    allow_missing : take the records that are there.
    live : resample as a live source can be, rather than by the spectrum of a recording as the authors did.
    """
    if not raw.is_dir():
        raise ValueError(f"{raw} is no folder; give the one with Session1, Session2, Session3 to --raw")
    found = _found(raw)
    if not found:
        raise ValueError(
            f"{raw} holds no records such as session1_participant1_gesture1_trial1.hea; "
            "download them with anchorinv download grabmyo --to DIR"
        )
    missing = _missing(found)
    if not allow_missing:
        raise_if_any(str(raw), missing, "download them, or pass --allow-missing to prepare what is there")
    whole = sorted(key for key, paths in found.items() if len(paths) == 2)
    if not whole:
        raise ValueError(
            f"{raw} holds headers without samples or samples without headers only; download it again"
        )
    how = replace(HOW, resampling="polyphase") if live else HOW
    return Plan(
        root=raw,
        sources=[
            Source(found[key][1].stem, found[key], partial(_piece, key, how, found[key][1])) for key in whole
        ],
        how=how,
        class_names=GESTURES,
        recipe={
            "name": "grabmyo",
            "form": "wfdb",
            "unit": "µV",
            "steps": [
                "forearm and wrist channels by name",
                f"resampled to 256 Hz{'' if live else ' by the spectrum'}",
            ],
            "missing": missing,
        },
    )


def _found(raw: Path) -> dict[Key, tuple[Path, ...]]:
    """Return the files (.dat, .hea) of each record, rest left out."""
    found: dict[Key, dict[str, Path]] = {}
    for path in sorted(raw.rglob("session*_participant*_gesture*_trial*")):
        if (named := _NAME.fullmatch(path.stem)) and path.suffix in (".dat", ".hea"):
            session, participant, gesture, trial = map(int, named.groups())
            if gesture <= len(GESTURES):
                record = found.setdefault((session, participant, gesture, trial), {})
                record.setdefault(path.suffix, path)  # of copies in two folders, the first
    return {key: tuple(record[suffix] for suffix in sorted(record)) for key, record in found.items()}


def _missing(found: dict[Key, tuple[Path, ...]]) -> list[str]:
    """Name what a whole download would have, a sentence for each participant and session."""
    sentences = []
    for session in SESSIONS:
        away = []
        for participant in PARTICIPANTS:
            keys = [(session, participant, g, t) for g in range(1, len(GESTURES) + 1) for t in TRIALS]
            if not any(key in found for key in keys):
                away.append(participant)
                continue
            lost = [key for key in keys if len(found.get(key, ())) != 2]
            if lost:
                named = ", ".join(f"{gesture}.{trial}" for _, _, gesture, trial in lost)
                sentences.append(
                    f"session {session}, participant {participant}: {len(lost)} of {len(keys)} records "
                    f"(gesture.trial {named})"
                )
        if away:
            sentences.append(f"session {session}: participant{'s' if len(away) > 1 else ''} {ranges(away)}")
    return sentences


def _piece(key: Key, how: Preprocessing, path: Path) -> Piece:
    session, participant, gesture, _ = key
    recording = open_recording(path)
    if recording.sfreq != RAW_SFREQ:
        raise ValueError(
            f"{path} has a rate of {recording.sfreq} Hz, {RAW_SFREQ:g} wanted; download it again"
        )
    taken = inputs_of(recording, how)
    done = process(how, recording.load(taken.channels) * taken.factors, RAW_SFREQ)
    samples = done.samples
    starts = window_starts(len(samples), N_TIMES)[:1]
    if not len(starts):
        raise ValueError(f"{path} is {len(samples) / SFREQ:.1f} s long, 5 s wanted; download it again")
    side = "test" if session == SESSIONS[-1] else "train"
    rows = [Row(int(start), f"gesture {gesture}", str(participant), str(session), side) for start in starts]
    return Piece(samples, rows, {"missing samples": done.n_missing})

"""The same study, smaller: to see it run through before it takes hours. Always on synthetic recordings."""

from anchorinv.data.sources import EEG, EMG
from anchorinv.study.config import Data, Experiment, Sizes, Study, Synthetic

SCALES = ("full", "tiny", "smoke")


def scaled(study: Study, scale: str) -> Study:
    """Return a study at a scale.

    ``tiny`` keeps the geometry and the classes, with few epochs, steps, trials and seeds; ``smoke`` has short
    signals and a small network besides.
    """
    if scale == "full":
        return study
    # Enough for the most shots of any variant, so that variants share their recordings.
    shots = max(experiment.protocol.shots for experiment in study.variants.values())
    variants = {
        name: _smaller(experiment, shots, smoke=scale == "smoke")
        for name, experiment in study.variants.items()
    }
    return study.model_copy(update={"scale": scale, "variants": variants})


def _smaller(full: Experiment, shots: int, *, smoke: bool) -> Experiment:
    # Two people and two sessions of each, so that all kinds of study can be made.
    course = full.protocol
    alone = course.per_subject or course.leave_one_out
    per_class = 2 + (shots if alone else -(-shots // 2))
    # Few steps, and larger ones, so that something is learned all the same.
    most = 2 if smoke else 3
    training = full.training.model_copy(update={"epochs": 3, "batch_size": 16, "lr": 1e-3})
    inversion = full.inversion.model_copy(update={"steps": min(full.inversion.steps, most), "lr": 0.1})
    steps = {name: _cut(each, most) for name, each in full.finetuning.steps.items()}
    lengths = full.finetuning.lengths
    if full.finetuning.select == "validation":
        lengths = tuple(dict.fromkeys(_cut(lengths, most)))
    shorter = {"steps": steps, "lengths": lengths, "lr": 1e-3}
    return full.model_copy(
        update={
            "data": full.data.model_copy(update={"sfreq": _rate(full.data)}),
            "synthetic": Synthetic(n_per_class=per_class, difficulty=0.0),
            "geometry": _small(full.geometry) if smoke else full.geometry,
            "protocol": course.model_copy(
                update={"trials": min(course.trials, 2), "seeds": course.seeds[:2]}
            ),
            "training": training,
            "threads": 1 if smoke else full.threads,  # short signals are not worth sharing out
            "inversion": inversion,
            "finetuning": full.finetuning.model_copy(update=shorter),
        }
    )


def _cut(lengths: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(min(n, most) for n in lengths)


def _rate(full: Data) -> float | None:
    """Return the rate of the data, or the lowest at which such recordings can be made up."""
    least = EEG.min_sfreq if full.kind == "eeg" else EMG.min_sfreq
    return None if full.sfreq is None else max(full.sfreq, least)


def _small(full: Sizes | None) -> Sizes:
    n_chans = full.n_chans if full else 8
    return Sizes(n_chans=n_chans, n_times=104, kernel=9, pool=16, pool_stride=8, width=8, heads=2, depth=2)

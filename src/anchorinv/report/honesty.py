"""What a reader must know to trust a page: how lengths were chosen, what methods saw, on what it ran."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorinv._version import __version__
from anchorinv.report.departures import not_published
from anchorinv.report.gather import Run
from anchorinv.study.config import Study
from anchorinv.study.loading import load, shipped
from anchorinv.study.scale import scaled

#: What every run of this package keeps to.
SEEN = (
    "A method sees the base classes' training part, then each session's shots, and nothing else. Test data "
    "go to the scorer alone. In a trial all methods get the same shots."
)


@dataclass(frozen=True, slots=True)
class Honesty:
    """The honesty box of a run: sentences, and facts by name."""

    lengths: str
    seen: str
    standardised: str
    facts: dict[str, str]
    commands: list[str]


def honesty(run: Run, asked: str) -> Honesty:
    """Return a run's honesty box; ``asked`` is the command that made the report."""
    seeds = sorted({seed for each in run.study.variants.values() for seed in each.protocol.seeds})
    start = run.starts[-1] if run.starts else {}
    unknown = "not recorded"
    libraries = ("python", "torch", "numpy", "scipy", "scikit-learn")
    facts = {
        "Seeds of base sessions": ", ".join(map(str, seeds)),
        "anchorinv": ", ".join(dict.fromkeys(str(each.get("anchorinv")) for each in run.starts))
        + f" (report: {__version__})",
        "Libraries": ", ".join(f"{name} {start[name]}" for name in libraries if name in start) or unknown,
        "Machine": _machine(start) if start else unknown,
        "Started": ", ".join(str(each.get("started")) for each in run.starts) or unknown,
        "Hash of the settings": str(run.about.get("hash", unknown)),
        "Fingerprint of the data": ", ".join(
            f"{name}: {about.get('fingerprint')}" for name, about in run.about.get("data", {}).items()
        ),
        f"SHA-256 of {run.file.name}": run.results_hash,
    }  # fmt: skip
    return Honesty(_lengths(run), SEEN, _standardised(run), facts, [command(run), asked])


def command(run: Run) -> str:
    """Return the command that makes the run again."""
    study = run.study
    if study.name not in shipped():
        return f"anchorinv run YOUR-CONFIG.toml --out {_folder(run)}  # all settings are in {_settings(run)}"
    words = ["anchorinv run", study.name]
    if study.scale != "full":
        words.append(f"--scale {study.scale}")
    usual = scaled(load(study.name), study.scale)
    ours, theirs = next(iter(study.variants.values())), next(iter(usual.variants.values()))
    if ours.methods != theirs.methods:
        words.append(f"--methods {','.join(ours.methods)}")
    if ours.protocol.trials != theirs.protocol.trials:
        words.append(f"--trials {ours.protocol.trials}")
    if ours.protocol.seeds != theirs.protocol.seeds:
        words += [f"--seed {seed}" for seed in ours.protocol.seeds[:1]]
    if ours.threads != theirs.threads:
        words.append(f"--threads {ours.threads}")
    names = dict.fromkeys(each.data.name for each in study.variants.values() if each.synthetic is None)
    words += [f"--data {name}=FOLDER" for name in names]
    told = " ".join([*words, f"--out {_folder(run)}"])
    return told + ("" if _same(study, usual) else f"  # and settings of its own, in {_settings(run)}")


def _folder(run: Run) -> Path:
    """Return where the run was, or, if there is but a record of it, could be again."""
    return Path("runs") / run.name if run.path == run.file else run.path


def _settings(run: Run) -> str:
    return f"the first line of {run.file.name}" if run.path == run.file else "config.json"


def _machine(start: dict[str, Any]) -> str:
    told = (start.get("processor"), f"{start.get('cores')} cores", start.get("system"))
    return ", ".join(str(each) for each in told if each)


def _same(ours: Study, usual: Study) -> bool:
    """Say whether a study is the shipped one, up to what the command line can change."""
    if list(ours.variants) != list(usual.variants):
        return False
    plain = [
        {
            name: each.model_dump(exclude={"methods": True, "threads": True, "protocol": {"trials", "seeds"}})
            for name, each in study.variants.items()
        }
        for study in (ours, usual)
    ]
    return plain[0] == plain[1]


def _lengths(run: Run) -> str:
    name = run.study.name
    if load(name).paper if name in shipped() else name.endswith("-published"):
        open_keys = [key for key in not_published(run) if key.startswith("finetuning.steps.")]
        named = ", ".join(key.removeprefix("finetuning.steps.") for key in open_keys)
        ours = (
            f" Those of {named} were published as ranges or not at all; the config takes their middles, or "
            "those of "
            f"AnchorInv." if named else ""
        )  # fmt: skip
        small = (
            ""
            if run.study.scale == "full"
            else f" At this scale ({run.study.scale}) all are cut to a few steps."
        )
        return (
            "The numbers of finetuning steps are the paper's, which chose them on the test set with ten "
            f"trials (its appendix says so); nothing was chosen by this run's test data.{ours}{small}"
        )
    return (
        "The numbers of finetuning steps are the config's. No code of this package chooses them by test "
        "data; how whoever wrote the config chose them, this page cannot know."
    )


def _standardised(run: Run) -> str:
    by = {each.standardise.by for each in run.study.variants.values()}
    if by == {"base"}:
        return "Signals are standardised by the base classes' training part: nothing of later classes leaks."
    return (
        "Signals are standardised by the whole training part, later classes included, as in the authors' "
        "runs: statistics of classes that are not known yet are a leak."
    )

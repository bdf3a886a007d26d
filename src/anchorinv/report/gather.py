"""Data of a report: runs, the lines compared in them, verdicts on the comparisons, and provenance."""

import hashlib
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from anchorinv import __version__
from anchorinv.core.prototypes import selection_title
from anchorinv.datasets.npz_sets import EMG_DEMO
from anchorinv.study.config import Experiment, Study, dotted
from anchorinv.study.folder import Record, RunFolder, Start
from anchorinv.study.loading import load, scaled, shipped
from anchorinv.study.results import Job
from anchorinv.study.runner import SessionResult
from anchorinv.study.scores import (
    PARTS,
    TRIAL,
    Cell,
    Comparison,
    compare_lines,
    method_title,
    summarise,
    tidy,
)

#: Significance level.
LEVEL = 0.05
#: The paper's value of settings that a study varies, used as reference.
USUAL = {"anchors.select": "random", "anchors.per_class": 50, "protocol.shots": 10}
#: True of every run of this package.
SEEN = (
    "A method sees the base classes' training part, then each session's shots, and nothing else. Test data "
    "go to the scorer alone. In a trial all methods get the same shots."
)
_NOT_THE_PAPERS = ("synthetic", "threads", "not_published", "methods")


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder or record, read.

    Its label is the study's name, with the folder's or file's where two runs would be called the same;
    ``file`` holds the results and ``about`` is all of ``config.json``. Of ``n_jobs`` jobs some are missing;
    ``damage`` describes other lines of the file, and is usually empty.
    """

    label: str
    name: str
    path: Path
    file: Path
    study: Study
    about: dict[str, Any]
    starts: list[Start]
    results: list[SessionResult]
    missing: list[Job]
    n_jobs: int
    damage: str

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The results as a tidy table; see :func:`anchorinv.study.scores.tidy`."""
        return tidy(self.results)

    @property
    def slug(self) -> str:
        """The label as part of a file name or a link."""
        return slugify(self.label)

    @property
    def synthetic(self) -> bool:
        """Whether any of it comes from synthetic recordings."""
        return any(experiment.synthetic for experiment in self.study.variants.values())

    @property
    def results_hash(self) -> str:
        """The SHA-256 of the file that holds the results."""
        if not self.file.exists():
            return "–"
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def class_names(self, variant: str) -> list[str]:
        """Return the names of the classes by number."""
        return list(self.about["data"][self.study.variants[variant].data.name]["classes"])

    def variants(self) -> dict[str, Experiment]:
        """Return the variants that have results."""
        present = {result.variant for result in self.results}
        return {name: experiment for name, experiment in self.study.variants.items() if name in present}


def slugify(name: str) -> str:
    """Return a name as part of a file name or a link."""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def source_at(path: Path) -> RunFolder | Record:
    """Return the run at a path: a folder, or a record of one."""
    return Record(path) if path.is_file() else RunFolder(path)


def gather(paths: Sequence[Path]) -> list[Run]:
    """Read runs; a path that is not a run, or is damaged, is an error that names it."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("the same run folder is named twice; name each once")
    sources = [source_at(path) for path in paths]
    names = [source.study().name for source in sources]
    runs = []
    for source, name in zip(sources, names, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({source.name})"
        everything, lines = source.jobs(), source.read()
        done = {Job.of(result) for result in lines.results}
        missing = [part for part in everything if part not in done]
        runs.append(Run(label, source.name, source.path, source.results, source.study(), source.about(),
                        source.starts(), lines.results, missing, len(everything), lines.damage))  # fmt: skip
    return runs


@dataclass(frozen=True, eq=False)
class Group:
    """Lines that are compared with each other: the "methods" of a variant, or the "variants" of one method.

    ``title`` is what they have in common, empty where a run has one group. ``scores`` is a table of
    :func:`anchorinv.study.scores.tidy` with a column ``line``: one method and variant each. Others are tested
    against the reference, None where their classes differ. ``variant`` is one of the group, for its settings.
    """

    title: str
    of: str
    scores: pd.DataFrame
    reference: str | None
    variant: str

    @cached_property
    def lines(self) -> dict[str, pd.DataFrame]:
        """The scores of each line."""
        return dict(iter(self.scores.groupby("line", sort=False)))

    @cached_property
    def variants(self) -> dict[str, str]:
        """The variant of each line."""
        return {line: str(frame["variant"].iloc[0]) for line, frame in self.lines.items()}

    @cached_property
    def last(self) -> int:
        """The last session that any line has reached."""
        return int(self.scores["session"].max())

    def sessions(self, line: str) -> list[int]:
        """Return the sessions that a line has results of."""
        return sorted(set(self.lines[line]["session"]))

    def cell(self, line: str, session: int, part: str) -> Cell | None:
        """Return mean and spread of a score in percent; None where there is none."""
        return None if part == "f1_new" and session == 0 else self._cells.get((line, session, part))

    def cells(self, session: int, part: str) -> dict[str, Cell]:
        """Return mean and spread of a score of all lines that have it."""
        return {line: cell for line in self.lines if (cell := self.cell(line, session, part))}

    def best(self, session: int, part: str = "f1_all") -> str:
        """Return the line with the highest mean as printed; "" for ties or a single line."""
        return only_best({line: round(cell.mean, 2) for line, cell in self.cells(session, part).items()})

    def comparisons(self, part: str = "f1_all", reference: str | None = None) -> list[Comparison]:
        """Return the paired comparisons of all lines that have reached the last session."""
        return _comparisons(self, part, reference or self.reference)

    def differences(self, line: str, reference: str, session: int) -> pd.Series:
        """Return line minus reference in points of macro-F1 for each trial that both have."""
        of_line, of_reference = (
            frame[frame["session"] == session].groupby(TRIAL)["f1_all"].mean()
            for frame in (self.lines[line], self.lines[reference])
        )
        return (of_line - of_reference).dropna()

    @property
    def measured(self) -> pd.DataFrame:
        """The scores after the last session that have a reliability."""
        return self.scores[(self.scores["session"] == self.last) & self.scores["reliability"].notna()]

    @cached_property
    def _cells(self) -> dict[tuple[object, ...], Cell]:
        return summarise(self.scores, ["line", "session"], list(PARTS))


def only_best(values: Mapping[str, float], best: Callable[..., float] = max) -> str:
    """Return the key of the best value; "" for ties or a single one."""
    leading = [key for key, value in values.items() if value == best(values.values())]
    return leading[0] if len(leading) == 1 < len(values) else ""


@lru_cache(maxsize=256)  # used by every table and figure
def _comparisons(group: Group, part: str, reference: str | None) -> list[Comparison]:
    complete = [line for line in group.lines if group.last in group.sessions(line)]
    if reference not in complete or group.last == 0:
        return []
    frame = group.scores[group.scores["line"].isin(complete)]
    return list(compare_lines(frame, group.title, reference, part, lines="line"))


@lru_cache(maxsize=16)
def groups_of(run: Run) -> list[Group]:
    """Return what is compared in a run."""
    variants = run.variants()
    if len(variants) == 1 or run.scores["method"].nunique() > 1:
        return [_methods(run, name, title=name if len(variants) > 1 else "") for name in variants]
    by_data: dict[str, dict[str, Experiment]] = {}
    for name, experiment in variants.items():
        by_data.setdefault(experiment.data.name, {})[name] = experiment
    return [_variants(run, some, data if len(by_data) > 1 else "") for data, some in by_data.items()]


def varied_keys(experiments: Sequence[Experiment]) -> list[str]:
    """Return the keys in which experiments differ, by their dotted names."""
    plain = [dotted(settings.model_dump(exclude={"not_published"})) for settings in experiments]
    keys = dict.fromkeys(key for settings in plain for key in settings)
    return [key for key in keys if len({repr(settings.get(key)) for settings in plain}) > 1]


def _methods(run: Run, variant: str, title: str) -> Group:
    frame = run.scores[run.scores["variant"] == variant]
    frame = frame.assign(line=frame["method"].map(method_title))
    reference = method_title(run.study.reference)
    return Group(title, "methods", frame, reference if reference in set(frame["line"]) else None, variant)


def _variants(run: Run, variants: Mapping[str, Experiment], title: str) -> Group:
    keys = varied_keys(list(variants.values()))
    select = keys == ["anchors.select"]
    lines = {name: selection_title(e.anchors.select) if select else name for name, e in variants.items()}
    reference = None
    if len(keys) == 1 and keys[0] in USUAL:
        usual = [n for n, e in variants.items() if dotted(e.model_dump())[keys[0]] == USUAL[keys[0]]]
        reference = lines[usual[0]] if usual else None
    frames = [run.scores[run.scores["variant"] == name].assign(line=line) for name, line in lines.items()]
    return Group(title, "variants", pd.concat(frames), reference, next(iter(variants)))


def warnings_of(run: Run) -> list[str]:
    """Return warnings why a run's numbers are meaningless or incomplete."""
    warnings = []
    if run.study.scale != "full":
        warnings.append(
            f"{run.label} is a {run.study.scale} run: few epochs, steps and trials on synthetic recordings. "
            "It shows that everything runs. Its numbers mean nothing."
        )
    elif run.synthetic:
        warnings.append(
            f"{run.label} is on synthetic recordings: no person's data, and no evidence about real people."
        )
    if run.damage:
        warnings.append(
            f"{run.file.name} of {run.label} has {run.damage}; only complete jobs are shown. "
            "The same run command repairs it."
        )
    if run.missing:
        done = run.n_jobs - len(run.missing)
        counts = Counter(f"{p.method}{f' ({p.variant})' if p.variant else ''}" for p in run.missing)
        listed = "; ".join(f"{name}: {count}" for name, count in list(counts.items())[:8])
        more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
        warnings.append(
            f"{run.label} is not finished: {done} of {run.n_jobs} jobs are finished. "
            f"Missing jobs: {listed}{more}."
        )
    return warnings


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of a group's lines after the last session: the best line, its lead and significance.

    ``clear`` says whether the test expects it to hold for other draws of the shots; ``further`` describes
    base classes forgotten and new ones learned.
    """

    title: str
    best: str
    score: str
    margin: str
    sure: str
    clear: bool
    further: str


def leaders_of(verdicts: Sequence[Verdict]) -> str:
    """Summarise which method is best in how many variants, if there are several."""
    if len(verdicts) < 2:
        return ""
    names = ["a tie" if v.margin.startswith("level") else v.best for v in verdicts]
    listed = ", ".join(f"{name} in {count}" for name, count in Counter(names).most_common())
    clear = sum(v.clear for v in verdicts)
    return f"Best over all classes: {listed} of {len(verdicts)}; clearly so in {clear} of {len(verdicts)}."


def verdict_of(group: Group) -> Verdict | None:
    """Return the verdict on a group; None before the first new class."""
    last, cells = group.last, group.cells(group.last, "f1_all")
    if last == 0 or not cells:
        return None
    ranked = sorted(cells, key=lambda line: -cells[line].mean)
    best = ranked[0]
    margin, sure, clear = _against_next(group, ranked)
    new, base = (group.cell(best, last, part) for part in ("f1_new", "f1_base"))
    before, further = group.cell(best, 0, "f1_base"), ""
    if new and base:
        fall = before.mean - base.mean if before else 0.0
        less = f"{abs(fall):.1f} {'less' if fall >= 0 else 'more'}"
        change = f", {less} than in the base session" if before else ""
        further = f"New classes {new}; base classes {base}{change}."
    return Verdict(group.title, best, str(cells[best]), margin, sure, clear, further)


def _against_next(group: Group, ranked: Sequence[str]) -> tuple[str, str, bool]:
    """Return the lead of the best line, its significance in words, and whether it is clear."""
    if len(ranked) < 2:
        return "", "There is nothing to compare it with.", False
    best, second, last = ranked[0], ranked[1], group.last
    if group.reference is None and group.of == "variants":
        return f"next is {second}", "Their classes differ, so they are not tested against each other.", False
    where = (last, "trials", second)
    tested = [c for c in group.comparisons(reference=best) if (c.session, c.over, c.method) == where]
    won = group.differences(best, second, last)
    if not tested or not len(won):
        return f"next is {second}", "No trial is finished in both, so they cannot be compared.", False
    (c,) = tested
    margin = (
        f"{-c.difference:.1f} points above {second}, ahead in {int((won > 0).sum())} of {len(won)} trials"
    )
    if abs(c.difference) < 0.05:
        return f"level with {second}", "There is no difference to test.", False
    if c.n < 2:
        return margin, "One trial is too few for a test.", False
    tests = len(ranked) - 1
    interval = f"95 % interval {-c.high:+.1f} to {-c.low:+.1f} points".replace("-", "−")
    corrected = f", Holm-corrected over {tests} comparisons" if tests > 1 else ""
    clear = c.p_holm < LEVEL
    verdict = "Clear, for other draws of the shots" if clear else "Not significant"
    return margin, f"{verdict}: {interval}; p = {c.p_holm:.2g}{corrected}.", clear


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of a run, in sentences and facts, and the commands that reproduce it."""

    sentences: list[str]
    facts: dict[str, str]
    commands: list[str]


def provenance(run: Run, report_command: str) -> Provenance:
    """Return the provenance of a run; ``report_command`` makes the report again."""
    variants = run.study.variants.values()
    seeds = sorted({seed for experiment in variants for seed in experiment.protocol.seeds})
    start, unknown = run.starts[-1] if run.starts else {}, "not recorded"
    device = start.get("device", "cpu")
    on_device = None if device == "cpu" else f"networks on {device}"
    machine = (start.get("processor"), f"{start.get('cores')} cores", start.get("system"), on_device)
    libraries = ("python", "torch", "numpy", "scipy", "scikit-learn")
    versions = dict.fromkeys(str(start.get("anchorinv")) for start in run.starts)
    data = run.about["data"].items()
    facts = {
        "Seeds of base sessions": ", ".join(map(str, seeds)),
        "anchorinv": f"{', '.join(versions)} (report: {__version__})",
        "Libraries": ", ".join(f"{name} {start[name]}" for name in libraries if name in start) or unknown,
        "Machine": ", ".join(map(str, filter(None, machine))) if start else unknown,
        "Started": ", ".join(str(start.get("started")) for start in run.starts) or unknown,
        "Hash of the settings": run.about["hash"],
        "Fingerprint of the data": ", ".join(f"{name}: {about['fingerprint']}" for name, about in data),
        f"SHA-256 of {run.file.name}": run.results_hash,
    }
    return Provenance(
        [_steps_sentence(run), SEEN, _standardisation_sentence(run)], facts, [command(run), report_command]
    )


def command(run: Run) -> str:
    """Return the command that repeats the run."""
    study = run.study
    # The folder of the run, or a possible one if there is only a record.
    record = run.path == run.file
    folder = Path("runs") / run.name if record else run.path
    settings = f"the first line of {run.file.name}" if record else "config.json"
    if study.name not in shipped():
        return f"anchorinv run YOUR-CONFIG.toml --out {folder}  # all settings are in {settings}"
    usual = scaled(load(study.name), study.scale)
    ours, theirs = next(iter(study.variants.values())), next(iter(usual.variants.values()))
    options = {
        f"--scale {study.scale}": study.scale != "full",
        f"--methods {','.join(ours.methods)}": ours.methods != theirs.methods,
        f"--trials {ours.protocol.trials}": ours.protocol.trials != theirs.protocol.trials,
        f"--seed {ours.protocol.seeds[0]}": ours.protocol.seeds != theirs.protocol.seeds,
        f"--threads {ours.threads}": ours.threads != theirs.threads,
    }
    names = dict.fromkeys(e.data.name for e in study.variants.values() if e.synthetic is None)
    data = [f"--data {name}=FOLDER" for name in names if name != EMG_DEMO.name]  # it is in the package
    # What the command line can change.
    changed: Any = {"methods": True, "threads": True, "protocol": {"trials", "seeds"}}
    own_settings, usual_settings = (
        {name: experiment.model_dump(exclude=changed) for name, experiment in variants.items()}
        for variants in (study.variants, usual.variants)
    )
    note = "" if own_settings == usual_settings else f"  # and settings of its own, in {settings}"
    changed_options = [option for option, differs in options.items() if differs]
    return " ".join(["anchorinv run", study.name, *changed_options, *data, f"--out {folder}"]) + note


def _steps_sentence(run: Run) -> str:
    name = run.study.name
    if not (load(name).paper if name in shipped() else name.endswith("-published")):
        return (
            "The numbers of finetuning steps are the config's. No code of this package chooses them by test "
            "data; how they were chosen in the config is not known to this page."
        )
    prefix, scale = "finetuning.steps.", run.study.scale
    ours = ", ".join(key.removeprefix(prefix) for key in not_published(run) if key.startswith(prefix))
    ranges = (
        f" Those of {ours} were published as ranges or not at all; the config takes their middles, or those "
        "of AnchorInv."
    )
    return (
        "The numbers of finetuning steps are the paper's, which chose them on the test set with ten trials "
        "(its appendix says so); nothing was chosen by this run's test data."
        + (ranges if ours else "")
        + ("" if scale == "full" else f" At this scale ({scale}) all are cut to a few steps.")
    )


def _standardisation_sentence(run: Run) -> str:
    if {experiment.standardise.by for experiment in run.study.variants.values()} == {"base"}:
        return "Signals are standardised by the base classes' training part: nothing of later classes leaks."
    return (
        "Signals are standardised by the whole training part, later classes included, as in the authors' "
        "runs: statistics of classes that are not known yet are a leak."
    )


@cache
def of_the_paper() -> dict[str, Any]:
    """Return what is known of the paper: its tables, and reasons why settings differ from its text."""
    return tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Deviation:
    """A setting that differs from the paper's: its variants (empty for all), and the reason, if known."""

    key: str
    paper: str
    run: str
    where: str
    why: str


def deviations(run: Run) -> list[Deviation] | None:
    """Return how a run's settings differ from the text; None where it is no study of the paper."""
    name = run.study.name.removesuffix("-published")
    if name not in shipped() or not load(name).paper:
        return None
    text, authors = load(name), {}
    if run.study.name != name:  # the settings of the authors' own runs
        authors = dotted(load(run.study.name).variants[""].model_dump())
    differing: dict[tuple[str, str, str], list[str]] = {}
    shared = [variant for variant in run.study.variants if variant in text.variants]
    for variant in shared:
        for key, (paper, ours) in _differences(text.variants[variant], run.study.variants[variant]).items():
            differing.setdefault((key, paper, ours), []).append(variant)
    small = "" if run.study.scale == "full" else f"a {run.study.scale} run"
    rows = []
    for (key, paper, ours), variants in differing.items():
        more = f" and {len(variants) - 3} more" if len(variants) > 3 else ""
        where = "" if len(variants) == len(shared) else ", ".join(variants[:3]) + more
        as_theirs = key in authors and _as_text(authors[key]) == ours
        why = of_the_paper()["reasons"].get(key) or ("as in the authors' run" if as_theirs else small)
        rows.append(Deviation(key, paper, ours, where, why))
    return rows


def not_published(run: Run) -> list[str]:
    """Return the keys whose values the paper does not give."""
    return list(
        dict.fromkeys(key for experiment in run.study.variants.values() for key in experiment.not_published)
    )


def _differences(text: Experiment, ours: Experiment) -> dict[str, tuple[str, str]]:
    """Return the values of text and run, by the keys in which they differ."""
    paper, run = (dotted(experiment.model_dump()) for experiment in (text, ours))
    paper["standardise.by"] = "paper"
    if text.data.name == "grabmyo":
        paper["data.sfreq"] = 64.0
    differing = {}
    if ours.synthetic is not None and text.synthetic is None:
        differing["data"] = (f"recordings ({text.data.name})", "synthetic recordings")
    if missing := [name for name in text.methods if name not in ours.methods]:
        differing["methods"] = ("all of its table", f"without {', '.join(missing)}")
    unused = {f"finetuning.steps.{name}" for name in text.finetuning.steps if name not in ours.methods}
    for key in {**paper, **run}:
        skipped = key.split(".")[0] in _NOT_THE_PAPERS or key in unused or key in text.not_published
        if not skipped and paper.get(key) != run.get(key):
            differing[key] = (_as_text(paper.get(key)), _as_text(run.get(key)))
    return differing


def _as_text(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_as_text, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)

"""Make a report: one self-contained page, and its tables and figures as files."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from anchorinv import __version__
from anchorinv.datasets.dataset import Dataset
from anchorinv.datasets.npz_sets import EMG_DEMO
from anchorinv.errors import shown
from anchorinv.files import replacing
from anchorinv.progress import tick
from anchorinv.report.calibration import calibration_table
from anchorinv.report.feature_figures import (
    FittedRun,
    Unavailable,
    chosen_variants,
    class_title,
    curves_figure,
    fitted_run,
    inverted_pairs,
    signals_figure,
    tsne_figure,
)
from anchorinv.report.formats import Cell, Figure, Number, Table, as_csv, as_latex, document
from anchorinv.report.gather import (
    Run,
    Verdict,
    gather,
    groups_of,
    leaders_of,
    slugged,
    verdict_of,
    warnings_of,
)
from anchorinv.report.score_figures import cost_figure, runs_figures, score_figures
from anchorinv.report.tables import run_tables, runs_table
from anchorinv.study.config import Experiment, Study, dotted
from anchorinv.study.loading import load, scaled, shipped

#: What holds for every run of this package.
SEEN = (
    "A method sees the base classes' training part, then each session's shots, and nothing else. Test data "
    "go to the scorer alone. In a trial all methods get the same shots."
)
#: Reasons why a setting differs from the paper's text.
_WHY = {
    "standardise.by": "the text says training data, future classes too; ours are base classes alone: no leak",
    "data.sfreq": "the text says 64 Hz, but its windows of 1280 samples in 5 s need 256 Hz",
    "training.betas": "the text says 0.9, the authors' runs had 0.5",
    "finetuning.betas": "the text says 0.9, the authors' runs had 0.5",
    "finetuning.steps.anchorinv": "lengths were chosen on the test set, by the paper's appendix",
    "standardise.per_channel": "the authors' runs had one number for all channels",
    "inversion.smoothness": "a penalty of the authors' runs that the text does not mention",
    "training.class_weights": "the authors weighed by recordings",
    "anchors.measure": "the text does not say by which distance; the authors' runs: Euclidean",
    "inversion.noise": "in the authors' runs new classes start from the same noise in all trials",
    "inversion.new_batch": "the authors invert a new class's ten shots by themselves, which sets Adam's eps",
    "inversion.l2": "the mean norm in the authors' code, ours the mean square",
}
_NOT_THE_PAPERS = ("synthetic", "threads", "not_published", "methods")


def make_report(
    paths: Sequence[Path],
    out: Path,
    datasets: Mapping[str, Dataset] | None = None,
    *,
    bases: Path | None = None,
    selections: Sequence[str] = (),
) -> Path:
    """Write ``report.html``, ``tables`` and ``figures`` into a folder, and return the path of the page.

    Parameters
    ----------
    paths : sequence of Path
        Run folders or records.
    out : Path
        The folder to write into.
    datasets : mapping of str to Dataset, optional
        By name, for the figures that show recordings or features.
    bases : Path, optional
        Folder of base models, if not in the run folders.
    selections : sequence of str, default=()
        Of anchors to show in the feature space; the usual ones where none are named.
    """
    runs = gather(paths)
    asked = " ".join(["anchorinv report", *map(str, paths), f"--out {out}"])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None
    # Drawing makes millions of objects; frozen, what was imported is not scanned by each collection.
    gc.freeze()
    try:
        groups = {r.label: groups_of(r)[0] for r in runs if r.results and len(groups_of(r)) == 1}
        several = len(groups) > 1
        page = Page(
            [chapter(run, asked, datasets or {}, bases, selections) for run in runs],
            [runs_table(groups)] if several else [],
            runs_figures(groups, runs) if several else [],
        )
        tables = [*page.tables, *(table for each in page.chapters for table in each.tables)]
        for table in tables:
            _write(out / "tables" / f"{table.slug}.csv", as_csv(table))
            _write(out / "tables" / f"{table.slug}.tex", as_latex(table))
        _write(out / "tables" / "all-tables.tex", document([table.slug for table in tables]))
        for figure in [*page.figures, *(figure for each in page.chapters for figure in each.figures)]:
            figure.write(out / "figures")
        _write(out / "report.html", rendered(page))
    finally:
        gc.unfreeze()
    return out / "report.html"


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of a run, in sentences and facts, and the commands that reproduce it."""

    lengths: str
    seen: str
    standardised: str
    facts: dict[str, str]
    commands: list[str]


@dataclass(frozen=True, slots=True)
class Deviation:
    """A setting that differs from the paper's: its variants (empty for all), and the reason, if known."""

    key: str
    paper: str
    run: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Absent:
    """A figure that could not be made, and why."""

    title: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """The content of the page on one run."""

    run: Run
    warnings: list[str]
    verdicts: list[Verdict]
    leaders: str
    tables: list[Table]
    figures: list[Figure]
    absent: list[Absent]
    deviations: list[Deviation] | None
    not_published: list[str]
    provenance: Provenance


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """The content of the page: a chapter for each run, and comparisons of runs."""

    chapters: Sequence[Chapter]
    tables: Sequence[Table]
    figures: Sequence[Figure]

    @property
    def title(self) -> str:
        """The page's title."""
        if len(self.chapters) == 1:
            return self.chapters[0].run.study.title
        return f"{len(self.chapters)} runs: {', '.join(chapter.run.label for chapter in self.chapters)}"


def chapter(
    run: Run, asked: str, datasets: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> Chapter:
    """Make a run's tables and figures; ``asked`` is the command that makes the report."""
    tables: list[Table] = []
    figures: list[Figure] = []
    absent: list[Absent] = []
    verdicts: list[Verdict] = []
    if run.results:
        verdicts = [verdict for group in groups_of(run) if (verdict := verdict_of(group))]
        tables = [*run_tables(run), *filter(None, [calibration_table(run)])]
        figures = score_figures(run)
        tick(f"report of {run.label}", 1, 3)
        more, absent = _feature_figures(run, datasets, bases, selections)
        figures += [*more, cost_figure(f"{run.slug}-cost", run)]
        figures.sort(
            key=lambda figure: figure.wide
        )  # one-column figures first, so that they fill both columns
        tick(f"report of {run.label}", 3, 3)
    return Chapter(run, warnings_of(run), verdicts, leaders_of(verdicts), tables, figures, absent,
                   deviations(run), not_published(run), provenance(run, asked))  # fmt: skip


def _feature_figures(
    run: Run, datasets: Mapping[str, Dataset], bases: Path | None, selections: Sequence[str]
) -> tuple[list[Figure], list[Absent]]:
    """Draw features, signals and inversion, a set for each data set; or say why not."""
    drawn: list[Figure] = []
    absent: list[Absent] = []
    chosen = chosen_variants(run)
    for variant in chosen:
        data = run.study.variants[variant].data.name
        slug, where = (f"{run.slug}-{slugged(data)}", f" ({data})") if len(chosen) > 1 else (run.slug, "")
        tasks = _tasks(slug, where, selections, run.class_names(variant))
        try:
            fitted = fitted_run(run, variant, datasets, bases)
        except Unavailable as problem:
            absent += [Absent(f"{title}{where}", str(problem)) for title in tasks]
            continue
        for title, task in tasks.items():
            try:
                drawn += task(fitted)
            except Unavailable as problem:
                absent.append(Absent(f"{title}{where}", str(problem)))
        tick(f"report of {run.label}", 2, 3)
    return drawn, absent


def _tasks(
    slug: str, where: str, selections: Sequence[str], names: Sequence[str]
) -> dict[str, Callable[[FittedRun], list[Figure]]]:
    n_classes = 1 if where else 2  # with several data sets, one class of each is enough

    def signals(fitted: FittedRun) -> list[Figure]:
        pairs = {class_title(names, pair.label): pair for pair in inverted_pairs(fitted, n_classes)}
        return [
            signals_figure(f"{slug}-signals-{pair.label}", fitted, pair, name + where)
            for name, pair in pairs.items()
        ]

    return {
        "Inversion error": lambda fitted: [curves_figure(f"{slug}-inversion", fitted, where)],
        "Features in the plane (t-SNE)": lambda fitted: [
            tsne_figure(f"{slug}-tsne", fitted, selections, names, where)
        ],
        "Real and inverted signals": signals,
    }


def provenance(run: Run, asked: str) -> Provenance:
    """Return the provenance of a run; ``asked`` is the command that made the report."""
    seeds = sorted({seed for each in run.study.variants.values() for seed in each.protocol.seeds})
    start, unknown = run.starts[-1] if run.starts else {}, "not recorded"
    device = start.get("device", "cpu")
    on_device = None if device == "cpu" else f"networks on {device}"
    machine = (start.get("processor"), f"{start.get('cores')} cores", start.get("system"), on_device)
    libraries = ("python", "torch", "numpy", "scipy", "scikit-learn")
    facts = {
        "Seeds of base sessions": ", ".join(map(str, seeds)),
        "anchorinv": ", ".join(dict.fromkeys(str(each.get("anchorinv")) for each in run.starts))
        + f" (report: {__version__})",
        "Libraries": ", ".join(f"{name} {start[name]}" for name in libraries if name in start) or unknown,
        "Machine": ", ".join(str(each) for each in machine if each) if start else unknown,
        "Started": ", ".join(str(each.get("started")) for each in run.starts) or unknown,
        "Hash of the settings": str(run.about.get("hash", unknown)),
        "Fingerprint of the data": ", ".join(
            f"{name}: {about.get('fingerprint')}" for name, about in run.about.get("data", {}).items()
        ),
        f"SHA-256 of {run.file.name}": run.results_hash,
    }  # fmt: skip
    return Provenance(_lengths(run), SEEN, _standardised(run), facts, [command(run), asked])


def command(run: Run) -> str:
    """Return the command that repeats the run."""
    study = run.study
    # The folder of the run, or a possible one if there is only a record.
    record = run.path == run.file
    folder = Path("runs") / run.name if record else run.path
    settings = f"the first line of {run.file.name}" if record else "config.json"
    if study.name not in shipped():
        return f"anchorinv run YOUR-CONFIG.toml --out {folder}  # all settings are in {settings}"
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
    words += [f"--data {name}=FOLDER" for name in names if name != EMG_DEMO.name]  # it is in the package
    own = "" if _same(study, usual) else f"  # and settings of its own, in {settings}"
    return " ".join([*words, f"--out {folder}"]) + own


def _same(ours: Study, usual: Study) -> bool:
    """Return whether a study is the shipped one, up to what the command line can change."""
    changed: Any = {"methods": True, "threads": True, "protocol": {"trials", "seeds"}}
    one, other = (
        [(name, each.model_dump(exclude=changed)) for name, each in study.variants.items()]
        for study in (ours, usual)
    )
    return one == other


def _lengths(run: Run) -> str:
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


def _standardised(run: Run) -> str:
    if {each.standardise.by for each in run.study.variants.values()} == {"base"}:
        return "Signals are standardised by the base classes' training part: nothing of later classes leaks."
    return (
        "Signals are standardised by the whole training part, later classes included, as in the authors' "
        "runs: statistics of classes that are not known yet are a leak."
    )


def deviations(run: Run) -> list[Deviation] | None:
    """Return how a run's settings differ from the text; None where it is no study of the paper."""
    name = run.study.name.removesuffix("-published")
    if name not in shipped() or not load(name).paper:
        return None
    text, authors = load(name), {}
    if run.study.name != name:  # the settings of the authors' own runs
        authors = {
            key: _shown(v) for key, v in dotted(load(run.study.name).variants[""].model_dump()).items()
        }
    differing: dict[tuple[str, str, str], list[str]] = {}
    compared = [variant for variant in run.study.variants if variant in text.variants]
    for variant in compared:
        for key, (paper, ours) in _differences(text.variants[variant], run.study.variants[variant]).items():
            differing.setdefault((key, paper, ours), []).append(variant)
    small = "" if run.study.scale == "full" else f"a {run.study.scale} run"
    made = []
    for (key, paper, ours), variants in differing.items():
        more = f" and {len(variants) - 3} more" if len(variants) > 3 else ""
        where = "" if len(variants) == len(compared) else ", ".join(variants[:3]) + more
        why = _WHY.get(key) or ("as in the authors' run" if authors.get(key) == ours else small)
        made.append(Deviation(key, paper, ours, where, why))
    return made


def not_published(run: Run) -> list[str]:
    """Return the keys whose values the paper does not give."""
    return list(dict.fromkeys(key for each in run.study.variants.values() for key in each.not_published))


def _differences(text: Experiment, ours: Experiment) -> dict[str, tuple[str, str]]:
    paper, run = (dotted(each.model_dump()) for each in (text, ours))
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
            differing[key] = (_shown(paper.get(key)), _shown(run.get(key)))
    return differing


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_shown, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def rendered(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("anchorinv.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalised,
    )
    environment.globals.update(version=__version__, printed=_printed, sorted_by=_sorted_by, picture=address)
    return environment.get_template("page.html.j2").render(page=page)


def address(svg: str) -> str:
    """Return an SVG as a data URL, for use between double quotes."""
    # Percent-encoded text, a quarter shorter than base64.
    return "data:image/svg+xml," + quote(svg, safe="<>/:;,=()- !*'@+$?[]{}|~")


def _finalised(value: object) -> object:
    """Escape a value for the page, unless it is markup already."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _printed(cell: Cell) -> Markup:
    """Return a cell's content: the best in bold, marks as superscripts."""
    if isinstance(cell, str):
        return escape(shown(cell))
    text = Markup("<strong>{}</strong>").format(str(cell)) if cell.best else escape(str(cell))
    return text + Markup("<sup>{}</sup>").format(cell.mark) if cell.mark else text


def _sorted_by(cell: Cell) -> str:
    return repr(cell.value) if isinstance(cell, Number) else cell

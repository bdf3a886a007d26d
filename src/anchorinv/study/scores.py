"""The scores of a study as one tidy table, with a row per method, trial and session; paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from anchorinv.core.metrics import SplitReliability, forgetting, scores
from anchorinv.core.registry import METHODS
from anchorinv.errors import csv_line
from anchorinv.study.runner import SessionResult

if TYPE_CHECKING:
    from pandas import DataFrame

#: Macro-F1 over which classes, and the column names.
PARTS = {"f1_all": "all", "f1_base": "base", "f1_new": "new"}
#: Scores of one session, in the order of the columns; ``forgetting`` is the fall of base macro-F1.
SCORES = (*PARTS, "harmonic", "accuracy", "balanced_accuracy", "kappa", "forgetting")
#: Columns that identify a trial; trials that agree in them had the same shots.
TRIAL = ["subject", "seed", "trial"]
#: What may be paired over methods, and the columns that identify a pair.
PAIRS = {"trials": TRIAL, "base seeds": ["seed"], "people": ["subject"]}
#: Subject name for means over subjects, or over all trials.
EVERYBODY = "all"
ASSUMPTION = (
    "Trials share one base model and one test set: a small p means that the order of the methods would hold "
    "for other draws of the shots, not for other base models, people or recordings."
)
#: Measures of calibration on windows of base and of new classes; not in percent.
CALIBRATION = ("ece_base", "ece_new", "brier_base", "brier_new")
_FACTS = ["variant", "method", *TRIAL, "session", "classes", "n_base", "confusion", "seconds", "peak_mb",
          "reliability", *CALIBRATION]  # fmt: skip


def tidy(results: Sequence[SessionResult]) -> DataFrame:
    """Return results as a table with a row each, in their order.

    Returns
    -------
    DataFrame
        Columns variant, method, subject, seed, trial (-1 in the base session, which all trials share),
        session, classes, n_base, confusion, seconds, peak_mb, reliability (None where the method has no
        probabilities), each of ``CALIBRATION``, and in percent each of ``SCORES`` and "f1 of C" for each
        class C; nan where there is none.

    Examples
    --------
    >>> counts = np.array([[3, 1], [0, 4]])
    >>> frame = tidy([SessionResult("protonet", 5, None, 0, (0, 1), 2, counts, 0.1)])
    >>> frame[["method", "session", "accuracy"]].values.tolist()
    [['protonet', 0, 87.5]]
    """
    import pandas as pd

    bases = {_run_of(r): r for r in results if r.session == 0}
    rows = []
    for r in results:
        score, base = scores(r.confusion, r.n_base), bases.get(_run_of(r))
        fell = np.nan if base is None else forgetting(base.confusion, r.confusion, r.n_base)
        values = {name: getattr(score, name) for name in SCORES[:-1]} | {"forgetting": fell}
        values |= {f"f1 of {label}": f1 for label, f1 in zip(r.classes, score.f1, strict=True)}
        trial = -1 if r.trial is None else r.trial
        peak = np.nan if r.peak_mb is None else r.peak_mb
        facts = (r.variant, r.method, r.person, r.base_seed, trial, r.session, r.classes, r.n_base,
                 r.confusion, r.seconds, peak, r.reliability, *_calibration(r.reliability))  # fmt: skip
        rows.append(dict(zip(_FACTS, facts, strict=True)) | {key: 100 * v for key, v in values.items()})
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*_FACTS, *SCORES])


@dataclass(frozen=True, slots=True)
class Cell:
    """Mean and population standard deviation (None for a single value) of a score over n trials or people.

    Examples
    --------
    >>> str(Cell(61.25, 1.5)), str(Cell(61.25, None))
    ('61.2 ± 1.5', '61.2')
    """

    mean: float
    std: float | None
    n: int = 1

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


def summarise(
    frame: DataFrame, by: Sequence[str], columns: Sequence[str] = tuple(PARTS)
) -> dict[tuple[object, ...], Cell]:
    """Return mean and spread of scores over trials; over people's means where a group has several people.

    The frame is one of :func:`tidy`. Keys are the values of the columns ``by`` followed by the score, in the
    order of the rows.
    """
    cells: dict[tuple[object, ...], Cell] = {}
    names = list(columns)
    for key, group in frame.groupby(list(by), sort=False):
        if group["subject"].nunique() > 1:
            values = group.groupby("subject", sort=False)[names].mean().to_numpy(dtype=float)
        else:
            values = group.sort_values(TRIAL, kind="stable")[names].to_numpy(dtype=float)
        n = len(values)
        for name, mean, std in zip(names, values.mean(0), values.std(0), strict=True):
            cells[*key, name] = Cell(float(mean), float(std) if n > 1 else None, n)
    return cells


def by_session(results: Sequence[SessionResult]) -> dict[tuple[object, ...], Cell]:
    """Return mean and spread of each score of one variant, by method, session and score."""
    return summarise(tidy(results), ["method", "session"])


def methods_of(results: Sequence[SessionResult]) -> list[str]:
    """Return the methods in the order they appear."""
    return list(dict.fromkeys(result.method for result in results))


def method_title(method: str) -> str:
    """Return a method's title for tables and figures; one that is not registered keeps its name."""
    return METHODS[method].title if method in METHODS else method


def with_titles(results: Sequence[SessionResult]) -> list[SessionResult]:
    """Rename methods in results to their titles, as in reports, unless two share a title."""
    titles = {name: method_title(name) for name in methods_of(results)}
    if len(set(titles.values())) < len(titles):
        return list(results)
    return [replace(result, method=titles[result.method]) for result in results]


def complete(results: Sequence[SessionResult]) -> bool:
    """Return whether all methods have the same trials of the last session, and can be compared."""
    last = max(result.session for result in results)
    counts = [sum(r.session == last for r in results if r.method == m) for m in methods_of(results)]
    return last > 0 and len(set(counts)) == 1


def paired(frame: DataFrame, score: str, *, lines: str = "method", over: str = "trials") -> DataFrame:
    """Return a score with a row for each pair and a column for each line; nan where one has no result.

    The frame is one of :func:`tidy`, of one variant and session; ``lines`` is the column of what is compared,
    ``over`` what is paired, one of ``PAIRS``. Where a pair has several trials it is their mean.
    """
    return frame.pivot_table(values=score, index=PAIRS[over], columns=lines, aggfunc="mean")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method against a reference, over paired values.

    Parameters
    ----------
    method : str
        What is compared with the reference.
    difference : float
        Mean of method minus reference.
    low, high : float
        95 % confidence interval of the mean, by Student's t.
    p : float
        Of the two-sided Wilcoxon signed-rank test; 1 where all differences are zero.
    p_holm : float
        The same, Holm-corrected for the comparisons made together.
    effect : float
        Matched-pairs rank-biserial correlation, from -1 (always worse) to 1 (always better).
    n : int
        Number of pairs.
    variant : str, default=""
        Of a study.
    session : int, default=0
        Of a study.
    reference : str, default=""
        What it is compared with.
    over : str, default="trials"
        What is paired, one of ``PAIRS``.

    Examples
    --------
    >>> (b,) = compare({"a": [1, 2, 3, 4, 5, 6], "b": [2, 4, 4, 6, 6, 8]}, "a")
    >>> b.difference, b.effect, b.n
    (1.5, 1.0, 6)
    """

    method: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    effect: float
    n: int
    variant: str = ""
    session: int = 0
    reference: str = ""
    over: str = "trials"


def compare(values: Mapping[str, ArrayLike], reference: str) -> list[Comparison]:
    """Compare every method with one of them.

    Parameters
    ----------
    values : mapping of str to array_like, shape (n_trials,)
        A value per trial for each method, in the same order of trials.
    reference : str
        The method that the others are compared with.
    """
    if reference not in values:
        raise ValueError(f"no results of {reference!r} to compare with; there are {', '.join(values)}")
    columns = {method: np.asarray(column, dtype=float) for method, column in values.items()}
    lengths = {method: len(column) for method, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"paired tests need the same trials of all methods, got {lengths}")
    differences = {m: column - columns[reference] for m, column in columns.items() if m != reference}
    raw = [wilcoxon_p(d) for d in differences.values()]
    return [
        Comparison(method, float(d.mean()), *confidence_interval(d), p, p_holm, rank_biserial(d), len(d))
        for (method, d), p, p_holm in zip(differences.items(), raw, holm(raw), strict=True)
    ]


def wilcoxon_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p of the Wilcoxon signed-rank test; 1 where all differences are zero."""
    return float(stats.wilcoxon(differences).pvalue) if np.any(differences) else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for multiple comparisons by Holm's step-down rule; their order stays."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(p) for p in corrected]


def rank_biserial(differences: NDArray[np.float64]) -> float:
    """Return (sum of ranks above zero - sum below) / sum of all; 0 where all differences are zero."""
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 0.0
    ranks = stats.rankdata(np.abs(nonzero))
    return float((ranks * np.sign(nonzero)).sum() / ranks.sum())


def confidence_interval(differences: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean difference by Student's t; infinite for a single pair."""
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return -np.inf, np.inf
    error = differences.std(ddof=1) / np.sqrt(n)
    # A quantile by itself: the interval of scipy.stats checks its arguments for longer than it computes.
    half = float(special.stdtrit(n - 1, (1 + level) / 2) * error)
    return mean - half, mean + half


@dataclass(frozen=True, slots=True)
class Row:
    """One score of one method after one session: mean and population standard deviation, in percent.

    ``person`` may be "all": over people's means where they were studied one by one. ``n`` counts trials (over
    all base seeds), or people.
    """

    variant: str
    person: str
    method: str
    session: int
    score: str
    mean: float
    std: float
    n: int


#: Columns of the tables on disk.
ROW = [field.name for field in fields(Row)]
COMPARED = ["variant", "session", "reference", "over", *(field.name for field in fields(Comparison)[:8])]


def rows(
    results: Sequence[SessionResult], class_names: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Row]:
    """Yield every score of a run; ``class_names`` are the classes' names by number, for each variant."""
    for variant, frame in tidy(results).groupby("variant", sort=False):
        names = (class_names or {}).get(variant, ())
        frames = {EVERYBODY: frame}
        if frame["subject"].nunique() > 1:
            frames |= dict(iter(frame.groupby("subject", sort=False)))
        for person, scored in frames.items():
            columns = [*SCORES, *(column for column in scored if column.startswith("f1 of "))]
            cells = summarise(scored, ["method", "session"], columns)
            for (method, session), group in scored.groupby(["method", "session"], sort=False):
                for score in (*SCORES, *(f"f1 of {label}" for label in group["classes"].iloc[0])):
                    cell = cells[method, session, score]
                    if session == 0 and np.isnan(cell.mean):
                        continue  # there are no new classes yet
                    named = _with_class_name(score, names)
                    yield Row(variant, person, method, session, named, cell.mean, cell.std or 0.0, cell.n)


def comparisons(
    results: Sequence[SessionResult], reference: str, score: str = "f1_all"
) -> Iterator[Comparison]:
    """Yield the paired comparison of every method with a reference, per variant and session.

    Over trials; and, where there are several base seeds or people, over their means too.
    """
    for variant, frame in tidy(results).groupby("variant", sort=False):
        yield from compare_lines(frame, variant, reference, score)


def compare_lines(
    frame: DataFrame, variant: str, reference: str, score: str, *, lines: str = "method"
) -> Iterator[Comparison]:
    """Yield the paired comparisons of every line of a variant with one of them; see :func:`paired`."""
    names = list(frame[lines].unique())
    if reference not in names or len(names) < 2:
        return
    later = frame[frame["session"] > 0]
    # One table of all sessions: to pivot takes longer than the tests of a session.
    tables = {
        over: later.pivot_table(values=score, index=["session", *pair], columns=lines, aggfunc="mean")
        for over, pair in PAIRS.items()
        if over == "trials" or len(later[pair].drop_duplicates()) > 1
    }
    pairs = {over: table.reindex(columns=names).dropna() for over, table in tables.items()}
    for session in range(1, int(frame["session"].max()) + 1):
        for over, values in pairs.items():
            now = values[values.index.get_level_values("session") == session]
            if len(now) >= (1 if over == "trials" else 2):
                for comparison in compare({name: now[name] for name in names}, reference):
                    yield replace(
                        comparison, variant=variant, session=session, reference=reference, over=over
                    )


def assumptions(results: Sequence[SessionResult]) -> str:
    """State the assumptions of the tests, given the number of base models and subjects."""
    seeds, people = ({getattr(r, name) for r in results} for name in ("base_seed", "person"))
    several = [
        f"{len(some)} {what}" for some, what in ((seeds, "base seeds"), (people, "people")) if len(some) > 1
    ]
    if not several:
        return ASSUMPTION
    return (
        f"Trials of one base model share it and its test set. The test over trials, pooled over "
        f"{' and '.join(several)}, treats them as independent: it generalises to other draws of the shots. "
        f"The test over {' and over '.join(several)} generalises to other ones, with as few pairs as there "
        f"are."
    )


def in_words(results: Sequence[SessionResult]) -> str:
    """Summarise the last session: the best method, forgetting, and learning."""
    frame = tidy(results)
    last = frame["session"].max()
    cells = summarise(frame, ["method", "session"])
    mean = {key: cell.mean for key, cell in cells.items()}
    methods = list(frame["method"].unique())
    best, second = sorted(methods, key=lambda m: -mean[m, last, "f1_all"])[:2]
    values = paired(frame[frame["session"] == last], "f1_all")
    won = (values[best] - values[second]).dropna()
    falls = {m: mean[m, 0, "f1_base"] - mean[m, last, "f1_base"] for m in methods}
    learned = {m: mean[m, last, "f1_new"] for m in methods}
    n_new = int((frame["classes"].map(len) - frame["n_base"]).max())
    return (
        f"After {n_new} new {'class' if n_new == 1 else 'classes'} {best} is best over all classes with a "
        f"macro-F1 of {mean[best, last, 'f1_all']:.1f}, {won.mean():.1f} points above {second} and ahead of "
        f"it in {int((won > 0).sum())} of {len(won)} trials. The base classes fell since the base session by "
        f"{_ranked(falls)} points. The new classes were learned to {_ranked(learned)}."
    )


def as_csv(table: Sequence[Row] | Sequence[Comparison], header: Sequence[str] = ROW) -> str:
    """Return these columns of rows as CSV with a header, which an empty table has too."""
    values = [[getattr(row, name) for name in header] for row in table]
    rounded = [[round(v, 6) if isinstance(v, float) else v for v in cells] for cells in values]
    return "".join(map(csv_line, [header, *rounded]))


def _calibration(reliability: SplitReliability | None) -> list[float]:
    if reliability is None:
        return [np.nan] * len(CALIBRATION)
    parts = (reliability.base, reliability.new)
    return [*(part.ece for part in parts), *(part.brier for part in parts)]


def _with_class_name(score: str, names: Sequence[str]) -> str:
    number = score.removeprefix("f1 of ")
    known = number != score and int(number) < len(names)
    return f"f1 of {names[int(number)]}" if known else score


def _run_of(result: SessionResult) -> tuple[str, str, int, str]:
    return result.variant, result.person, result.base_seed, result.method


def _ranked(values: Mapping[str, float]) -> str:
    ordered = sorted(values, key=lambda name: -values[name])
    *most, last = [f"{values[name]:.1f} ({name})" for name in ordered]
    return f"{', '.join(most)} and {last}" if most else last

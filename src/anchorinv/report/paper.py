"""The paper's own figures, for the runs that repeat its tables; misprints are marked, not corrected."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: The feature error that the paper reports where signals were inverted from zeros.
FEATURE_MAE = "0.06–0.08"

#: In the authors' code a run of so many trials at the most is one that looks for the number of steps.
MOST_CHOOSING = 10

CHOSEN_BY_TEST = (
    "In the authors' code a run of at most ten trials scores the test set every 50 iterations of finetuning, "
    "and each trial keeps the iteration that was best there. This table has ten trials, so the paper's "
    "numbers of methods that finetune may have been chosen by the test set, trial by trial; ours never are."
)


@dataclass(frozen=True, slots=True)
class Published:
    """A number of the paper.

    Parameters
    ----------
    session : -1 for the last one.
    score : f1_all, f1_base or f1_new; in percent.
    trials : behind it, where the table's caption says so.
    marked : whether the paper marks it as different from its reference.
    doubt : why it is not to be trusted, if it is not.
    """

    table: str
    variant: str
    method: str
    session: int
    score: str
    mean: float
    std: float | None
    trials: int | None
    marked: bool
    doubt: str


def caveat(config: str) -> str:
    """Say what a reader must know who compares a run with the paper's numbers for its config."""
    chosen = any(number.trials and number.trials <= MOST_CHOOSING for number in published(config))
    return CHOSEN_BY_TEST if chosen else ""


@cache
def published(config: str) -> tuple[Published, ...]:
    """Return all numbers that the paper gives for a shipped config; none for other studies.

    Examples
    --------
    >>> [n.mean for n in published("bci2a") if (n.method, n.score) == ("anchorinv", "f1_all")]
    [77.17, 50.7, 37.04]
    """
    found: list[Published] = []
    for table in tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))["tables"]:
        if config not in table["configs"]:
            continue
        doubts = {(row, column): why for row, column, why in table.get("misprints", [])}
        columns = table.get("columns") or table["variants"]
        for method, row in table["rows"].items():
            for column, text in zip(columns, row.split("|"), strict=True):
                mean, *rest = text.split()
                score, session = column.split() if "columns" in table else (table["score"], -1)
                variant = "" if "columns" in table else column
                numbers = [float(each) for each in rest if each != "†"]
                std = numbers[0] if numbers else None
                doubt = doubts.get((method, column), "")
                found.append(
                    Published(
                        table["name"],
                        variant,
                        method,
                        int(session),
                        score,
                        float(mean),
                        std,
                        table.get("trials"),
                        "†" in rest,
                        doubt,
                    )
                )
    return tuple(found)

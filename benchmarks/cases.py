"""The cases, in the order of the table: the rows asked for, then the same steps on other geometries."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

from anchorinv import GEOMETRIES, Geometry
from benchmarks import arithmetic, quality, steps
from benchmarks.adaptation import Sizes, adaptation
from benchmarks.live import against_filtering_anew, against_the_least, with_confidence
from benchmarks.memory import inversion_memory
from benchmarks.timing import Case, Side, timed

BCI = GEOMETRIES["bci2a"]
SIZES = Sizes()
TESTS = 2592  # of BCI: nine people, 288 each
OTHERS = {"nhie": GEOMETRIES["nhie"], "grabmyo": GEOMETRIES["grabmyo"]}


def help_start(quick: bool) -> tuple[Side, Side]:
    def start(*command: str) -> Side:
        return timed(lambda: subprocess.run([sys.executable, *command], check=True, capture_output=True))

    return start("-c", "import torch"), start("-m", "anchorinv", "--help")


def asked_for() -> list[Case]:
    g = BCI
    shares = {"trials": SIZES.trials, "steps": SIZES.steps, "shots": SIZES.shots, "n_base": 2}
    return [
        Case(
            "inversion-step-bci",
            "100 samples",
            5,
            12,
            lambda quick: steps.inversion(g, 100, 1, 5),
            arithmetic.inversion_step(g, 100),
        ),
        Case(
            "training-step-bci",
            "batch of 72",
            3.5,
            8,
            lambda quick: steps.training(g, 72, 1, 5),
            arithmetic.training_step(g, 72, 2),
        ),
        Case(
            "finetuning-step-bci",
            "10 shots + 100 replay",
            12,
            30,
            lambda quick: steps.finetuning(g, 100, 1, 20),
            arithmetic.finetuning_step(g, 110, 3),
        ),
        Case(
            "inference-bci",
            f"{TESTS} trials",
            4.5,
            10,
            lambda quick: steps.inference(g, TESTS, 0.1),
            arithmetic.inference(g, TESTS, 4),
            repeats=4,
            quick_repeats=2,
        ),
        Case(
            "scoring-bci",
            f"{TESTS} test samples, trunk known",
            15,
            40,
            lambda quick: steps.scoring(g, TESTS, 0.1, 4),
            arithmetic.scoring(g, TESTS, 4),
            repeats=4,
            quick_repeats=2,
        ),
        Case(
            "inversion-memory-grabmyo",
            "peak memory, 500 samples",
            5,
            10,
            lambda quick: inversion_memory(500),
            unit="MB",
            repeats=1,
            quick_repeats=1,
            warm_up=False,
        ),
        Case(
            "adaptation-bci",
            f"{SIZES.trials} trials × 2 sessions, {SIZES.steps} + {SIZES.steps} steps, scored",
            8,
            25,
            lambda quick: adaptation(g, SIZES, share=10),
            arithmetic.adaptation(
                g, anchors=2 * SIZES.per_class, tests=(3 * SIZES.n_tests, 4 * SIZES.n_tests), **shares
            ),
            repeats=2,
            quick_repeats=1,
            warm_up=False,
        ),
        Case(
            "few-windows",
            "a discriminant of 96 windows and 768 features, and its answers",
            None,
            None,
            lambda quick: steps.few_windows(96, 768),
        ),
        Case("help-start", "anchorinv --help against import torch", 2, None, help_start),
    ]


def equal_quality() -> list[Case]:
    """Rows that end when the textbook's quality is reached; quick ones are tiny and prove that they run."""
    tiny = Geometry(8, 100, kernel=9, pool=20, pool_stride=4, width=8, heads=2, depth=2)
    once = partial(Case, must=None, repeats=2, quick_repeats=1, warm_up=False)
    return [
        once(
            name="training-to-score-emg",
            what="until the score of 100 epochs at a constant rate (quick: tiny)",
            aim=20,
            prepare=lambda quick: quality.training_to_score(
                quality.Windows(3, 4, 100, 4) if quick else quality.Windows()
            ),
        ),
        once(
            name="inversion-to-error-bci",
            what="10 samples, until the error of 4000 steps of Adam (quick: tiny)",
            aim=30,
            prepare=lambda quick: (
                quality.inversion_to_error(tiny, 4, 60) if quick else quality.inversion_to_error()
            ),
        ),
        once(
            name="first-model-emg",
            what="from 2400 windows of 8 channels and 300 samples (quick: 48 of 100)",
            aim=100,
            prepare=lambda quick: quality.model_from_windows(*((48, 100) if quick else (2400, 300))),
        ),
    ]


def live() -> list[Case]:
    """Rows of the signal path of a live source, window by window; what classifying takes is apart."""
    return [
        Case(
            "live-signal-path",
            "a window, against a minute so far filtered anew for each",
            10,
            None,
            lambda quick: against_filtering_anew(10 if quick else 60),
            unit="µs",
        ),
        Case(
            "live-signal-least",
            "a window, against filter, append and copy alone",
            0.6,
            1,
            lambda quick: against_the_least(),
            unit="µs",
        ),
        Case(
            "live-confidence",
            "a window of 8 × 300 with p-value, rejection and smoothing, against without",
            0.9,
            None,
            lambda quick: with_confidence(50 if quick else 100),
            unit="µs",
            repeats=31,  # a tenth is less than a busy machine makes of two pairs
            quick_repeats=15,
        ),
    ]


def elsewhere() -> list[Case]:
    found = []
    for name, g in OTHERS.items():
        rows = [
            (
                "inversion-step",
                "100 samples",
                steps.inversion,
                (100, 1, 3),
                arithmetic.inversion_step(g, 100),
            ),
            ("training-step", "batch of 72", steps.training, (72, 1, 3), arithmetic.training_step(g, 72, 2)),
            (
                "finetuning-step",
                "10 shots + 100 replay",
                steps.finetuning,
                (100, 1, 10),
                arithmetic.finetuning_step(g, 110, 3),
            ),
            ("inference", "500 trials", steps.inference, (500, 0.4), arithmetic.inference(g, 500, 4)),
        ]
        for kind, what, prepare, sizes, cost in rows:
            found.append(
                Case(
                    f"{kind}-{name}",
                    what,
                    None,
                    None,
                    partial(_prepared, prepare, g, sizes),
                    cost,
                    repeats=3,
                    quick_repeats=1,
                )
            )
    return found


def _prepared(
    prepare: Callable[..., tuple[Side, Side]], g: Geometry, sizes: tuple[float, ...], quick: bool
) -> tuple[Side, Side]:
    return prepare(g, *sizes)


CASES = [*asked_for(), *live(), *equal_quality(), *elsewhere()]

"""One thread per test process: the networks are tiny, and two workers share two cores."""

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported, and inherited by the commands that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
# Modules are compiled once, not by each of the hundred commands that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A test that asks for more has them wait asleep: by turning round they would take the other worker's core.
os.environ["OMP_WAIT_POLICY"] = "passive"

# How long an example takes is a matter of the machine and of who else is on it. A fixture that examples share
# is a folder or a model that they do not change.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize="CI" in os.environ,  # what is judged once is judged on the same examples each time
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any machine")

# A shell's background job ignores Ctrl-C, and so would all commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that share what takes long to make: each group is for one worker of pytest-xdist. So is each file that
# has a fixture of its own for the whole module.
_TOGETHER = {
    **dict.fromkeys(
        ["tests/persistence", "tests/test_estimator_forgetting.py"], "a fitted model of every method"
    ),
    "tests/serving/test_export.py": "graphs",
    "tests/report": "reports",
}
# What takes longest comes first, so that no worker is left with it in the end.
_FIRST = (
    "tests/study/test_ray_cluster.py",
    "tests/test_wheel.py",
    "tests/report",
    "tests/serving/test_export.py",
    "tests/persistence",
    "tests/live",
    "tests/serving",
    "tests/cli",
    "tests/test_",
    "tests/study",
)
_leaks: list[str] = []


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Leave the process to the next test as it was: threads, folder, how warnings look."""
    torch = sys.modules.get("torch")
    n_threads, folder, look = torch and torch.get_num_threads(), Path.cwd(), warnings.formatwarning
    yield
    if torch and torch.get_num_threads() != n_threads:
        torch.set_num_threads(n_threads)
    os.chdir(folder)
    warnings.formatwarning = look


@pytest.fixture(scope="session", autouse=True)
def _few_projections() -> None:
    """Give RanPAC 200 random projections instead of 2000: a hundred models solve systems of them."""
    from anchorinv.core.catalogue import ranpac

    assert ranpac.__kwdefaults__ == {"n_random": 2000}
    ranpac.__kwdefaults__["n_random"] = 200


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `main` in an empty folder as the console script does, without a new process for each command."""
    from anchorinv import cli

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["anchorinv", *map(str, words)])
        with pytest.raises(SystemExit) as done:
            cli.main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return int(done.value.code or 0), shown.out, shown.err

    return call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first."""
    items.sort(
        key=lambda item: next((i for i, path in enumerate(_FIRST) if item.nodeid.startswith(path)), 99)
    )


@cache
def _group(path: str) -> str:
    """Return the group of a file; empty where its tests are for any worker, one by one."""
    text = (Path(__file__).parents[1] / path).read_text(encoding="utf-8")
    shared = path if 'scope="module"' in text else ""
    return _TOGETHER.get(path) or _TOGETHER.get(path.rpartition("/")[0], shared)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep groups of tests together. By file: with pytest 9.2 xdist loses its own marks (its issue 1386)."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0]) or nodeid

    config.option.loadscopereorder = False  # ours is the better order
    return Together(config, log)


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from tests and libraries: they stay, and are many.

    A report or a live stream unfreezes them, and libraries are still imported later. Looking through all of
    it takes half a second, and is done a tenth as often as usual; the end of the run does it, too.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """Note what was left open: it is found whenever garbage is collected, in a test that cannot help it."""
    if issubclass(warning_message.category, pytest.PytestUnraisableExceptionWarning):
        _leaks.append(f"{nodeid or 'after all tests'}: {str(warning_message.message).splitlines()[0]}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run for what was left open, unless a failure that may have left it is told already."""
    if _leaks and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left open, and in which test it was found."""
    if _leaks:
        terminalreporter.section("left open, found in or before")
        for line in _leaks:
            terminalreporter.line(line)

"""A study on workers and on a cluster of two nodes: the same results, whatever is killed in between.

Ray runs in a network namespace of its own, where there is nothing but the loopback address.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from anchorinv.study.config import Study
from anchorinv.study.execute import run_study
from anchorinv.study.folder import RunFolder
from anchorinv.study.loading import load, scaled
from anchorinv.study.ray_executor import connected
from tests.study.little import lines

ROOT = Path(__file__).parents[2]
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
RUN = [sys.executable, "-m", "anchorinv", "run", "grabmyo-4base", "--scale", "smoke", "--log-level", "info"]
TRIALS = 20  # enough to be stopped in, however late the signal comes
RUN += ["--methods", "protonet,anchorinv", "--trials", str(TRIALS)]
AGENTS = {"ray::DashboardA", "ray::RuntimeEnv"}  # so far the system keeps their names
TASKS = ("ray::run_trial", "ray::recall", "ray::fit_base")
ENV = {
    **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",  # on a busy machine workers would get next to nothing
    # A dead process refuses a check at once, a slow one has ten seconds for each of five.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "100",
    "COLUMNS": "120",
}


def _missing() -> str:
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed; pip install 'anchorinv[cluster]'"
    try:
        tried = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return f"a network namespace needs {error.filename}"
    return "" if tried.returncode == 0 else f"no network namespace here: {tried.stderr.strip()}"


MISSING = _missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@dataclass(frozen=True)
class Seen:
    """The cluster, what happened on it while it had two nodes, and how to get into its network."""

    address: str
    folder: Path
    output: dict[str, Any]
    enter: list[str]


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped: its folder, its results then, its network, exit code and what it said after."""

    out: Path
    results: int
    space: int
    code: int
    output: str


@dataclass(frozen=True)
class SideBySide:
    """What takes long and mostly waits: the cluster, runs that are stopped, and one that is continued."""

    seen: Future[Seen]
    killed: Future[Stopped]
    interrupted: Future[Stopped]
    interrupted_there: Future[Stopped]
    continued: Future[tuple[int, str, str]]


@dataclass(frozen=True)
class Abandoned:
    """Ray's folder where a driver was killed, which nobody removes, and its network."""

    folder: str
    spaces: list[int] = field(default_factory=list)


@pytest.fixture(scope="session")
def abandoned() -> Iterator[Abandoned]:
    """Wait for Ray's agents after all other tests: for a minute, always, they call those that are gone."""
    with tempfile.TemporaryDirectory(prefix="a", dir="/tmp", ignore_cleanup_errors=True) as short:
        yield (given := Abandoned(short))
        for space in given.spaces:
            wait_until_gone(space)


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory, abandoned) -> Iterator[SideBySide]:
    cluster, *runs = (tmp_path_factory.mktemp(name) for name in ("ray", "killed", "here", "there"))
    with ExitStack() as until_the_end, ThreadPoolExecutor(5) as threads:
        seen = threads.submit(lambda: until_the_end.enter_context(two_nodes(cluster)))
        here = ["--workers", 2]
        killed = threads.submit(stopped, runs[0], signal.SIGKILL, *here, enter=ALONE, TMPDIR=abandoned.folder)
        interrupted = threads.submit(stopped, runs[1], signal.SIGINT, *here, enter=ALONE)
        yield SideBySide(
            seen,
            killed,
            interrupted,
            threads.submit(
                lambda: stopped(
                    runs[2], signal.SIGINT, "--cluster", seen.result().address, enter=seen.result().enter
                )
            ),
            threads.submit(
                lambda: continued(
                    killed.result(), "--cluster", seen.result().address, enter=seen.result().enter
                )
            ),
        )


@contextmanager
def two_nodes(folder: Path) -> Iterator[Seen]:
    with (folder / "stderr").open("w") as errors, subprocess.Popen(
        [*ALONE, sys.executable, "-m", "tests.study.two_nodes", str(folder)],
        env=ENV, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as cluster:  # fmt: skip
        try:
            address = next((line.strip() for line in cluster.stdout if line.startswith("127.0.0.1:")), "")
            assert address, (folder / "stderr").read_text()[-3000:]
            enter = ["nsenter", f"--net=/proc/{cluster.pid}/ns/net"]
            yield Seen(address, folder, json.loads((folder / "seen.json").read_text()), enter)
        finally:
            cluster.stdin.close()


@pytest.fixture(scope="module")
def seen(side_by_side) -> Seen:
    return side_by_side.seen.result()


@pytest.fixture(scope="module")
def killed(side_by_side) -> Stopped:
    """A run on this machine whose driver was killed."""
    return side_by_side.killed.result()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run of the command, in this process."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_study(of_the_command(), out)
    return out


def of_the_command() -> Study:
    study = scaled(load("grabmyo-4base", methods=["protonet", "anchorinv"]), "smoke")
    protocol = study.variants[""].protocol.model_copy(update={"trials": TRIALS})
    variants = {"": study.variants[""].model_copy(update={"protocol": protocol})}
    return study.model_copy(update={"variants": variants})


def network(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def living_in(space: int) -> list[str]:
    """The processes in a network namespace."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and network(int(each.name)) == space:
                found.append((each / "comm").read_text().strip())
        except OSError:  # it ended just now
            continue
    return found


def wait_until_gone(space: int, *names: str, but: Collection[str] = ()) -> None:
    """Wait until no process, or none of these names, is left in a network namespace, but for some."""
    until = time.monotonic() + 600
    while left := [name for name in living_in(space) if (not names or name in names) and name not in but]:
        assert time.monotonic() < until, f"still there: {left}"
        time.sleep(0.1)


def started(*args: object, enter: list[str], cwd: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*enter, *RUN, *map(str, args)], cwd=cwd, env=ENV | env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def stopped_after(process: subprocess.Popen[str], parts: int, how: signal.Signals) -> tuple[int, str]:
    """Send a signal when some jobs are finished; return the process's network and what it said after."""
    for line in process.stderr:
        parts -= "info: finished" in line
        if not parts:
            break
    else:
        raise AssertionError("it ended before it could be stopped")
    space = network(process.pid)
    process.send_signal(how)
    _, output = process.communicate()
    return space, output


def stopped(folder: Path, how: signal.Signals, *args: object, enter: list[str], **env: str) -> Stopped:
    """Start a run, and stop it when some jobs are finished."""
    process = started(*args, "--out", "run", enter=enter, cwd=folder, **env)
    space, output = stopped_after(process, 3, how)
    return Stopped(folder / "run", len(finished(folder / "run")), space, process.returncode, output)


def continued(run: Stopped, *args: object, enter: list[str]) -> tuple[int, str, str]:
    """Run the command again; return its exit code, and what it shows and says."""
    process = started(*args, "--out", run.out, enter=enter, cwd=run.out.parent)
    shown, output = process.communicate()
    return process.returncode, shown, output


def finished(run: Path) -> set[tuple[str, int | None]]:
    return {(each["method"], each["trial"]) for each in lines(run)}


def test_nobody_works_on_for_a_killed_driver(killed):
    wait_until_gone(killed.space, "raylet", "gcs_server", *TASKS)


class TestTwoNodes:
    def test_a_node_that_dies_changes_no_line(self, seen):
        assert len(seen.output["killed"]["at_kill"]) == 1
        assert seen.output["killed"]["at_kill"][0] < 20 < seen.output["killed"]["of"]
        assert lines(seen.folder / "cluster") == lines(seen.folder / "here")

    def test_base_models_are_in_the_cache_as_ever(self, seen):
        for run in ("cluster", "here"):
            kept = sorted(path.name for path in (seen.folder / run / "bases").iterdir())
            assert [name.split("-")[0] for name in kept] == ["base", "base", "replay"]
        one, two = (
            {path.name for path in (seen.folder / run / "bases").iterdir()} for run in ("cluster", "here")
        )
        assert one == two

    @pytest.mark.parametrize("where", ["here", "cluster"])
    def test_what_always_fails_is_named_and_the_others_finish(self, seen, where):
        said = seen.output["failing"]["said"][where]
        assert "5 of 12 jobs failed" in said and "run the same command again" in said
        assert "trial 1, seed 5: ZeroDivisionError: never in trial 1" in said or "KeyError: 'no base'" in said
        found = {(x["method"], x["trial"]) for x in seen.output["failing"]["found"]}
        assert found == {("protonet", t) for t in (None, 0, 1, 2)} | {("broken", t) for t in (None, 0, 2)}

    def test_what_failed_is_tried_again(self, seen):
        found = {(x["method"], x["trial"]) for x in lines(seen.folder / "failing")}
        assert found == {(m, t) for m in ("protonet", "broken", "worse") for t in (None, 0, 1, 2)}

    def test_workers_have_the_threads_of_the_config(self, seen):
        facts = [x["facts"] for x in lines(seen.folder / "failing") if x["method"] == "broken"]
        assert facts == [{"threads": 1.0}] * len(facts) and facts

    def test_a_method_that_cannot_be_sent_is_refused_in_words(self, seen):
        assert "the method 'mine' cannot be sent to workers (cannot pickle" in seen.output["refused"]

    def test_gpus_that_nobody_has_are_refused_in_words(self, seen):
        assert "has 1 CPUs and 0.5 GPUs for a worker" in seen.output["too_large"]

    def test_memory_does_not_grow_with_the_number_of_trials(self, seen):
        after_ten, after_all = seen.output["many"]
        assert after_all < after_ten + 20
        held = [
            result.peak_mb
            for result in RunFolder(seen.folder / "many").read().results
            if result.trial is not None
        ]
        assert len(held) == 200 and max(held[100:]) < max(held[:50]) + 20


class TestStopped:
    def test_a_cluster_goes_on_where_a_driver_was_killed(self, side_by_side, seen, killed, whole):
        assert 3 <= killed.results < 2 * (TRIALS + 1)
        code, shown, output = side_by_side.continued.result()
        assert code == 0, output
        assert f"at {seen.address}: 1 nodes, 1 workers of 1 threads" in output, output
        assert "Macro-F1" in shown
        assert lines(killed.out) == lines(whole)

    def test_ctrl_c_on_this_machine(self, side_by_side, whole):
        run = side_by_side.interrupted.result()
        assert run.code == 130, run.output
        assert "Run the same command again to continue" in run.output
        assert "Traceback" not in run.output
        wait_until_gone(run.space)
        run_study(of_the_command(), run.out)  # without workers, for a change
        assert lines(run.out) == lines(whole)

    def test_ctrl_c_on_a_cluster_leaves_the_cluster(self, side_by_side):
        run = side_by_side.interrupted_there.result()
        assert run.code == 130 and "Traceback" not in run.output
        wait_until_gone(run.space, *TASKS)
        assert "raylet" in living_in(run.space) and "gcs_server" in living_in(run.space)


def test_nobody_there(run):
    code, _, said = run(*RUN[3:], "--cluster", "127.0.0.1:1", "--out", "run")
    assert code == 1 and "no Ray cluster answers at 127.0.0.1:1" in said


def test_ray_client_is_refused_in_words():
    with (
        pytest.raises(ValueError, match="start the command on a node of the cluster"),
        connected("ray://x:1", 1),
    ):
        pass


def test_a_killed_driver_leaves_nothing_behind(killed, abandoned):
    abandoned.spaces.append(killed.space)  # in the end nothing at all
    wait_until_gone(killed.space, but=AGENTS)

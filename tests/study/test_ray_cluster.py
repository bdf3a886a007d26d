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
from collections.abc import Iterator
from dataclasses import dataclass
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
TASKS = ("ray::run_trial", "ray::recall", "ray::fit_base")
ENV = {
    **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",  # on a busy machine workers would get next to nothing
    "RAY_health_check_period_ms": "500",  # Ray gives a node up after five failed checks
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


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("ray")
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


def wait_until_gone(space: int, *names: str) -> None:
    """Wait until no process, or none of these names, is left in a network namespace."""
    until = time.monotonic() + 600
    while left := [name for name in living_in(space) if not names or name in names]:
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


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Iterator[tuple[Path, int]]:
    """A run on this machine whose driver was killed, and its network."""
    out = tmp_path_factory.mktemp("killed") / "run"
    with tempfile.TemporaryDirectory(prefix="a", dir="/tmp", ignore_cleanup_errors=True) as short:
        process = started("--workers", 2, "--out", "run", enter=ALONE, cwd=out.parent, TMPDIR=short)
        space, _ = stopped_after(process, 3, signal.SIGKILL)
        yield out, space


def test_nobody_works_on_for_a_killed_driver(killed):
    _, space = killed
    wait_until_gone(space, "raylet", "gcs_server", *TASKS)


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
    def test_a_cluster_goes_on_where_a_driver_was_killed(self, seen, killed, whole, tmp_path):
        out, _ = killed
        assert 3 <= len({(x["method"], x["trial"]) for x in lines(out)}) < 2 * (TRIALS + 1)
        process = started("--cluster", seen.address, "--out", out, enter=seen.enter, cwd=tmp_path)
        shown, output = process.communicate()
        assert process.returncode == 0, output
        assert f"at {seen.address}: 1 nodes, 1 workers of 1 threads" in output, output
        assert "Macro-F1" in shown
        assert lines(out) == lines(whole)

    def test_ctrl_c_on_this_machine(self, whole, tmp_path):
        process = started("--workers", 2, "--out", "run", enter=ALONE, cwd=tmp_path)
        space, output = stopped_after(process, 3, signal.SIGINT)
        assert process.returncode == 130, output
        assert "Run the same command again to continue" in output
        assert "Traceback" not in output
        wait_until_gone(space)
        run_study(of_the_command(), tmp_path / "run")  # without workers, for a change
        assert lines(tmp_path / "run") == lines(whole)

    def test_ctrl_c_on_a_cluster_leaves_the_cluster(self, seen, tmp_path):
        process = started("--cluster", seen.address, "--out", "run", enter=seen.enter, cwd=tmp_path)
        space, output = stopped_after(process, 3, signal.SIGINT)
        assert process.returncode == 130 and "Traceback" not in output
        wait_until_gone(space, *TASKS)
        assert "raylet" in living_in(space) and "gcs_server" in living_in(space)


def test_nobody_there(run):
    code, _, said = run(*RUN[3:], "--cluster", "127.0.0.1:1", "--out", "run")
    assert code == 1 and "no Ray cluster answers at 127.0.0.1:1" in said


def test_ray_client_is_refused_in_words():
    with (
        pytest.raises(ValueError, match="start the command on a node of the cluster"),
        connected("ray://x:1", 1),
    ):
        pass


def test_a_killed_driver_leaves_nothing_behind(killed):
    # Last, because two processes of Ray that do nothing wait a minute for those that are gone.
    _, space = killed
    wait_until_gone(space)

"""The driver without a cluster: a stand-in for Ray computes at once, and loses what it is told to lose."""

import logging
import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anchorinv.progress import Tick, listening
from anchorinv.study import ray_executor
from anchorinv.study.config import Study
from anchorinv.study.execute import FileCheckpoint, Unfinished, run_study
from anchorinv.study.ray_executor import RETRIES, RayExecutor
from tests.study.little import lines, little

exceptions = pytest.importorskip(
    "ray.exceptions", reason="Ray is not installed; pip install 'anchorinv[cluster]'"
)

LOST = {
    "node": exceptions.NodeDiedError("the node is gone"),
    "worker": exceptions.WorkerCrashedError(),
    "memory": exceptions.OutOfMemoryError("too much"),
    "object": exceptions.ObjectLostError("00" * 28, None, ""),
}


class Reference:
    def __init__(self, value: Any) -> None:
        self.value = value


class Died(BaseException):
    """A worker's process, not its task."""


class InThisProcess:
    """Ray's functions as far as they are used; ``lose`` (task) says what is lost after all retries."""

    def __init__(self, lose: Callable[[str], Exception | None]) -> None:
        self.exceptions, self._lose, self.__version__ = exceptions, lose, "0"
        self.experimental = SimpleNamespace(internal_kv=self)
        self.n_checkpoints, self.deaths = 0, iter(())  # whether a process dies as it writes a checkpoint
        self.started: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.store: dict[str, Any] = {}
        self.alive = ["a", "b"]
        self.puts: list[Any] = []
        self.not_yet: dict[Any, bool] = {}

    def put(self, value: Any) -> Any:
        self.puts.append(value)
        return Reference(value)

    def get(self, reference: Any) -> Any:
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def is_initialized(self) -> bool:
        return False

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        if self.not_yet.pop(references[0], False):
            return [], references
        return references[:1], references[1:]

    def cancel(self, reference: Any, **_: Any) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": name, "Resources": {"CPU": 1}} for name in self.alive]

    def remote(self, **options: Any) -> Any:
        def function(task: Any) -> Any:
            self.options.append(options)
            return SimpleNamespace(remote=lambda *args: self._call(task, *args))

        return function

    def _call(self, task: Any, *args: Any) -> Any:
        for reference in args:
            if isinstance(reference, Reference) and isinstance(reference.value, Exception):
                return Reference(reference.value)  # the error of a task is that of all which need it
        self.started.append(task.__name__)
        if error := self._lose(task.__name__):
            return Reference(error)
        values = [arg.value if isinstance(arg, Reference) else arg for arg in args]
        try:
            reference = Reference(pickle.loads(pickle.dumps(self._tried(task, values))))  # it travels
            self.not_yet[reference] = True  # so that the driver sees it at work
            return reference
        except Died:
            return Reference(LOST["worker"])
        except Exception as error:
            return Reference(exceptions.RayTaskError(task.__name__, "a traceback", error))

    def _tried(self, task: Any, values: list[Any]) -> Any:
        try:
            return task(*values)
        except Died:
            self.started.append(task.__name__)
            return task(*values)

    # What is used of ray.experimental.internal_kv.
    def _internal_kv_put(self, key: str, value: Any) -> None:
        self.store[key] = value

    def _internal_kv_get(self, key: str) -> Any:
        return self.store.get(key)

    def _internal_kv_del(self, key: str) -> None:
        self.store.pop(key, None)


@pytest.fixture
def stand_in(monkeypatch) -> Callable[..., InThisProcess]:
    def install(lose: Callable[[str], Exception | None] = lambda task: None) -> InThisProcess:
        fake = InThisProcess(lose)
        monkeypatch.setattr(ray_executor, "import_extra", lambda *_, **__: fake)
        monkeypatch.setattr(ray_executor, "connected", lambda cluster, _: nullcontext(cluster))

        def write_or_die(checkpoint: FileCheckpoint, values: dict[str, Any]) -> None:
            fake.n_checkpoints += 1
            if next(fake.deaths, False):
                raise Died
            write(checkpoint, values)

        monkeypatch.setattr(FileCheckpoint, "write", write_or_die)
        return fake

    write = FileCheckpoint.write

    return install


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("here") / "run"
    run_study(study(), out)
    return lines(out)


def study() -> Study:
    return little(methods=["protonet", "anchorinv"], protocol={"trials": 2, "sessions": [10]})


def run(out: Any, **options: Any) -> list[dict[str, Any]]:
    run_study(study(), out, executor=RayExecutor(cluster="auto"), **options)
    return lines(out)


def test_results_are_those_of_one_process(stand_in, here, tmp_path):
    fake = stand_in()
    assert run(tmp_path / "run") == here
    assert [fake.started.count(task) for task in ("fit_base", "recall", "run_trial")] == [1, 2, 6]


def test_what_methods_share_is_placed_once(stand_in, tmp_path):
    fake = stand_in()
    run(tmp_path / "run")
    assert len(fake.puts) == 2  # the samples, methods of one's own (none): results go from task to task
    run(tmp_path / "run2", cache=tmp_path / "run" / "bases")
    assert len(fake.puts) == 2 + 4  # those, the base model and the replay of the cache


def test_ray_is_asked_to_compute_again_what_it_loses(stand_in, tmp_path):
    fake = stand_in()
    run(tmp_path / "run")
    for options in fake.options:
        assert options["max_retries"] == RETRIES and options["retry_exceptions"] == [exceptions.RayError]


def test_a_training_whose_node_dies_goes_on_from_its_last_checkpoint(stand_in, here, tmp_path):
    fake = stand_in()
    assert run(tmp_path / "whole", seconds=0.0) == here
    n_checkpoints = fake.n_checkpoints
    fake = stand_in()
    fake.deaths = iter([False, False, True])
    assert run(tmp_path / "run", seconds=0.0) == here
    assert fake.started.count("fit_base") == 2 and fake.n_checkpoints == n_checkpoints + 1 > 3
    assert not list((tmp_path / "run" / "bases").glob("*.unfinished"))


def test_a_node_that_does_not_see_the_folder_writes_no_checkpoint(stand_in, here, tmp_path, monkeypatch):
    fake, asked = stand_in(), []
    monkeypatch.setattr(os, "access", lambda path, _: asked.append(path))
    monkeypatch.chdir(tmp_path)
    assert run(Path("run"), seconds=0.0) == here
    # Workers are asked for the folder wherever they are themselves.
    assert asked == [tmp_path / "run" / "bases"] and not fake.n_checkpoints


def test_a_training_that_was_stopped_goes_on_from_its_last_checkpoint(stand_in, here, tmp_path, caplog):
    fake = stand_in()
    fake.deaths = iter([False, False, True, True])
    with pytest.raises(Unfinished, match="6 of 6 jobs failed"):
        run(tmp_path / "run", seconds=0.0)
    assert list((tmp_path / "run" / "bases").glob("*.unfinished")) and not fake.store
    stand_in()
    caplog.set_level(logging.INFO)
    assert run(tmp_path / "run", seconds=0.0) == here
    assert any("training resumes after 6 steps" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("kind", LOST)
def test_what_is_lost_again_and_again_fails_and_the_others_finish(stand_in, here, tmp_path, kind):
    fake = stand_in(lambda name: LOST[kind] if name == "run_trial" else None)
    told = f"6 of 6 jobs failed: .* lost {RETRIES + 1} times, the last time by {type(LOST[kind]).__name__}"
    with pytest.raises(Unfinished, match=told):
        run(tmp_path / "run")
    assert fake.started.count("run_trial") == 6
    stand_in()
    assert run(tmp_path / "run") == here


def test_without_replay_the_base_session_is_there(stand_in, here, tmp_path):
    stand_in(lambda name: LOST["node"] if name == "recall" else None)
    with pytest.raises(Unfinished, match="4 of 6 jobs failed"):
        run(tmp_path / "run")
    assert lines(tmp_path / "run") == [line for line in here if line["trial"] is None]


def test_a_lost_node_is_said(stand_in, tmp_path, caplog, monkeypatch):
    fake = stand_in()
    monkeypatch.setattr(ray_executor, "BETWEEN", 0.0)

    def watch(tick: Tick) -> None:
        if tick.task == "whole study" and tick.done == 2:
            fake.alive = ["a"]

    with listening(watch):
        run(tmp_path / "run")
    messages = [record.getMessage() for record in caplog.records if "was lost" in record.getMessage()]
    assert messages == ["node b was lost; Ray repeats its tasks, at most 5 times"]


def test_progress_of_long_tasks_is_shown(stand_in, tmp_path, monkeypatch):
    fake = stand_in()
    monkeypatch.setattr(ray_executor, "BETWEEN", 0.0)
    heard: list[Tick] = []
    with listening(heard.append):
        run(tmp_path / "run", seconds=0.0)
    bars = [tick for tick in heard if tick.task.startswith("ProtoNet, seed 5: ")]
    assert bars and bars[-1].done == bars[-1].total
    assert not fake.store


def test_a_method_that_raises_is_not_tried_again(stand_in, tmp_path):
    class Broken:
        def fit_base(self, train: Any, *, rng: Any) -> Any:
            raise LookupError("nothing there")

    fake = stand_in()
    with pytest.raises(Unfinished, match=r"3 of 9 jobs failed: broken, .*LookupError: nothing there"):
        run(tmp_path / "run", own={"broken": lambda _: Broken()})
    assert fake.started.count("fit_base") == 2


def test_ray_itself_failing_is_a_sentence(stand_in, tmp_path, monkeypatch):
    fake = stand_in()

    def wait(references: list[Any], **_: Any) -> Any:
        raise exceptions.RaySystemError("the head is gone")

    monkeypatch.setattr(fake, "wait", wait)
    with pytest.raises(OSError, match=r"the head is gone.*run the same command again"):
        run(tmp_path / "run")


class Interrupted(InThisProcess):
    """Ctrl-C comes while Ray is asked, and Ray fails in one way or another while it is being left."""

    def __init__(self, *, stays: bool) -> None:
        super().__init__(lambda task: None)
        self.left: list[str] = []
        self.init = lambda *_, **__: SimpleNamespace(address_info={"address": "127.0.0.1:1"})
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address="127.0.0.1:1")
        self._raylet = SimpleNamespace(Config=SimpleNamespace(initialize=lambda _: None))
        self.is_initialized = lambda: stays

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        raise KeyboardInterrupt

    def cancel(self, reference: Any, **options: Any) -> None:
        assert not options, "by force Ray may end this process"
        self.left.append("cancel")
        raise ValueError("no such task")

    def shutdown(self) -> None:
        self.left.append("shutdown")
        raise ConnectionResetError("the raylet is gone")


@pytest.mark.parametrize("stays", [False, True], ids=["Ray of the run", "Ray of the caller"])
@pytest.mark.parametrize("where", [{"workers": 2}, {"cluster": "auto"}], ids=["local", "cluster"])
def test_ctrl_c_is_not_hidden_by_what_ray_raises_then(where, stays, monkeypatch, tmp_path):
    fake = Interrupted(stays=stays)
    monkeypatch.setattr(ray_executor, "import_extra", lambda *_, **__: fake)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "as it was")  # restored after the test
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), tmp_path / "run", executor=RayExecutor(**where))
    # Tasks end with a Ray that ends. Cancelled at that moment, one that is ready could end this process.
    assert set(fake.left) == ({"cancel"} if stays else {"shutdown"})


@pytest.mark.parametrize("n_timeouts", [2, 3])
def test_ray_that_starts_slowly_is_started_again(n_timeouts, monkeypatch, tmp_path):
    fake = Interrupted(stays=False)
    starts = iter([True] * n_timeouts + [False])

    def init(*_: Any, **settings: Any) -> Any:
        assert settings["num_cpus"] == 2
        if next(starts):
            raise Exception("The current node timed out during startup.\nMore of it.")
        return SimpleNamespace(address_info={"address": "127.0.0.1:1"})

    fake.init, fake.shutdown = init, lambda: fake.left.append("shutdown")
    monkeypatch.setattr(ray_executor, "import_extra", lambda *_, **__: fake)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "as it was")
    said = r"Ray did not start on this machine \(Exception: The current node timed out during startup\.\)"
    with pytest.raises(OSError, match=said) if n_timeouts == 3 else pytest.raises(KeyboardInterrupt):
        run_study(study(), tmp_path / "run", executor=RayExecutor(workers=2))
    assert fake.left == ["shutdown"] * (n_timeouts + 1) and os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("settings", "n_fit"), [((1, 0), 5), ((2, 0), 2), ((4, 0), 0), ((1, 0.5), 2), ((1, 2), 0)]
)
def test_workers_fit_on_nodes_not_on_their_sum(stand_in, settings, n_fit):
    fake = stand_in()
    has = [{"CPU": 3.0}, {"CPU": 2.0, "GPU": 1.0}]
    fake.nodes = lambda: [{"Alive": True, "NodeID": str(x), "Resources": x} for x in has] + [{"Alive": False}]
    assert ray_executor.capacity(*settings) == n_fit


def test_a_node_with_other_versions_is_named(stand_in, tmp_path, monkeypatch):
    fake = stand_in()
    fake.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
    prepared = ray_executor._prepared
    monkeypatch.setattr(
        ray_executor, "_prepared", lambda order, *made: prepared(replace(order, versions=("0", "1")), *made)
    )
    said = r"node 10.0.0.7 has anchorinv .* and torch .*, the run 0 and 1; install the same on all nodes"
    with pytest.raises(Unfinished, match=said):
        run(tmp_path / "run")

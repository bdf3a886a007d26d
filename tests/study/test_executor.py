"""The driver without a cluster: a stand-in for Ray computes at once, and loses what it is told to lose."""

import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from anchorinv.cluster import executor, library
from anchorinv.cluster.executor import RETRIES, RayExecutor
from anchorinv.study.config import Study
from anchorinv.study.execute import run_study
from anchorinv.study.work import Unfinished
from tests.study.little import lines, little

exceptions = pytest.importorskip(
    "ray.exceptions", reason="Ray is not installed; pip install 'anchorinv[cluster]'"
)

LOST = {
    "node": exceptions.NodeDiedError("the node is gone"),
    "worker": exceptions.WorkerCrashedError(),
    "memory": exceptions.OutOfMemoryError("too much"),
    "object": exceptions.ObjectLostError("00" * 28, None, ""),
    "actor": exceptions.ActorUnavailableError("not now", None),
}


class Reference:
    def __init__(self, value: Any) -> None:
        self.value = value


class InThisProcess:
    """Ray's functions as far as they are used; ``lose`` (task, number of its item) says what is lost."""

    def __init__(self, lose: Callable[[str, int], Exception | None]) -> None:
        self.exceptions, self._lose = exceptions, lose
        self.started: list[str] = []

    def put(self, value: Any) -> Any:
        return Reference(value)

    def get(self, reference: Any) -> Any:
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def wait(self, streams: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return streams, []

    def cancel(self, stream: Any, **_: Any) -> None:
        stream.close()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2}}]

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        def wrap(task: Any) -> Any:
            def items(*args: Any, **kwargs: Any) -> Iterator[Any]:
                self.started.append(task.__name__)
                # To its end at once: two tasks that run in one process at the same time share a generator.
                for number, item in enumerate(list(task(*args, **kwargs))):
                    if error := self._lose(task.__name__, number):
                        yield Reference(error)
                        return
                    yield Reference(pickle.loads(pickle.dumps(item)))  # as if it had travelled

            return SimpleNamespace(remote=items)

        return wrap


@pytest.fixture
def stand_in(monkeypatch) -> Callable[..., InThisProcess]:
    def install(lose: Callable[[str, int], Exception | None] = lambda task, number: None) -> InThisProcess:
        fake = InThisProcess(lose)
        monkeypatch.setattr(library, "needed", lambda *_, **__: fake)
        monkeypatch.setattr(executor, "connected", lambda _: nullcontext())
        monkeypatch.setattr(executor, "described", lambda _: "a stand-in")
        return fake

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


@pytest.mark.parametrize(
    ("task", "kind"), [("make_base", "node"), ("open_run", "node"), *(("run_trial", kind) for kind in LOST)]
)
def test_what_is_lost_is_computed_again_and_told(stand_in, here, tmp_path, caplog, task, kind):
    once = iter([LOST[kind]])
    fake = stand_in(lambda name, number: next(once, None) if name == task else None)
    undisturbed = {"make_base": 1, "open_run": 2, "run_trial": 4}
    assert run(tmp_path / "run") == here
    assert {each: fake.started.count(each) for each in undisturbed} == undisturbed | {
        task: undisturbed[task] + 1
    }
    told = [record.getMessage() for record in caplog.records if "was lost" in record.getMessage()]
    assert len(told) == 1 and type(LOST[kind]).__name__ in told[0] and "computed again, 1 of 5" in told[0]


def test_a_base_session_that_was_taken_in_is_not_computed_again(stand_in, here, tmp_path):
    """Its task was lost after it, while the replay was made."""
    once = iter([LOST["node"]])
    stand_in(lambda name, number: next(once, None) if name == "open_run" and number > 0 else None)
    assert run(tmp_path / "run") == here


def test_a_lost_training_goes_on_from_the_last_position(stand_in, here, tmp_path, caplog):
    once = iter([LOST["node"]])
    stand_in(lambda name, number: next(once, None) if name == "make_base" and number > 1 else None)
    caplog.set_level(logging.INFO)
    assert run(tmp_path / "run", seconds=0.0) == here
    assert sum("training goes on after" in record.getMessage() for record in caplog.records) == 1
    assert not list((tmp_path / "run" / "bases").glob("*.unfinished"))


def test_what_is_lost_all_the_time_is_given_up_and_the_others_finish(stand_in, here, tmp_path):
    fake = stand_in(lambda name, number: LOST["memory"] if name == "run_trial" else None)
    with pytest.raises(Unfinished, match=f"4 of 6 parts failed: .* lost {RETRIES + 1} times, .*OutOfMemory"):
        run(tmp_path / "run")
    assert fake.started.count("run_trial") == 4 * (RETRIES + 1)
    assert lines(tmp_path / "run") == [line for line in here if line["trial"] is None]


def test_a_method_that_raises_is_not_tried_again(stand_in, tmp_path):
    class Broken:
        def fit_base(self, train: Any, *, rng: Any) -> Any:
            raise LookupError("nothing there")

    fake = stand_in()
    with pytest.raises(Unfinished, match=r"3 of 9 parts failed: broken, .*LookupError: nothing there"):
        run(tmp_path / "run", own={"broken": lambda _: Broken()})
    assert fake.started.count("open_run") == 3


def test_ray_itself_failing_is_a_sentence(stand_in, tmp_path, monkeypatch):
    fake = stand_in()

    def wait(streams: list[Any], **_: Any) -> Any:
        raise exceptions.RaySystemError("the head is gone")

    monkeypatch.setattr(fake, "wait", wait)
    with pytest.raises(OSError, match=r"the head is gone.*run the same command again"):
        run(tmp_path / "run")

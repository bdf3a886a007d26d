"""A Ray of two nodes on this machine and runs on it; ``test_ray_cluster.py`` starts it in its own network.

``python -m tests.study.two_nodes FOLDER`` starts it, does the runs that need no process of their own, writes
what it saw to FOLDER/seen.json, says where the cluster is, and keeps it until its standard input ends.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from anchorinv.core.types import Curve, stream
from anchorinv.progress import Tick, listening
from anchorinv.study.execute import Unfinished, peak_mb, run_study
from anchorinv.study.ray_executor import RayExecutor
from tests.study.little import lines, little

PARTS = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@dataclass(frozen=True)
class Means:
    means: torch.Tensor
    classes: tuple[int, ...]
    n_base: int
    session: int = 0
    curves: tuple[Curve, ...] = ()


class Nearest:
    """A method of one's own: nearest mean power, with the number of threads as a fact."""

    def fit_base(self, train, *, rng):
        means = torch.stack([self.power(train.of(label).values).mean(0) for label in train.classes])
        return Means(means, train.classes, len(train.classes), 0, self.threads(0))

    def learn_session(self, state, session, *, rng):
        new = self.fit_base(session.train, rng=rng)
        means, classes = torch.cat([state.means, new.means]), state.classes + new.classes
        return Means(means, classes, state.n_base, session.index, self.threads(session.index))

    def predict(self, state, signals):
        return torch.tensor(state.classes)[torch.cdist(self.power(signals), state.means).argmin(1)]

    def power(self, signals):
        return signals.square().mean(2).log()

    def threads(self, session):
        return (Curve("threads", session, torch.tensor([float(torch.get_num_threads())])),)


class Waiting(Nearest):
    """Says on which node it is, and does not go on before the file ``killed`` is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def learn_session(self, state, session, *, rng):
        if not (self.folder / "killed").exists():
            (self.folder / f"at-{ray.get_runtime_context().get_node_id()}").touch()
        while not (self.folder / "killed").exists():
            threading.Event().wait(0.05)
        return super().learn_session(state, session, rng=rng)


class Broken(Nearest):
    """Fails in trial 1, always; or in the base session."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once

    def fit_base(self, train, *, rng):
        if self.at_once:
            raise KeyError("no base")
        return super().fit_base(train, rng=rng)

    def learn_session(self, state, session, *, rng):
        if rng.initial_seed() == stream(5, "trial", 1, 1).initial_seed():
            raise ZeroDivisionError("never in trial 1")
        return super().learn_session(state, session, rng=rng)


def killed_node(cluster: Cluster, node: Any, folder: Path) -> dict[str, Any]:
    """One of two nodes dies while trials run on it."""
    study = little(protocol={"trials": 4})
    own = {"waiting": lambda base_spec: Waiting(folder)}
    waiting_there = folder / f"at-{node.node_id}"
    at_kill: list[int] = []

    def watch(tick: Tick) -> None:
        if not at_kill and waiting_there.exists():
            cluster.remove_node(node, allow_graceful=False)
            (folder / "killed").touch()
            at_kill.append(tick.done)

    with listening(watch):
        run_study(study, folder / "cluster", own=own, executor=RayExecutor(cluster=cluster.address))
    run_study(study, folder / "here", own=own)
    # Ray computes lost tasks again long before it gives the node up; until then it counts its CPU.
    while sum(each["Alive"] for each in ray.nodes()) > 1:
        threading.Event().wait(0.05)
    return {"at_kill": at_kill, "of": len(lines(folder / "here"))}


def failing(address: str, folder: Path) -> dict[str, Any]:
    """A trial, and a base session, that always fail; then they do not."""
    study, run = little(methods=["protonet"]), folder / "failing"
    broken = {"broken": lambda _: Broken(), "worse": lambda _: Broken(at_once=True)}
    said = {}
    for where, executor in {"here": None, "cluster": RayExecutor(cluster=address)}.items():
        try:
            run_study(study, run if executor else folder / "failing-here", own=broken, executor=executor)
        except Unfinished as error:
            said[where] = str(error)
    found = lines(run)
    mended: Mapping[str, Any] = {"broken": lambda _: Nearest(), "worse": lambda _: Nearest()}
    run_study(study, run, own=mended, executor=RayExecutor(cluster=address))
    return {"said": said, "found": found}


def refused(address: str, folder: Path) -> str:
    lock = threading.Lock()  # nothing that could be sent
    try:
        run_study(
            little(methods=["protonet"]),
            folder / "refused",
            own={"mine": lambda _: (lock, Nearest())[1]},
            executor=RayExecutor(cluster=address),
        )
    except ValueError as error:
        return str(error)
    return ""


def too_large(address: str, folder: Path) -> str:
    try:
        run_study(little(), folder / "too-large", executor=RayExecutor(cluster=address, gpus=0.5))
    except ValueError as error:
        return str(error)
    return ""


def many_trials(address: str, folder: Path) -> list[float]:
    """The driver's memory after 10 and after 200 trials."""
    study, held = little(methods=["protonet"], protocol={"trials": 200, "sessions": [10]}), {}

    def watch(tick: Tick) -> None:
        if tick.task == "whole study":
            held[tick.done] = peak_mb()

    with listening(watch):
        run_study(study, folder / "many", executor=RayExecutor(cluster=address))
    return [held[10], held[200]]


def patiently(start: Callable[[], Any], attempts: int = 5) -> Any:
    """Start something of Ray's, which has half a minute for it: on a busy machine that may be too little."""
    try:
        return start()
    except Exception:
        if attempts == 1:
            raise
        return patiently(start, attempts - 1)


def main(folder: Path) -> None:
    head = {**PARTS, "include_dashboard": False}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    node = patiently(lambda: cluster.add_node(**PARTS))
    try:
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        address = cluster.address
        seen = {
            "killed": killed_node(cluster, node, folder),
            "failing": failing(address, folder),
            "refused": refused(address, folder),
            "too_large": too_large(address, folder),
            "many": many_trials(address, folder),
        }
        ray.shutdown()
        (folder / "seen.json").write_text(json.dumps(seen))
        print(address, flush=True)
        sys.stdin.read()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main(Path(sys.argv[1]))

"""A Ray to work on: one of this machine, started for the run, or an existing cluster."""

import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from anchorinv.cluster.library import ray

logger = logging.getLogger(__name__)

#: Sockets lie in Ray's folder, and the system allows 107 characters for their paths; Ray takes 70 of them.
_LONGEST = 16


@contextmanager
def local(n_cpus: int) -> Iterator[str]:
    """Start a Ray of this machine alone for the block, and give its address; nothing of it is left after."""
    # Nobody else on this machine may give it orders; those who have a token of their own keep it.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray()._raylet.Config.initialize("")  # it read its settings when it was imported
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else os.sep + "tmp"
    folder = tempfile.mkdtemp(prefix="anchorinv-", dir=where)
    heard, tell = os.pipe()
    # Ray sets OMP_NUM_THREADS in its workers to what a task asks for, unless it finds it set.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    # Ray lowers the priority of its workers so far that beside any other program they get next to nothing.
    environment.setdefault("RAY_worker_niceness", "0")
    command = [sys.executable, "-m", "anchorinv.cluster.supervisor", str(n_cpus), folder, str(tell)]
    with tempfile.TemporaryFile() as said:
        supervisor = subprocess.Popen(  # noqa: S603 (our own module)
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(tell,),
            start_new_session=True,  # so that a terminal's Ctrl-C comes to this process alone
        )
        try:
            os.close(tell)
            with os.fdopen(heard) as pipe:
                address = pipe.read()
            if not address:
                supervisor.wait()
                said.seek(0)
                words = said.read().decode(errors="replace").strip().splitlines() or ["nothing"]
                raise OSError(f"Ray did not start on this machine; its last words: {words[-1]}")
            yield address
        finally:
            assert supervisor.stdin is not None
            supervisor.stdin.close()
            supervisor.wait()


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster for the block; the cluster goes on after it."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is for Ray Client, which is not used here; start the command on a node of the "
            f"cluster, with --cluster auto"
        )
    if ray().is_initialized():  # somebody's connection, and theirs to end
        yield
        return
    try:
        _knock(address)
        ray().init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"no Ray cluster answers at {address} ({reason}); start one with 'ray start --head', and the "
            f"command on one of its nodes"
        ) from None
    try:
        yield
    finally:
        ray().shutdown()


def _knock(address: str) -> None:
    """Find out at once whether anybody is there; Ray would try for half a minute."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def capacity(threads: int, gpus: float) -> int:
    """Return how many workers of so many threads and GPUs the cluster has room for, node by node."""
    room = 0
    for node in ray().nodes():
        if node["Alive"]:
            there = node["Resources"]
            fit = int(there.get("CPU", 0) // threads)
            room += min(fit, int(there.get("GPU", 0) / gpus)) if gpus else fit
    return room


def described(address: str) -> str:
    """Say what a cluster is made of."""
    alive = [node for node in ray().nodes() if node["Alive"]]
    cpus, gpus = (sum(node["Resources"].get(name, 0) for node in alive) for name in ("CPU", "GPU"))
    with_gpus = f", {gpus:g} GPUs" if gpus else ""
    return f"Ray {ray().__version__} at {address}: {len(alive)} nodes, {cpus:g} CPUs{with_gpus}"

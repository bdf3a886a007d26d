"""A Ray to work on: one of this machine, started for the run, or an existing cluster.

``python -m anchorinv.study.ray_cluster CPUS FOLDER FD`` is the supervisor of a local Ray: a process of its
own, because Ray's processes outlive a killed driver by up to a minute. It writes Ray's address to the file
descriptor FD, waits for the end of its standard input, however that comes, and ends Ray.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anchorinv.errors import import_extra

#: Sockets lie in Ray's folder, and the system allows 107 characters for their paths; Ray takes 70 of them.
_LONGEST = 16


def ray() -> Any:
    """Return the library, which comes with the extra ``cluster``, or say how to get it."""
    # No usage statistics are sent; and a worker without a GPU keeps what it sees of them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("ray", extra="cluster")


@contextmanager
def local(n_cpus: int) -> Iterator[str]:
    """Start a Ray of this machine alone for the block, and give its address; nothing of it is left after."""
    # Nobody else on this machine may submit tasks; a token that is set already is kept.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray()._raylet.Config.initialize("")  # it read its settings when it was imported
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else os.sep + "tmp"
    folder = tempfile.mkdtemp(prefix="anchorinv-", dir=where)
    read_end, write_end = os.pipe()
    # Ray sets OMP_NUM_THREADS in its workers to what a task asks for, unless it finds it set.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    # Ray lowers the priority of its workers so far that beside any other program they get next to nothing.
    environment.setdefault("RAY_worker_niceness", "0")
    command = [sys.executable, "-m", __name__, str(n_cpus), folder, str(write_end)]
    with tempfile.TemporaryFile() as errors:
        supervisor = subprocess.Popen(  # noqa: S603 (our own module)
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(write_end,),
            start_new_session=True,  # so that a terminal's Ctrl-C comes to this process alone
        )
        try:
            os.close(write_end)
            with os.fdopen(read_end) as pipe:
                address = pipe.read()
            if not address:
                supervisor.wait()
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
                raise OSError(f"Ray did not start on this machine; its last words: {lines[-1]}")
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
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # Ray would try for half a minute
            socket.create_connection((host, int(port)), timeout=10).close()
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


def nodes() -> list[dict[str, Any]]:
    """Return the living nodes, as Ray describes them."""
    return [node for node in ray().nodes() if node["Alive"]]


def capacity(threads: int, gpus: float) -> int:
    """Return how many workers of so many threads and GPUs the cluster has room for, node by node."""
    room = 0
    for node in nodes():
        resources = node["Resources"]
        fit = int(resources.get("CPU", 0) // threads)
        room += min(fit, int(resources.get("GPU", 0) / gpus)) if gpus else fit
    return room


def described(address: str) -> str:
    """Return a line on what a cluster is made of."""
    alive = nodes()
    cpus, gpus = (sum(node["Resources"].get(name, 0) for node in alive) for name in ("CPU", "GPU"))
    with_gpus = f", {gpus:g} GPUs" if gpus else ""
    return f"Ray {ray().__version__} at {address}: {len(alive)} nodes, {cpus:g} CPUs{with_gpus}"


def supervise(n_cpus: int, folder: Path, address_to: int) -> None:
    """Start Ray on the loopback address, and end it when the standard input ends."""
    # Ctrl-C is for the starter, which ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.write(address_to, _start(n_cpus, folder, attempts=3).encode())
        os.close(address_to)
        sys.stdin.buffer.read()
    finally:
        ray().shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _start(n_cpus: int, folder: Path, *, attempts: int) -> str:
    """Start Ray and return its address; on a busy machine its parts may not find each other in their time."""
    try:
        context = ray().init(
            "local",
            num_cpus=n_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
        )
    except Exception:  # Ray raises no other kind when it runs out of time
        if attempts == 1:
            raise
        ray().shutdown()
        return _start(n_cpus, folder, attempts=attempts - 1)
    return str(context.address_info["address"])


if __name__ == "__main__":
    supervise(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

"""A Ray to work on: one of this machine, started for the run, or an existing cluster."""

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Start a Ray of this machine alone for the block, and give its address; it ends with this process."""
    if ray().is_initialized():  # somebody's, and theirs to end
        yield ray().get_runtime_context().gcs_address
        return
    # Nobody else on this machine may submit tasks; a token that is set already is kept.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray()._raylet.Config.initialize("")  # it read its settings when it was imported
    where = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else os.sep + "tmp"
    with tempfile.TemporaryDirectory(prefix="anchorinv-", dir=where, ignore_cleanup_errors=True) as folder:
        try:
            yield _start(n_cpus, folder, attempts=3)
        finally:
            ray().shutdown()


def _start(n_cpus: int, folder: str, *, attempts: int) -> str:
    """Start Ray and return its address; on a busy machine its processes may not find each other in time."""
    # Ray sets OMP_NUM_THREADS in its workers to what a task asks for, unless it finds it set.
    n_threads = os.environ.pop("OMP_NUM_THREADS", None)
    # Ray lowers the priority of its workers so far that beside any other program they get next to nothing.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        context = ray().init(
            "local",
            num_cpus=n_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
    except Exception as error:  # Ray raises no other kind when it runs out of time
        ray().shutdown()
        if attempts == 1:
            raise OSError(f"Ray did not start on this machine ({first_line(error)})") from None
        return _start(n_cpus, folder, attempts=attempts - 1)
    finally:
        if n_threads is not None:
            os.environ["OMP_NUM_THREADS"] = n_threads
    return str(context.address_info["address"])


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
        raise ValueError(
            f"no Ray cluster answers at {address} ({first_line(error)}); start one with 'ray start --head', "
            f"and the command on one of its nodes"
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


def device(asked: str, gpus: float) -> str:
    """Return where workers have their networks who are given so many GPUs each; auto takes what is given.

    Examples
    --------
    >>> device("auto", 0.5), device("auto", 0)
    ('cuda', 'cpu')
    """
    if asked == "auto":
        return "cuda" if gpus else "cpu"
    if asked.startswith("cuda:"):
        raise ValueError(f"a worker sees the GPU that it is given, and no other; say cuda, not {asked}")
    if asked == "cuda" and not gpus:
        raise ValueError(
            "workers are given no GPU; say with --gpus-per-worker how much of one each is given, as 0.5"
        )
    return asked


def described(address: str) -> str:
    """Return a line on what a cluster is made of."""
    alive = nodes()
    cpus, gpus = (sum(node["Resources"].get(name, 0) for node in alive) for name in ("CPU", "GPU"))
    with_gpus = f", {gpus:g} GPUs" if gpus else ""
    return f"Ray {ray().__version__} at {address}: {len(alive)} nodes, {cpus:g} CPUs{with_gpus}"


def first_line(error: Exception) -> str:
    """Return an error's kind and the first line of its message; Ray's have many."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])

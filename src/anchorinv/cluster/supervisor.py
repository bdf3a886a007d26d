"""Keeps a Ray of this machine alone as long as whoever started it lives.

A process of its own, because a process that is killed cannot clean up: this one notices that the pipe to its
starter has closed, and ends every process of that Ray, however the starter ended.

``python -m anchorinv.cluster.supervisor CPUS FOLDER FD`` writes Ray's address to the file descriptor FD and
waits for the end of its standard input.
"""

import logging
import os
import shutil
import signal
import sys
from pathlib import Path

from anchorinv.cluster.library import ray


def main(n_cpus: int, folder: Path, tell: int) -> None:
    """Start Ray on the loopback address, tell where it is, and end it when nobody listens any more."""
    # Ctrl-C is for the starter, which ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        os.write(tell, _started(n_cpus, folder, attempts=3).encode())
        os.close(tell)
        sys.stdin.buffer.read()
    finally:
        ray().shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _started(n_cpus: int, folder: Path, *, attempts: int) -> str:
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
        return _started(n_cpus, folder, attempts=attempts - 1)
    return str(context.address_info["address"])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

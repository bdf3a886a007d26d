"""Kill a node of a Ray cluster at a random moment of a run, many times, beside busy processes.

``python -m tests.campaigns.killed_nodes --rounds 20 --busy 4`` runs a study of twelve base seeds on two
nodes, one of which dies without a word, and compares its lines with those of one process. It needs the right
to make a network namespace, in which there is nothing but the loopback address.
"""

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


class Losses(logging.Handler):
    """Counts the nodes that the driver says were lost."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.nodes = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.nodes += "was lost" in record.getMessage()


def campaign(rounds: int, seed: int) -> int:
    """Run the rounds and return how many went wrong."""
    import ray
    from ray.cluster_utils import Cluster

    from anchorinv.study.execute import Unfinished, run_study
    from anchorinv.study.ray_executor import RayExecutor
    from tests.study.little import lines, little
    from tests.study.two_nodes import patiently

    draw, losses, wrong = random.Random(seed), Losses(), 0
    logging.getLogger("anchorinv.study.ray_executor").addHandler(losses)
    study = little(methods=["protonet", "anchorinv"], protocol={"seeds": list(range(1, 13)), "trials": 2})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_study(study, folder / "here")
        expected = lines(folder / "here")
        head = {**NODE, "include_dashboard": False}
        cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        ray.init(cluster.address, log_to_driver=False, logging_level="CRITICAL")
        longest = 30.0
        try:
            for number in range(1, rounds + 1):
                node = patiently(lambda: cluster.add_node(**NODE))
                began, at = time.monotonic(), draw.uniform(0, longest)
                kill = threading.Timer(at, cluster.remove_node, (node,), {"allow_graceful": False})
                kill.start()
                failed = ""
                try:
                    run_study(
                        study, folder / f"{number}", executor=RayExecutor(cluster=cluster.address), seconds=0
                    )
                except Unfinished as error:
                    failed = str(error)
                took = time.monotonic() - began
                kill.join()
                longest = min(longest if number > 1 else took, 0.8 * took)  # deaths are spread over a run
                same = lines(folder / f"{number}") == expected
                wrong += bool(failed) or not same
                print(
                    f"round {number}: killed after {at:.1f} of {took:.1f} s, lines "
                    f"{'equal' if same else 'DIFFER'} {failed}",
                    flush=True,
                )
        finally:
            ray.shutdown()
            cluster.shutdown()
    print(f"{rounds} rounds of {len(expected)} lines, {wrong} wrong; {losses.nodes} losses were noticed")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--busy", type=int, default=4, help="Processes that only keep the cores busy.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        sys.exit(bool(campaign(asked.rounds, asked.seed)))
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    environment["RAY_worker_niceness"] = "0"  # or the busy processes would leave workers next to nothing
    environment.pop("OMP_NUM_THREADS", None)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.busy)]
    try:
        command = [sys.executable, "-m", "tests.campaigns.killed_nodes", "--inside"]
        command += ["--rounds", str(asked.rounds), "--seed", str(asked.seed)]
        sys.exit(subprocess.run([*ALONE, *command], env=environment, check=False).returncode)
    finally:
        for each in busy:
            each.send_signal(signal.SIGKILL)
            each.wait()


if __name__ == "__main__":
    main()

"""Scores on a local cluster of two nodes, and kills a worker meanwhile. Prints the counts as JSON.

python -m tests.service.ray.two_nodes INPUT OUTPUT MODEL WINDOW_ROWS
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

from tests.service.files.killed import arguments, score_all


def kill_a_scorer(parts: Path, killed: list[int], over: threading.Event) -> None:
    """Kill a worker that is scoring, once the first part is there."""
    while not over.wait(0.02):
        if not any(parts.glob("*.part")):
            continue
        for process in psutil.Process().children(recursive=True):
            try:
                if "Scoring" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(process.pid)
                    return
            except psutil.NoSuchProcess:
                continue


def main(source: Path, output: Path, model: Path, window_rows: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        os.environ["RAY_ADDRESS"] = cluster.address
        killed: list[int] = []
        over = threading.Event()
        parts = output.with_name(output.name + ".parts")
        watch = threading.Thread(target=kill_a_scorer, args=(parts, killed, over), daemon=True)
        watch.start()
        summary = score_all(
            arguments(source, output, model, use_ray=True), lambda *_: None, window_rows=window_rows
        )
        over.set()
        watch.join()
    finally:
        cluster.shutdown()
    print(json.dumps({"rows": summary.rows, "rejects": summary.rejects, "killed": len(killed)}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), window_rows=int(sys.argv[4]))

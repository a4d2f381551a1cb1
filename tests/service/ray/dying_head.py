"""Kills the head of two nodes twice: a new one takes the cluster up, then none comes. Prints JSON.

The head has no CPU, as in deploy/kuberay/rayservice.yaml: the replica is on the worker. The requests go to
the worker's front.

python -m tests.service.ray.dying_head DIRECTORY MODEL OTHER_MODEL
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from headroom.loadtest.server import free_port
from tests.redis_server import redis_server
from tests.service.client import score
from tests.service.ray.real_nodes import (
    Load,
    Serving,
    config,
    connect,
    kill,
    options,
    ready,
    send,
    start_experiment,
    two_nodes,
    wait,
)
from tests.service.running import LIVE

PASSWORD = "k7Qm2vXw9"
AWAY_S = 3.0
"""How long there is no head at least."""
RECONNECT_S = 20
"""Seconds after which the worker gives up, if it finds no head. Ray's default is 60."""
EDITED = LIVE | {"masks": {"lower": "2.*", "more": "0.0"}}


class Nodes:
    """A head and a worker with the service.

    fronts: ports of their fronts. first, edited, other: configs; the last one has another model.
    """

    def __init__(self, directory: Path, model: Path, other: Path) -> None:
        self.fronts = (free_port(), free_port())
        self.worker = self.fronts[1]
        self.directory = directory
        self.head = {"num_cpus": 0, "gcs_server_port": free_port(), "redis_password": PASSWORD}
        common: dict[str, Any] = {"port": self.fronts[0], "num_cpus": 0.4, "ray_timeout_s": 2}
        self.first = config(directory, model, **common)
        self.edited = config(directory, model, live=EDITED, **common)
        self.other = config(directory, other, live=EDITED, **common)

    def new_head(self, cluster: Any) -> None:
        """Start a head in the place of the dead one: at the same address, with the same store."""
        cluster.head_node = None
        cluster.add_node(**options(self.directory / "head") | self.head)


def replaced(nodes: Nodes, cluster: Any) -> dict[str, Any]:
    """Kill the head and start another one; then edit, experiment and roll out another model."""
    disconnect()
    with Load(nodes.worker, clients=2, titles=2) as load:
        wait("loaded", lambda: len(load.answers) > 40)
        died = kill(cluster.head_node)
        started_away = start_experiment(nodes.worker)
        wait("away", lambda: time.monotonic() > died + AWAY_S)
        ready_away = ready(nodes.worker)
        nodes.new_head(cluster)
        back = time.monotonic()
        connect(cluster)
        serving = Serving(nodes.fronts, nodes.first)
        wait("taken up", lambda: serving.replicas() == 1 and ready(nodes.fronts[0]))
        taken_up = time.monotonic()
        serving.deploy(nodes.edited)
        wait("edited", lambda: len(load.seen()) == 2 and len(load.seen(last=40)) == 1)
        started = start_experiment(nodes.worker)
        assigned = send(nodes.worker, score(1, unit="user-1")).json["assignment"]
        serving.deploy(nodes.other)
        wait("rolled out", lambda: len(load.seen()) == 3 and len(load.seen(last=40)) == 1)
    return {
        **counts(load, died),
        "seen": load.seen(),
        "last": load.seen(last=40),
        "ready_away": ready_away,
        "started_away": started_away,
        "away_s": back - died,
        "taken_up_s": taken_up - died,
        "started": started,
        "assigned": assigned,
    }


def abandoned(nodes: Nodes, cluster: Any) -> dict[str, Any]:
    """Kill the head for good; return for how long the worker went on."""
    disconnect()
    with Load(nodes.worker, clients=2, titles=2) as load:
        wait("loaded", lambda: len(load.answers) > 40)
        died = kill(cluster.head_node)
        cluster.head_node = None
        wait("refused", lambda: load.seen(last=100) == ["0 b''"])
    answered = [at for at, answer in load.answers if answer.status == 200]
    served = [answer.status for at, answer in load.answers if at <= answered[-1]]
    return {"served_s": answered[-1] - died, "failed": len(served) - served.count(200)}


def disconnect() -> None:
    """Be no driver any longer: it would end with the head."""
    import ray

    ray.shutdown()


def counts(load: Load, since: float) -> dict[str, int]:
    """Return how many requests were answered since a time, and how many of them badly."""
    statuses = [answer.status for at, answer in load.answers if at > since]
    return {"answers": len(statuses), "failed": len(statuses) - statuses.count(200)}


def main(directory: Path, model: Path, other: Path) -> None:
    nodes = Nodes(directory, model, other)
    port = free_port()
    with redis_server(directory, port, "--requirepass", PASSWORD):
        os.environ |= {
            "RAY_REDIS_ADDRESS": f"127.0.0.1:{port}",
            "RAY_external_storage_namespace": "headroom",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # of this process; the worker has its own
        }
        worker = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)}
        with two_nodes(directory, nodes.fronts, head=nodes.head, **worker) as cluster:
            serving = Serving(nodes.fronts, nodes.first)
            serving.deploy(nodes.first)
            wait("ready", lambda: serving.replicas() == 1 and ready(nodes.worker))
            found = {"replaced": replaced(nodes, cluster), "abandoned": abandoned(nodes, cluster)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))

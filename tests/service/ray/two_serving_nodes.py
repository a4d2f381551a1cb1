"""Serves on two nodes while it scales, is updated, and loses a node. Prints JSON.

The network is that of `slow_network` until the update, the autoscaling is KubeRay's, and only the second node
was promised a GPU, which it does not have either.

python -m tests.service.ray.two_serving_nodes DIRECTORY MODEL OTHER_MODEL
"""

import asyncio
import contextlib
import json
import re
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import yaml

from headroom.loadtest.server import free_port
from headroom.service.observe.metric_files import render
from tests.service.client import request, score
from tests.service.metering import samples
from tests.service.ray.real_nodes import (
    Load,
    Serving,
    config,
    family,
    kill,
    ready,
    send,
    start_experiment,
    two_nodes,
    wait,
)
from tests.service.ray.slow_network import TOKENS_PER_SECOND
from tests.service.running import DEPLOY, LIVE, replicas_among

KUBERAY = DEPLOY.parent / "kuberay" / "rayservice.yaml"

TITLES = 40
FIRST_LOAD = 0.65
LAST_LOAD = 1.2
RISE_PER_S = 0.006
"""By how much the load rises in a second, in shares of what one replica does."""
LIGHT_LOAD = 0.2

GONE_FOR_S = 3.0
"""How long after the node's death the load goes on."""


def autoscaled(
    directory: Path, model: Path, *, minimum: int = 1, is_slow: bool = False, **more: Any
) -> dict[str, Any]:
    """Return a config with the shipped limits and one or two replicas, scaled as on KubeRay.

    minimum: of the replicas. is_slow: the network is that of `slow_network`.
    """
    document = config(directory, model, **more)
    application = document["applications"][0]
    if is_slow:
        application["import_path"] = "tests.service.ray.slow_network:build"
    for setting in ("device", "max_queue_s"):
        del application["args"][setting]
    service = next(yaml.safe_load_all(KUBERAY.read_text()))
    (shipped,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["deployments"]
    (deployment,) = application["deployments"]
    del deployment["num_replicas"]
    bounds = {"min_replicas": minimum, "max_replicas": 2, "downscale_delay_s": 1}
    deployment["autoscaling_config"] = shipped["autoscaling_config"] | bounds
    return document


class Ramp(Load):
    """Requests that come ever faster, and none of which waits for another, until the block ends.

    Then they come at the last load. first, last: shares of what one replica does. tokens: of a request.
    jump: come at the last load from now on. late_s: by how much a request was sent too late, at most: on a
    machine that does other work, too.
    """

    def __init__(self, port: int, *, first: float, last: float, tokens: int) -> None:
        super().__init__(port, clients=0, titles=TITLES)
        self._first = first
        self._last = last
        self._request_s = tokens / TOKENS_PER_SECOND
        self._began = time.monotonic()
        self._is_up = False
        self.late_s = 0.0

    def jump(self) -> None:
        self._is_up = True

    async def _run(self) -> None:
        next_at = self._began
        async with asyncio.TaskGroup() as requests:
            while not self._over.is_set():
                requests.create_task(self._send())
                risen = self._first + RISE_PER_S * (next_at - self._began)
                next_at += self._request_s / (self._last if self._is_up else min(self._last, risen))
                await asyncio.sleep(next_at - time.monotonic())
                self.late_s = max(self.late_s, time.monotonic() - next_at)


def counted(directory: Path) -> float:
    """Return the answered scores that a node has counted."""
    directory.mkdir(exist_ok=True)
    return samples(render(directory)).get('headroom_requests_total{route="/v1/score",status="200"}', 0.0)


def wait_for_answers(nodes: list[Path], number: int) -> None:
    """Wait until each node has counted so many more answered scores. nodes: their metrics directories."""
    before = [counted(node) for node in nodes]
    wait("spread", lambda: all(counted(n) >= b + number for n, b in zip(nodes, before, strict=True)))


def health_of_a_stopping_replica(directory: Path) -> str:
    """Return what the replica that stops tells HAProxy's health check."""
    told: list[str] = []

    def is_told() -> bool:
        known = next(directory.glob("memory/*/haproxy.cfg")).read_text()
        for port in set(re.findall(r":(\d+) check", known)):
            with contextlib.closing(HTTPConnection("127.0.0.1", int(port))) as connection:
                connection.request("GET", "/-/healthz")
                answer = connection.getresponse()
                if answer.status == 503:
                    told.append(answer.read().decode())
        return bool(told)

    wait("told", is_told)
    return told[0]


def scaled(serving: Serving, directory: Path) -> dict[str, Any]:
    """Load it ever more, until it has a replica on each node and both have answered; then, lightly, until one
    stops."""
    counts = [directory / "head", directory / "worker"]
    first = send(serving.head, score(TITLES))
    tokens = first.json["usage"]["tokens"]
    with Ramp(serving.head, first=FIRST_LOAD, last=LAST_LOAD, tokens=tokens) as ramp:
        wait("scaled up", lambda: serving.replicas() == 2)
        wait_for_answers(counts, 3)
        ramp.jump()
        wait_for_answers(counts, 20)
    statuses = [first.status, *(answer.status for _, answer in ramp.answers)]
    wait("counted", lambda: sum(map(counted, counts)) >= statuses.count(200))
    total = sum(map(counted, counts))
    wait("served by both fronts", lambda: ready(serving.worker))
    missing = [samples(render(count))["headroom_gpu_missing"] for count in counts]
    with Ramp(serving.head, first=LIGHT_LOAD, last=LIGHT_LOAD, tokens=tokens) as light:
        wait("scaled down", lambda: serving.replicas() == 1)
        stopping = health_of_a_stopping_replica(directory)
    return {
        "scaled_up": ramp.seen(),
        "scaled_down": light.seen(),
        "statuses": statuses,
        "late_s": ramp.late_s,
        "counted": total,
        "gpu_missing": missing,
        "stopping": stopping,
    }


def updated(serving: Serving, change: dict[str, Any]) -> list[str]:
    """Deploy a changed config under load; return what was answered meanwhile, until all answers are new."""
    with Load(serving.head, clients=2, titles=2) as load:
        wait("loaded", lambda: len(load.answers) > 20)
        serving.deploy(change)
        wait("updated", lambda: len(load.seen()) > 1 and len(load.seen(last=40)) == 1)
    return load.seen()


def refused(serving: Serving, worker: Any, document: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Deploy a variant whose checkpoint is missing, kill a replica, and correct the edit.

    directory: holds the nodes' metrics directories.
    Returns what was answered until the refusal and after the kill, what the state says, and what was answered
    when a right edit was deployed.
    """

    def number_refused() -> int:
        found = [samples(render(directory / node)) for node in ("head", "worker")]
        return sum(values.get("headroom_config_refused", 0.0) > 0 for values in found)

    # No old one stops any more.
    wait("two", lambda: serving.replicas() == len(replica_processes(worker)) == 2)
    (deployment,) = document["applications"][0]["deployments"]
    right = deployment["user_config"]
    new = {"name": "new", "checkpoint": str(directory / "missing")}
    deployment["user_config"] = right | {"variants": [*LIVE["variants"], new]}
    with Load(serving.head, clients=2, titles=1) as load:
        serving.deploy(document)
        wait("refused by both", lambda: number_refused() == 2)
    problem = send(serving.head, request("GET", "/health/ready")).json["problem"]
    with Load(serving.head, clients=2, titles=1) as after:
        replica_processes(worker)[1].kill()
        wait("gone", lambda: serving.replicas() == 1)
        wait("back", lambda: serving.replicas() == 2)
        seen = len(after.answers)
        wait("answered", lambda: len(after.answers) > seen + 40)
    fine = [answer for answer in after.seen() if answer.startswith("200 ")]
    deployment["user_config"] = right | {"variants": [*LIVE["variants"], {"name": "new"}]}
    corrected = updated(serving, document)
    wait("settled", lambda: number_refused() == 0)
    return {"refused": load.seen(), "problem": problem, "after_a_kill": fine, "corrected": corrected}


def replica_processes(worker: Any) -> list[psutil.Process]:
    """Return the replicas' processes, those of the second node last."""
    on_worker = family(worker)
    found = replicas_among(psutil.Process().children(recursive=True))
    return sorted(found, key=lambda each: each in on_worker)


def killed(serving: Serving, node: Any) -> dict[str, Any]:
    """Kill a node under load; return what the requests after that were answered."""
    wait("two", lambda: serving.replicas() == 2)
    assert replica_processes(node)[0] not in family(node), "no replica is on the other node"
    with Load(serving.head, clients=4, titles=10) as load:
        wait("loaded", lambda: len(load.answers) > 40)
        end = kill(node)
        wait("served", lambda: sum(at > end + GONE_FOR_S for at, _ in load.answers) > 40)
    after = [(at - end, answer.status) for at, answer in load.answers if at > end]
    failed = [at for at, status in after if status != 200]
    return {
        "answers": len(after),
        "failed": len(failed),
        "last_failure_s": max(failed, default=0.0),
        "statuses": sorted({status for _, status in after}),
        "at_the_end": sorted({status for _, status in after[-20:]}),
    }


def main(directory: Path, model: Path, other: Path) -> None:
    head = free_port()
    fronts = (head, free_port())
    with two_nodes(directory, fronts, NVIDIA_VISIBLE_DEVICES="all") as cluster:
        worker = next(iter(cluster.worker_nodes))
        first = autoscaled(directory, model, port=head, is_slow=True)
        serving = Serving(fronts, first)
        serving.deploy(first)
        wait("ready", lambda: serving.replicas() == 1 and ready(head))
        experiment = start_experiment(head)
        found = scaled(serving, directory)
        found["experiment"] = experiment
        live = {**LIVE, "masks": {"lower": "2.*", "more": "0.0"}}
        found["edited"] = updated(serving, autoscaled(directory, model, port=head, live=live, is_slow=True))
        # Each node has room for one new replica beside an old one, so both start before the old one stops.
        new = autoscaled(directory, other, port=head, live=live, num_cpus=0.4, minimum=2)
        found["updated"] = updated(serving, new)
        found["refused"] = refused(serving, worker, new, directory)
        found["killed"] = killed(serving, worker)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))

"""Serves on a local cluster of two nodes while it scales, is updated, and loses a node. Prints JSON.

First it tries an experiment in a SQLite file, which must be refused.

python -m tests.service.ray.two_serving_nodes DIRECTORY MODEL OTHER_MODEL

It is `serve deploy` without the REST server in between. Each node has a front and a metrics directory of its
own, as on two machines. Both have the same address here, so neither front knows which replicas are its own.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from headroom.loadtest.server import free_port
from headroom.service.observe.metric_files import render
from headroom.service.ray import environment
from tests.service.client import Answer, request, score, send_raw
from tests.service.metering import samples
from tests.service.running import DEPLOY, LIVE

PATIENCE_S = 400.0
"""For what must happen sooner or later; on a machine that runs other tests too, a start takes a minute."""

TOKENS_PER_REPLICA = 400
WITH_EXPERIMENT = LIVE | {
    "experiments": [
        {
            "name": "lower",
            "salt": "2026-11",
            "arms": [{"name": "control", "variant": "full"}, {"name": "lower", "variant": "masked"}],
        }
    ]
}
GONE_FOR_S = 3.0
"""How long after the node's death the load goes on."""


def config(
    model: Path, *, port: int, live: dict[str, Any] = LIVE, num_cpus: float = 0.6, least: int = 1
) -> dict[str, Any]:
    """Return deploy/serve.yaml, scaled by tokens. num_cpus: of a replica; a node has one."""
    document: dict[str, Any] = yaml.safe_load(DEPLOY.read_text())
    document["http_options"]["port"] = port
    application = document["applications"][0]
    application["args"] = {"model": str(model), "device": "cpu", "max_queue_s": 60}
    deployment = application["deployments"][0]
    del deployment["ray_actor_options"]["runtime_env"]  # the metrics directory is each node's own here
    deployment["user_config"] = live
    deployment["ray_actor_options"]["num_cpus"] = num_cpus
    deployment["max_surge_percent"] = 100
    deployment["autoscaling_config"] = {
        "min_replicas": least,
        "max_replicas": 2,
        "upscale_delay_s": 0,
        "downscale_delay_s": 1,
        "look_back_period_s": 1,
        "policy": {
            "policy_function": "headroom.service.ray.autoscaling:ByTokens",
            "policy_kwargs": {"tokens_per_replica": TOKENS_PER_REPLICA},
        },
    }
    return document


class Load:
    """Clients that send one request after the other, until the block ends. answers: with the time of each."""

    def __init__(self, port: int, clients: int, titles: int) -> None:
        self.answers: list[tuple[float, Answer]] = []
        self._port, self._clients, self._titles = port, clients, titles
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        async def client() -> None:
            while not self._over.is_set():
                answer = await send_raw(self._port, score(self._titles), timeout_s=PATIENCE_S)
                self.answers.append((time.monotonic(), answer))
                await asyncio.sleep(0.01)

        await asyncio.gather(*(client() for _ in range(self._clients)))

    def seen(self, last: int | None = None) -> list[str]:
        """Return the statuses, models and config versions of the answers (the last ones), each once."""
        answers = [answer for _, answer in self.answers]
        if last is not None:
            answers = answers[-last:] if len(answers) >= last else []
        return sorted({_described(answer) for answer in answers})


def _described(answer: Answer) -> str:
    if answer.status != 200:
        return f"{answer.status} {answer.body[:300]!r}"
    return f"200 {answer.json['model']} {answer.headers['x-config-version']}"


def ready(port: int) -> bool:
    return asyncio.run(send_raw(port, request("GET", "/health/ready"))).status == 200


def counted(directory: Path) -> float:
    """Return the answered scores that a node has counted."""
    directory.mkdir(exist_ok=True)
    return samples(render(directory)).get('headroom_requests_total{route="/v1/score",status="200"}', 0.0)


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


def wait(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not {what} within {PATIENCE_S:g} s")
        time.sleep(0.05)


@contextlib.contextmanager
def two_nodes(directory: Path, fronts: tuple[int, int]) -> Iterator[Any]:
    """Start two nodes with one CPU each; yield the cluster, connected to it."""
    environment.prepare(directory, request_timeout_s=10)
    os.environ |= {
        "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(fronts[1]),  # two nodes of one machine cannot share a port
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # Serve's default is 30
        "RAY_worker_niceness": "0",  # by default other tests come first
        "RAY_raylet_start_wait_time_s": str(int(PATIENCE_S)),
    }
    import ray
    from ray.cluster_utils import Cluster

    options = {
        "wait": False,
        "num_cpus": 1,
        "object_store_memory": 80 * 1024 * 1024,
        "include_dashboard": False,
    }
    nodes = [
        options | {"env_vars": {"PROMETHEUS_MULTIPROC_DIR": str(directory / name)}}
        for name in ("head", "worker")
    ]
    cluster = Cluster(initialize_head=True, head_node_args=nodes[0])
    try:
        cluster.add_node(**nodes[1])
        ray.init(address=cluster.address, log_to_driver=False)
        wait("connected", lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def family(node: Any) -> list[psutil.Process]:
    """Return the processes of a node."""
    roots = [psutil.Process(found[0].process.pid) for found in node.all_processes.values()]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


class Serving:
    """The service on the two nodes. head, worker: ports of their fronts. counts: their metrics."""

    def __init__(self, directory: Path, head: int, worker: int, first: dict[str, Any]) -> None:
        from ray.serve._private.api import serve_start
        from ray.serve.schema import ServeDeploySchema

        self.head, self.worker = head, worker
        self.counts = directory / "head", directory / "worker"
        self._schema: Any = ServeDeploySchema
        schema = ServeDeploySchema.model_validate(first)
        self._client: Any = serve_start(
            http_options=schema.http_options.model_dump(),
            proxy_location=schema.proxy_location,
            global_logging_config=schema.logging_config,
        )
        self.deploy(first)

    def refusal(self) -> str:
        """Wait until Serve has given up on what was deployed, and return what it says."""
        from ray import serve

        def application() -> Any:
            return serve.status().applications.get("headroom")

        wait("refused", lambda: getattr(application(), "status", None) == "DEPLOY_FAILED")
        return "\n".join(found.message for found in application().deployments.values())

    def deploy(self, document: dict[str, Any]) -> None:
        self._client.deploy_apps(self._schema.model_validate(document))

    def replicas(self) -> int:
        """Return the number of replicas that serve."""
        from ray import serve

        application = serve.status().applications.get("headroom")
        deployments = application.deployments.values() if application is not None else ()
        return sum(found.replica_states.get("RUNNING", 0) for found in deployments)


def scaled(serving: Serving) -> dict[str, Any]:
    """Load it until it has a replica on each node and both have answered; then, lightly, until one stops."""
    counts = serving.counts
    with Load(serving.head, clients=12, titles=40) as load:
        wait("scaled up", lambda: serving.replicas() == 2)
        before = [counted(count) for count in counts]
        wait("spread", lambda: all(counted(c) > b + 20 for c, b in zip(counts, before, strict=True)))
    wait("counted", lambda: sum(map(counted, counts)) >= len(load.answers))
    total = sum(map(counted, counts))
    wait("served by both fronts", lambda: ready(serving.worker))
    with Load(serving.head, clients=2, titles=1) as light:
        wait("scaled down", lambda: serving.replicas() == 1)
        stopping = health_of_a_stopping_replica(counts[0].parent)
    return {
        "scaled_up": load.seen(),
        "scaled_down": light.seen(),
        "answered": len(load.answers),
        "counted": total,
        "stopping": stopping,
    }


def updated(serving: Serving, change: dict[str, Any]) -> list[str]:
    """Deploy a changed config under load; return what was answered meanwhile, until all answers are new."""
    with Load(serving.head, clients=2, titles=2) as load:
        wait("loaded", lambda: len(load.answers) > 20)
        serving.deploy(change)
        wait("updated", lambda: len(load.seen()) > 1 and len(load.seen(last=40)) == 1)
    return load.seen()


def killed(serving: Serving, node: Any) -> dict[str, Any]:
    """Kill a node under load; return what the requests after that were answered."""
    wait("two", lambda: serving.replicas() == 2)
    with Load(serving.head, clients=4, titles=10) as load:
        wait("loaded", lambda: len(load.answers) > 40)
        for process in family(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        end = time.monotonic()
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
    head, worker = free_port(), free_port()
    with two_nodes(directory, (head, worker)) as cluster:
        serving = Serving(directory, head, worker, config(model, port=head, live=WITH_EXPERIMENT))
        refusal = serving.refusal()
        serving.deploy(config(model, port=head))
        wait("ready", lambda: serving.replicas() == 1 and ready(head))
        found = scaled(serving)
        found["refused"] = refusal
        live = {**LIVE, "masks": {"lower": "2.*", "more": "0.0"}}
        found["edited"] = updated(serving, config(model, port=head, live=live))
        # Each node has room for one new replica beside an old one, so both start before the old one stops.
        new = config(other, port=head, live=live, num_cpus=0.4, least=2)
        found["updated"] = updated(serving, new)
        found["killed"] = killed(serving, next(iter(cluster.worker_nodes)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))

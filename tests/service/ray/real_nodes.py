"""Two real Ray nodes and the service on them, for scripts that each try one story and print what they saw.

It is `serve deploy` without the REST server in between. Each node has a front and a metrics directory of its
own, as on two machines. Both have the same address here, so neither front knows which replicas are its own.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from headroom.models.checkpoint.hub import LOCATED
from headroom.service.ray import environment
from tests.service.client import Answer, request, score, send_raw
from tests.service.running import DEPLOY, LEAN, LIVE, lean_path

PATIENCE_S = 400.0
"""For what must happen sooner or later; on a machine that runs other tests too, a start takes a minute."""

POLL_S = 0.2
"""Between two looks; one at Serve's state takes the controller some milliseconds."""

PAUSE_S = 0.03
"""Between a client's requests."""

ROOT = DEPLOY.parents[1]

ADMIN = "Tz4Rb8Yc1"
"""The only API key."""

EXPERIMENT = {
    "name": "lower",
    "salt": "2026-11",
    "arms": [{"name": "control", "variant": "full"}, {"name": "lower", "variant": "masked"}],
}


def story(script: str, *arguments: Path | str) -> dict[str, Any]:
    """Run a script of this folder, and return the JSON of its last line.

    It is a process of its own: Ray reads the environment once, when it is imported.
    """
    with tempfile.TemporaryDirectory(prefix="two-") as directory:  # short: Unix sockets go into it
        done = subprocess.run(
            [sys.executable, "-m", f"tests.service.ray.{script}", directory, *arguments],
            capture_output=True,
            text=True,
            timeout=1500,
            cwd=Path(__file__).parents[3],
            env=os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONPATH": lean_path()},  # warnings: Ray's own
        )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def config(
    directory: Path,
    model: Path,
    *,
    port: int,
    live: Mapping[str, Any] = LIVE,
    num_cpus: float = 0.6,
    **arguments: Any,
) -> dict[str, Any]:
    """Return deploy/serve.yaml with one replica, and the experiments in a SQLite file of the directory.

    num_cpus: of a replica; a node has one. arguments: more of `args`.
    """
    document: dict[str, Any] = yaml.safe_load(DEPLOY.read_text())
    document["http_options"]["port"] = port
    application = document["applications"][0]
    application["args"] = {
        "model": str(model),
        "device": "cpu",
        "max_queue_s": 60,
        "api_keys": f"{ADMIN};role=admin",
        "database_url": f"sqlite:///{directory / 'experiments.db'}",
        **arguments,
    }
    deployment = application["deployments"][0]
    del deployment["ray_actor_options"]["runtime_env"]  # the metrics directory is each node's own here
    deployment["user_config"] = live
    deployment["ray_actor_options"]["num_cpus"] = num_cpus
    deployment["num_replicas"] = 1
    deployment["max_surge_percent"] = 100
    return document


def send(port: int, data: bytes) -> Answer:
    """Send one request with the key."""
    return asyncio.run(send_raw(port, with_key(data)))


def with_key(data: bytes) -> bytes:
    """Return a request with the key."""
    return data.replace(b"\r\n", f"\r\nauthorization: Bearer {ADMIN}\r\n".encode(), 1)


def start_experiment(port: int) -> dict[str, Any]:
    """Start an experiment that is in no config; return the answer's status and body."""
    answer = send(port, request("POST", "/v1/experiments", json.dumps(EXPERIMENT).encode()))
    return {"status": answer.status, "body": answer.json}


class Load:
    """Clients that send one request after the other, until the block ends. answers: with the time of each.

    They pause in between, since what they wait for, such as a replica that starts, needs the cores too.
    """

    def __init__(self, port: int, clients: int, titles: int) -> None:
        self.answers: list[tuple[float, Answer]] = []
        self._port = port
        self._clients = clients
        self._data = with_key(score(titles))
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
                await self._send()
                await asyncio.sleep(PAUSE_S)

        await asyncio.gather(*(client() for _ in range(self._clients)))

    async def _send(self) -> None:
        answer = await send_raw(self._port, self._data, timeout_s=PATIENCE_S)
        self.answers.append((time.monotonic(), answer))

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


def wait(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not {what} within {PATIENCE_S:g} s")
        time.sleep(POLL_S)


@contextlib.contextmanager
def two_nodes(
    directory: Path, fronts: tuple[int, int], *, head: Mapping[str, Any] = {}, **variables: str
) -> Iterator[Any]:
    """Start two nodes with one CPU each; yield the cluster, connected to it.

    head: options of the head alone. variables: the worker's.
    """
    environment.prepare(directory, request_timeout_s=PATIENCE_S)
    del os.environ[LOCATED]  # no `headroom serve` asks the replicas before an edit
    os.environ |= {
        "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(fronts[1]),  # two nodes of one machine cannot share a port
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # Serve's default is 30
        "RAY_raylet_start_wait_time_s": str(int(PATIENCE_S)),
        "PYTHONPATH": os.pathsep.join((str(LEAN), str(ROOT))),  # ROOT: for slow_network
        "CUDA_VISIBLE_DEVICES": "",
    }
    import ray
    from ray.cluster_utils import Cluster

    from headroom.service.ray import patches

    patches.leave_out_idle_programs()
    cluster = Cluster(initialize_head=True, head_node_args=options(directory / "head") | head)
    try:
        cluster.add_node(**options(directory / "worker", **variables))
        connect(cluster)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def options(metrics: Path, **variables: str) -> dict[str, Any]:
    """Return Ray's options of a node. variables: its environment, beside this process's."""
    return {
        "wait": False,
        "num_cpus": 1,
        "object_store_memory": 80 * 1024 * 1024,
        "include_dashboard": False,
        "env_vars": {"PROMETHEUS_MULTIPROC_DIR": str(metrics)} | variables,
    }


def connect(cluster: Any) -> None:
    """Make this process a driver of the cluster, which ends with its head. Wait for two nodes."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    wait("connected", lambda: sum(node["Alive"] for node in ray.nodes()) == 2)


def kill(node: Any) -> float:
    """Kill all processes of a node at once; return when they were dead."""
    for process in family(node):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return time.monotonic()


def family(node: Any) -> list[psutil.Process]:
    """Return the processes of a node."""
    roots = [psutil.Process(found[0].process.pid) for found in node.all_processes.values()]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


class Serving:
    """Serve on the two nodes; it is started if it does not run.

    head, worker: ports of the nodes' fronts. document: a Serve config.
    """

    def __init__(self, fronts: tuple[int, int], document: dict[str, Any]) -> None:
        from ray.serve.schema import ServeDeploySchema

        from headroom.service.ray import patches

        self.head, self.worker = fronts
        self._schema: Any = ServeDeploySchema
        self._client = patches.start_serve(ServeDeploySchema.model_validate(document))

    def deploy(self, document: dict[str, Any]) -> None:
        self._client.deploy_apps(self._schema.model_validate(document))

    def replicas(self) -> int:
        """Return the number of replicas that serve."""
        from ray import serve

        application = serve.status().applications.get("headroom")
        deployments = application.deployments.values() if application is not None else ()
        return sum(found.replica_states.get("RUNNING", 0) for found in deployments)

"""Builds the CPU image, starts it as deploy/ does, asks what it must hold and do, and stops it.

python -m tests.deploy.try_image [ARGUMENT OF docker build …]

This is `make images`. The containers have no network: what is asked is asked from inside, by the image's own
Python.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import yaml

from deploy.image import Engine, build, engine_here, tag
from headroom.models.ops.kernel_build import levels_of_machine
from headroom.service.ray import cluster_variables
from headroom.version import ROOT, version

PATIENCE_S = 300.0
KEY = "k7Qm2vXw9"
CONFINED = (
    "--read-only --cap-drop ALL --security-opt no-new-privileges --network none --shm-size 256m"
    " --tmpfs /tmp:exec,mode=1777 --volume /var/lib/headroom"
).split()

ASK = """
import json, sys, urllib.error, urllib.request
method, url, body, token = json.load(sys.stdin)
headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
data = None if body is None else json.dumps(body).encode()
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=120)
except urllib.error.HTTPError as error:
    answer = error
except OSError as error:
    sys.exit(print(json.dumps([0, str(error)])))
print(json.dumps([answer.status, answer.read().decode()]))
"""
WAIT_UNTIL_BUSY = """
import sys, time, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"authorization": f"Bearer {sys.argv[2]}"})
for _ in range(1000):
    if b"headroom_in_flight_pairs 0" not in urllib.request.urlopen(request).read():
        sys.exit(print("busy"))
    time.sleep(0.02)
"""
PACKAGES = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
KERNELS = """
from headroom.models.ops.kernel_build import library_of
from headroom.models.ops.kernel_build import levels_of_machine
print(*[level.name for level in levels_of_machine() if library_of(level)])
"""


class Container:
    """A container that runs until the block of `started` ends."""

    def __init__(self, engine: Engine, image: str, identity: str) -> None:
        self._engine = engine
        self._image = image
        self._id = identity

    def output(self, *command: str, stdin: str = "") -> str:
        whole = [*self._engine.command, "exec", "--interactive", self._id, *command]
        return subprocess.run(
            whole, input=stdin, stdout=subprocess.PIPE, text=True, check=False
        ).stdout.strip()

    def ask(self, method: str, url: str, body: Any = None, token: str = KEY) -> tuple[int, str]:
        """Return status and body; status 0 if nothing answered."""
        status, text = json.loads(
            self.output("python", "-c", ASK, stdin=json.dumps([method, url, body, token]))
        )
        return status, text

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._engine("inspect", "--format", "{{json .State}}", self._id))
        return found

    def is_healthy(self) -> bool:
        """Run the image's health check once."""
        (image,) = json.loads(self._engine("image", "inspect", self._image))
        health = image["Config"].get("Healthcheck") or image["Healthcheck"]  # Docker's place, and Podman's
        command = [*self._engine.command, "exec", self._id, *health["Test"][1:]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def logs(self) -> list[str]:
        """Return the lines of its standard output."""
        return self._engine("logs", self._id).splitlines()

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if not self.state()["Running"] or time.monotonic() > deadline:
                raise SystemExit(f"not {what}")
            time.sleep(0.5)

    def stop(self) -> int:
        self._engine("stop", "--time", "60", self._id)
        status: int = self.state()["ExitCode"]
        return status


@contextmanager
def started(engine: Engine, image: str, *options: str, command: tuple[str, ...] = ()) -> Iterator[Container]:
    identity = engine("run", "--detach", *CONFINED, *engine.run_options, *options, image, *command)
    try:
        yield Container(engine, image, identity)
    except SystemExit:
        subprocess.run([*engine.command, "logs", "--tail", "50", identity], check=False)
        raise
    finally:
        remove = [*engine.command, "rm", "--force", "--volumes", identity]
        subprocess.run(remove, stdout=subprocess.DEVNULL, check=False)


def check(what: str, seen: object, wanted: object) -> None:
    if seen != wanted:
        raise SystemExit(f"{what}: {seen!r}, not {wanted!r}")
    print(f"{what}: {seen!r}", flush=True)


def some_seconds_of_work(container: Container, base: str) -> dict[str, Any]:
    """Return a request that takes some seconds on this machine: less than the drain timeout on a slow one."""
    title = "a steel angle bracket for decks " * 30
    body = {"query": "angle bracket", "titles": [title] * 64}
    since = time.monotonic()
    check("64 long titles", container.ask("POST", f"{base}/v1/score", body)[0], 200)
    titles = int(64 * 5 / (time.monotonic() - since))
    return body | {"titles": [title] * max(1, min(titles, 1000))}


def serve(engine: Engine, image: str) -> None:
    """The image's own command: `headroom serve` as process 1's child."""
    base = "http://127.0.0.1:8000"
    with started(engine, image, "--env", f"HEADROOM_API_KEYS={KEY}") as container:
        container.wait("healthy", container.is_healthy)
        check("user", container.output("id", "-u"), "10001")
        check("compilers", container.output("sh", "-c", "command -v g++ gcc cc"), "")
        names = container.output("python", "-c", PACKAGES).split()
        check("CUDA's packages", [name for name in names if name.startswith(("nvidia", "triton"))], [])
        write = "cd $1 && touch x 2>/dev/null && echo written"
        places = ("/app", "/opt/venv", "/var/lib/headroom")
        wrote = [place for place in places if container.output("sh", "-c", write, "sh", place)]
        check("what it could write to", wrote, ["/var/lib/headroom"])
        check("without a key", container.ask("GET", f"{base}/v1/models", token="another")[0], 401)
        wanted = " ".join(level.name for level in levels_of_machine())
        check("kernels", container.output("python", "-c", KERNELS), wanted)
        models = json.loads(container.ask("GET", f"{base}/v1/models")[1])["models"]
        check("kernels that could not be used", models[0]["kernels_skipped"], [])
        check("the sample", "test.jsonl.gz" in container.output("ls", "data/sample").split(), True)
        notices = container.output("cat", "THIRD-PARTY-NOTICES.txt")
        check("packages that the notices lack", [name for name in names if f"\n{name}\n" not in notices], [])
        check("the offer of HAProxy's source", "GNU GENERAL PUBLIC LICENSE" in notices, True)
        check("usage", container.output("headroom", "--help").startswith("Usage: headroom"), True)
        line = json.loads(container.output("headroom", "score", "angle bracket", "Steel angle", "--json"))
        check("title of `headroom score`", line["title"], "Steel angle")
        status, text = container.ask(
            "POST", f"{base}/v1/score", {"query": "angle bracket", "titles": ["Steel angle"]}
        )
        check("score", (status, len(json.loads(text)["results"])), (200, 1))
        body = some_seconds_of_work(container, base)
        with ThreadPoolExecutor() as pool:
            long = pool.submit(container.ask, "POST", f"{base}/v1/score", body)
            state = container.output("python", "-c", WAIT_UNTIL_BUSY, f"{base}/metrics", KEY)
            check("state at SIGTERM", state, "busy")
            check("exit status after SIGTERM", container.stop(), 0)
            check("the request that was in flight", long.result()[0], 200)


def kuberay() -> tuple[dict[str, Any], dict[str, str]]:
    """KubeRay's config for Serve, with one replica, and the environment of its pods."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kuberay" / "rayservice.yaml").read_text("utf-8"))
    given = {document["kind"]: document for document in documents}
    config: dict[str, Any] = yaml.safe_load(given["RayService"]["spec"]["serveConfigV2"])
    for deployment in config["applications"][0]["deployments"]:
        deployment.pop("autoscaling_config", None)  # Serve does not take it beside num_replicas
        deployment["num_replicas"] = 1
    config["applications"][0]["args"] = {"access_log": "json"}
    return config, dict(cluster_variables.variables())


def ray_node(engine: Engine, image: str) -> None:
    """A node of KubeRay's cluster, started and configured as the operator does it."""
    document, config = kuberay()
    variables = config | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "t" * 64,
        "HEADROOM_API_KEYS": KEY,
    }
    options = [part for name, value in variables.items() for part in ("--env", f"{name}={value}")]
    command = "ray start --head --block --dashboard-host=0.0.0.0 --dashboard-agent-listen-port=52365"
    with started(engine, image, "--entrypoint", "/bin/bash", *options, command=("-c", "--", command)) as node:
        health = "http://127.0.0.1:52365/api/healthz"
        node.wait("up", lambda: node.ask("GET", health, token="")[0] == 200)
        url = "http://127.0.0.1:8265/api/serve/applications/"
        check("a config with another token than Ray's", node.ask("PUT", url, document, token="no")[0], 403)
        check("the config with it", node.ask("PUT", url, document, token="t" * 64)[0], 200)
        node.wait("ready", lambda: node.ask("GET", "http://127.0.0.1:8000/health/ready")[0] == 200)
        check("the proxy's health", node.ask("GET", "http://127.0.0.1:8000/-/healthz")[0], 200)
        body = {"query": "angle bracket", "titles": ["Steel angle"]}
        check("score", node.ask("POST", "http://127.0.0.1:8000/v1/score", body)[0], 200)
        check("without a key", node.ask("POST", "http://127.0.0.1:8000/v1/score", body, token="no")[0], 401)
        written = [json.loads(line) for line in node.logs() if '"path": "/v1/score"' in line]
        check("scores in the container's output", [line["status"] for line in written], [200, 401])
        check("an answer in our error shape", "error" in node.ask("GET", "http://127.0.0.1:8000/no")[1], True)


if __name__ == "__main__":
    engine = engine_here()
    image = build(engine, sys.argv[1:])
    serve(engine, image)
    ray_node(engine, image)
    engine("tag", image, tag(version()))
    print(f"{tag(version())} is {image}")

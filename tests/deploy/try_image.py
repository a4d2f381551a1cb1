"""Starts an image as deploy/ does, asks what it must hold and do, and stops it.

python -m tests.deploy.try_image IMAGE

It needs a Docker daemon, so it is no part of `make test`; `make images` builds the image and runs it. The
containers have no network: what is asked is asked from inside, by the image's own Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 300.0
KEY = "k7Qm2vXw9"
CONFINED = (
    "--read-only --cap-drop ALL --security-opt no-new-privileges --network none --shm-size 256m"
    " --tmpfs /tmp:exec,mode=1777 --volume /var/lib/headroom"
).split()

ASK = """
import json, sys, urllib.error, urllib.request
method, url, body, token = json.loads(sys.argv[1])
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
PACKAGES = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"


def docker(*command: str) -> str:
    done = subprocess.run(["docker", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"docker {' '.join(command)[:200]}: {done.stderr}")
    return done.stdout.strip()


class Container:
    """A container that runs until the block of `started` ends."""

    def __init__(self, identity: str) -> None:
        self._id = identity

    def run(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(["docker", "exec", self._id, *command], stdout=subprocess.PIPE, text=True)

    def output(self, *command: str) -> str:
        return self.run(*command).communicate()[0].strip()

    def asking(self, method: str, url: str, body: Any = None, token: str = KEY) -> subprocess.Popen[str]:
        return self.run("python", "-c", ASK, json.dumps([method, url, body, token]))

    def ask(self, method: str, url: str, body: Any = None, token: str = KEY) -> tuple[int, str]:
        """Return status and body; status 0 if nothing answered."""
        status, text = json.loads(self.asking(method, url, body, token).communicate()[0])
        return status, text

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", "--format", "{{json .State}}", self._id))
        return found

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if not self.state()["Running"] or time.monotonic() > deadline:
                raise SystemExit(f"not {what}:\n{docker('logs', '--tail', '50', self._id)}")
            time.sleep(0.5)

    def stop(self) -> int:
        docker("stop", "--time", "60", self._id)
        status: int = self.state()["ExitCode"]
        return status


@contextmanager
def started(image: str, *options: str, command: tuple[str, ...] = ()) -> Iterator[Container]:
    identity = docker("run", "--detach", *CONFINED, *options, image, *command)
    try:
        yield Container(identity)
    finally:
        docker("rm", "--force", "--volumes", identity)


def check(what: str, seen: object, wanted: object) -> None:
    if seen != wanted:
        raise SystemExit(f"{what}: {seen!r}, not {wanted!r}")
    print(f"{what}: {seen!r}", flush=True)


def serve(image: str) -> None:
    """The image's own command: `headroom serve` as process 1's child."""
    base = "http://127.0.0.1:8000"
    with started(image, "--env", f"HEADROOM_API_KEYS={KEY}") as container:
        container.wait("healthy", lambda: container.state()["Health"]["Status"] == "healthy")
        check("user", container.output("id", "-u"), "10001")
        check("compilers", container.output("sh", "-c", "command -v g++ gcc cc"), "")
        names = container.output("python", "-c", PACKAGES).split()
        if "cpu" in image:
            check("CUDA's packages", [name for name in names if name.startswith(("nvidia", "triton"))], [])
        write = "cd $1 && touch x 2>/dev/null && echo written"
        places = ("/app", "/opt/venv", "/var/lib/headroom")
        wrote = [place for place in places if container.output("sh", "-c", write, "sh", place)]
        check("what it could write to", wrote, ["/var/lib/headroom"])
        check("without a key", container.ask("GET", f"{base}/v1/models", token="another")[0], 401)
        models = json.loads(container.ask("GET", f"{base}/v1/models")[1])["models"]
        check("kernels that could not be used", models[0]["kernels_skipped"], [])
        print(f"kernels: {models[0]['kernels']}")
        status, text = container.ask(
            "POST", f"{base}/v1/score", {"query": "angle bracket", "titles": ["Steel angle"]}
        )
        check("score", (status, len(json.loads(text)["results"])), (200, 1))
        titles = ["a steel angle bracket for decks " * 10] * 1000
        long = container.asking("POST", f"{base}/v1/score", {"query": "angle bracket", "titles": titles})
        busy = lambda: "headroom_in_flight_pairs 0" not in container.ask("GET", f"{base}/metrics")[1]  # noqa: E731
        container.wait("busy", busy)
        check("exit status after SIGTERM", container.stop(), 0)
        check("the request that was in flight", json.loads(long.communicate()[0])[0], 200)


def kuberay() -> tuple[dict[str, Any], dict[str, str]]:
    """KubeRay's config for Serve, with one replica, and the environment of its pods."""
    documents = yaml.safe_load_all((DEPLOY / "kuberay" / "rayservice.yaml").read_text("utf-8"))
    given = {document["kind"]: document for document in documents}
    config: dict[str, Any] = yaml.safe_load(given["RayService"]["spec"]["serveConfigV2"])
    for deployment in config["applications"][0]["deployments"]:
        deployment.pop("autoscaling_config", None)  # Serve does not take it beside num_replicas
        deployment["num_replicas"] = 1
    return config, given["ConfigMap"]["data"]


def ray_node(image: str) -> None:
    """A node of KubeRay's cluster, started and configured as the operator does it."""
    document, config = kuberay()
    variables = config | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "t" * 64,
        "HEADROOM_API_KEYS": KEY,
    }
    options = [part for name, value in variables.items() for part in ("--env", f"{name}={value}")]
    command = "ray start --head --block --dashboard-host=0.0.0.0 --dashboard-agent-listen-port=52365"
    with started(image, "--entrypoint", "/bin/bash", *options, command=("-c", "--", command)) as node:
        health = "http://127.0.0.1:52365/api/healthz"
        node.wait("up", lambda: node.ask("GET", health, token="")[0] == 200)
        url = "http://127.0.0.1:8265/api/serve/applications/"
        check("a config without Ray's token", node.ask("PUT", url, document, token="")[0], 401)
        check("the config with it", node.ask("PUT", url, document, token="t" * 64)[0], 200)
        node.wait("ready", lambda: node.ask("GET", "http://127.0.0.1:8000/health/ready")[0] == 200)
        check("the proxy's health", node.ask("GET", "http://127.0.0.1:8000/-/healthz")[0], 200)
        body = {"query": "angle bracket", "titles": ["Steel angle"]}
        check("score", node.ask("POST", "http://127.0.0.1:8000/v1/score", body)[0], 200)
        check("without a key", node.ask("POST", "http://127.0.0.1:8000/v1/score", body, token="no")[0], 401)
        check("an answer in our error shape", "error" in node.ask("GET", "http://127.0.0.1:8000/no")[1], True)


if __name__ == "__main__":
    os.environ.pop("DOCKER_DEFAULT_PLATFORM", None)
    serve(sys.argv[1])
    ray_node(sys.argv[1])

"""Installs the chart with Helm's own library, and asks Kubernetes' schemas about objects. Prints JSON.

It runs in `.venv-clients/deploy`: `helm-sdkpy` holds Helm 4 as a shared library, `kubernetes-validate` the
schemas. Helm renders and sends the objects as it would to a cluster. The API server here accepts and writes
down all of them; whether a cluster would take them is what the schemas are asked.

ARGUMENTS: {"chart": directory, "values": [{…}, …], "objects": [{…}, …]}.
Output: {"lint": …, "installs": [[object, …] or "why Helm refused", …], "hooks": [{event: [object, …], …}, …],
"invalid": ["why", …]}. `hooks` are what Helm would create before an upgrade and for `helm test`; `invalid` is
about `objects` and all that Helm sent or would.
"""

import asyncio
import json
import os
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from helm_sdkpy.actions import Configuration, Install
from helm_sdkpy.chart import Lint

KUBERNETES = "1.34"
NAMESPACE = "search"
KINDS = {
    "v1": {
        "ConfigMap": "configmaps",
        "Service": "services",
        "Secret": "secrets",
        "ServiceAccount": "serviceaccounts",
    },
    "apps/v1": {"Deployment": "deployments"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "monitoring.coreos.com/v1": {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"},
}


def discovery(path: str) -> dict[str, Any] | None:
    """What an API server answers to a client that asks for its kinds; None for another path."""
    groups = [version.split("/") for version in KINDS if "/" in version]
    known: dict[str, dict[str, Any]] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": name, "versions": [{"groupVersion": f"{name}/{version}", "version": version}]}
                for name, version in groups
            ],
        },
    }
    for version, kinds in KINDS.items():
        known[f"/apis/{version}" if "/" in version else f"/api/{version}"] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": [
                {
                    "name": name,
                    "singularName": "",
                    "namespaced": True,
                    "kind": kind,
                    "verbs": ["create", "get"],
                }
                for kind, name in kinds.items()
            ],
        }
    return known.get(path)


class Recorder(BaseHTTPRequestHandler):
    """Answers as an empty cluster, and keeps what is created there."""

    created: list[dict[str, Any]]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = discovery(path)
        if found is None and path.endswith("/secrets"):  # where Helm keeps its releases
            found = {"kind": "SecretList", "apiVersion": "v1", "items": []}
        missing = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        self._answer(404 if found is None else 200, json.dumps(found or missing).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-type"] == "application/json":  # else Helm's own record of the release
            self.created.append(json.loads(body))
        self._answer(201, body, self.headers["content-type"])

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def accept() -> dict[str, Any]:
    """Start the API server and return a kubeconfig for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "me"}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "me", "user": {}}],
    }


async def install(chart: str, values: list[dict[str, Any]], directory: str) -> dict[str, Any]:
    kubeconfig = Path(directory) / "kubeconfig"
    kubeconfig.write_text(json.dumps(accept()))
    helm = Configuration(namespace=NAMESPACE, kubeconfig=str(kubeconfig))
    installs: list[Any] = []
    hooks: list[dict[str, list[Any]]] = []
    for chosen in values:
        Recorder.created = []
        try:
            release = await Install(helm).run("headroom", chart, values=chosen, wait=False)
        except Exception as error:
            installs.append(str(error))
            hooks.append({})
        else:
            installs.append(Recorder.created)
            hooks.append({})
            for hook in release["hooks"]:
                (event,) = hook["events"]
                hooks[-1].setdefault(event, []).append(yaml.safe_load(hook["manifest"]))
    return {"lint": await Lint(helm).run(chart), "installs": installs, "hooks": hooks}


def invalid(objects: list[dict[str, Any]]) -> list[str]:
    """Why the objects of Kubernetes' own kinds break its schemas; unknown fields count."""
    reasons = []
    for thing in objects:
        try:
            kubernetes_validate.validate(thing, KUBERNETES, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            continue  # a custom resource
        except kubernetes_validate.ValidationError as error:
            reasons.append(f"{thing['kind']} {thing['metadata']['name']}: {error}")
    return reasons


def main() -> None:
    asked = json.loads(os.environ["ARGUMENTS"])
    with tempfile.TemporaryDirectory() as directory:
        answer = asyncio.run(install(asked["chart"], asked["values"], directory))
    installs = [objects for objects in answer["installs"] if isinstance(objects, list)]
    hooks = [objects for made in answer["hooks"] for objects in made.values()]
    sent = [thing for objects in [*installs, *hooks] for thing in objects]
    print(json.dumps(answer | {"invalid": invalid([*asked["objects"], *sent])}))


if __name__ == "__main__":
    main()

"""The manifests for KubeRay: the Ray cluster, and the store that a new head of it reads."""

import importlib.util
import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from headroom.loadtest.server import free_port
from headroom.service.ray import cluster_variables
from headroom.service.ray.autoscaling import ByLoad
from tests.deploy.manifests import DEPLOY, OURS, ROOT, hardened, manifests, pods, store
from tests.redis_server import wait_until_listening
from tests.referees import need

pytestmark = pytest.mark.more


def test_a_new_head_finds_what_the_last_one_knew() -> None:
    """Each cluster in a namespace of its own, which the operator makes: during an update there are two."""
    cluster = manifests()["RayService"]["spec"]["rayClusterConfig"]
    options = cluster["gcsFaultToleranceOptions"]
    assert options.keys() == {"redisAddress", "redisPassword"}
    service = store()["Service"]
    (port,) = service["spec"]["ports"]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{port['port']}"
    pod = store()["StatefulSet"]["spec"]["template"]
    (valkey,) = pod["spec"]["containers"]
    (password,) = valkey["env"]
    assert password["valueFrom"] == options["redisPassword"]["valueFrom"]
    assert password["name"] == "PASSWORD"
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    policy = store()["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert policy["ingress"] == [{"from": [{"podSelector": OURS}], "ports": [{"port": 6379}]}]
    head, _ = pods()
    assert pod["spec"]["securityContext"] == head["spec"]["securityContext"]
    assert valkey["securityContext"] == head["spec"]["containers"][0]["securityContext"]


def test_the_store_of_the_head_keeps_all_asks_for_its_password_and_shows_it_to_nobody(tmp_path: Path) -> None:
    """In its arguments, every user of the machine could read it. Redis takes Valkey's command."""
    (valkey,) = store()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    port = free_port()
    here = f"{need('redis-server')} --bind 127.0.0.1 --port {port} --dir {tmp_path}"
    *shell, script = valkey["command"]
    assert script.count("valkey-server --dir /data") == 1
    command = [*shell, script.replace("valkey-server --dir /data", here)]
    secret = "pa55word"

    def ask(*commands: str) -> list[str]:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall("".join(f"{line}\r\n" for line in (*commands, "QUIT")).encode())
            return client.makefile().read().splitlines()[:-1]

    with subprocess.Popen(command, env=os.environ | {"PASSWORD": secret}, stdout=subprocess.DEVNULL) as redis:
        try:
            wait_until_listening(port)
            assert ask("GET key")[0].startswith("-NOAUTH")
            assert ask(f"AUTH {secret}", "SET key value") == ["+OK", "+OK"]
            arguments = Path(f"/proc/{redis.pid}/cmdline").read_bytes()
            assert b"redis-server" in arguments, "a shell between them would keep the signal that stops it"
            assert secret.encode() not in arguments
        finally:
            redis.terminate()
        assert redis.wait(20) == 0
    assert any(tmp_path.glob("appendonly*/*.aof")), "it keeps all over a restart"


def test_kuberay_serves_deploys_config() -> None:
    shipped = yaml.safe_load((DEPLOY / "serve.yaml").read_text("utf-8"))
    service = manifests()["RayService"]["spec"]
    given = yaml.safe_load(service["serveConfigV2"])
    scaling = given["applications"][0]["deployments"][0].pop("autoscaling_config")
    assert 1 <= scaling["min_replicas"] < scaling["max_replicas"]
    assert scaling["policy"]["policy_function"] == f"{ByLoad.__module__}:{ByLoad.__qualname__}"
    ByLoad(**scaling["policy"]["policy_kwargs"])
    assert given["http_options"].pop("host") == "0.0.0.0"
    del shipped["http_options"]["host"]
    assert given == shipped
    assert f"ray=={service['rayClusterConfig']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text(
        "utf-8"
    )
    head, worker = pods()
    for pod in (head, worker):
        assert hardened(pod["spec"], pod["spec"]["containers"][0])
    assert worker["spec"]["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in head["spec"]  # the autoscaler beside it asks Kubernetes


def test_a_pod_of_kuberay_has_time_to_drain_and_none_of_its_containers_has_rights() -> None:
    """The autoscaler, which the operator puts into the head's pod, has the rights of autoscalerOptions."""
    service, given = manifests()["RayService"]["spec"], cluster_variables.variables()
    (deployment,) = yaml.safe_load(service["serveConfigV2"])["applications"][0]["deployments"]
    drain = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    constants = Path(ray.origin).parent / "_private" / "ray_constants.py"
    assert f'"{drain}"' in constants.read_text("utf-8"), "Ray has renamed it"
    for pod in pods():
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        assert deployment["graceful_shutdown_timeout_s"] < int(given[drain]) < grace
        assert "restartPolicy" not in pod["spec"]  # the operator's: it refuses others with this autoscaler
    autoscaler = service["rayClusterConfig"]["autoscalerOptions"]
    assert autoscaler["version"] == "v2"
    assert autoscaler["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }

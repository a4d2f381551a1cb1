"""The manifests for KubeRay, and what every pod of ours must have."""

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OURS = {"matchLabels": {"app": "headroom"}}


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests for KubeRay, by kind."""
    documents = yaml.safe_load_all((DEPLOY / "kuberay" / "rayservice.yaml").read_text("utf-8"))
    return {document["kind"]: document for document in documents}


def store() -> dict[str, dict[str, Any]]:
    """The store of the Ray head's state, by kind."""
    documents = yaml.safe_load_all((DEPLOY / "kuberay" / "valkey.yaml").read_text("utf-8"))
    return {document["kind"]: document for document in documents}


def monitoring() -> dict[str, dict[str, Any]]:
    """What the command of its README applies for the monitoring of KubeRay, by kind."""
    readme = (DEPLOY / "kuberay" / "README.md").read_text("utf-8")
    (command,) = re.findall(
        r"^\$ (\(cat deploy/kuberay/monitoring.yaml.*) \| kubectl apply", readme, re.MULTILINE
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


def pods() -> list[dict[str, Any]]:
    """The pods of the Ray cluster, as Kubernetes' schemas can check them."""
    cluster = manifests()["RayService"]["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group["template"]["spec"]}
        for group in groups
    ]


def hardened(pod: dict[str, Any], only: dict[str, Any]) -> bool:
    """Whether it runs as the image's user, on a read-only root, with /tmp and its state writable."""
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
    user, group = (pod["securityContext"][name] for name in ("runAsUser", "runAsGroup"))
    mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
    return (
        f"USER {user}:{group}\n" in dockerfile
        and pod["securityContext"]["runAsNonRoot"]
        and only["securityContext"]
        == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        and mounts >= {"/tmp", "/var/lib/headroom"}
    )


def file_of_keys(pod: dict[str, Any], only: dict[str, Any]) -> tuple[str, str]:
    """The Secret and its key that the service's file of API keys holds."""
    (file,) = [entry["value"] for entry in only["env"] if entry["name"] == "HEADROOM_API_KEYS_FILE"]
    (mount,) = [mount for mount in only["volumeMounts"] if Path(file).is_relative_to(mount["mountPath"])]
    assert "subPath" not in mount, "the file would not change with the Secret"
    (volume,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == mount["name"]]
    (item,) = volume["items"]
    assert Path(file) == Path(mount["mountPath"], item["path"])
    assert "optional" not in volume, "a pod without keys would start"
    return volume["secretName"], item["key"]

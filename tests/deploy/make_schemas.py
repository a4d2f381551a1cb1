"""Puts the JSON schema of a custom resource's definition into schemas.json: make_schemas.py KIND < CRD.yaml

Tests check `deploy/` with them. All are from projects under the Apache License 2.0:

- rayservice: KubeRay 1.7.0 (59d663a), helm-chart/kuberay-operator/crds/ray.io_rayservices.yaml
- servicemonitor, podmonitor, prometheusrule: Prometheus operator 0.93 (6adcebc),
  example/prometheus-operator-crd
- servingruntime, inferenceservice: KServe 0.20 (aaac4e2), config/crd/full
- scaledobject: KEDA 2.20 (8b4f083), config/crd/bases
- compose: the Compose specification (170098b), schema/compose-spec.json, put there without its descriptions

What the definition does not name is an error, as with `kubectl --validate=strict`. Descriptions are left out,
and so are pods: they are checked as pods. KServe's own fields of a pod or a container are kept.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

OF_KSERVE = {"model", "modelFormat", "supportedModelFormats"}
"""Its own objects and lists in a pod or a container."""


def strict(node: Any) -> Any:
    """Return the schema without prose and extensions, closed to unknown fields."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    properties = node.get("properties", {})
    if "containers" in properties or {"env", "image"} <= properties.keys():
        if not OF_KSERVE & properties.keys():
            return {"type": "object"}
        kept = {
            name: strict(value) if name in OF_KSERVE or value["type"] not in ("object", "array") else {}
            for name, value in properties.items()
        }
        return {"type": "object", "properties": kept, "additionalProperties": False}
    kept = {
        key: {name: strict(value) for name, value in content.items()}
        if key == "properties"
        else strict(content)
        for key, content in node.items()
        if key not in ("description", "default", "format") and not key.startswith("x-kubernetes-")
    }
    if node.get("x-kubernetes-int-or-string"):
        kept.pop("anyOf", None)
        kept["type"] = ["integer", "string"]
    if kept.get("properties") and not node.get("x-kubernetes-preserve-unknown-fields"):
        kept["additionalProperties"] = False
    return kept


def main() -> None:
    (version,) = (item for item in yaml.safe_load(sys.stdin)["spec"]["versions"] if item["storage"])
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    file = Path(__file__).with_name("schemas.json")
    schemas = {**json.loads(file.read_text("utf-8")), sys.argv[1]: schema}
    file.write_text(json.dumps(schemas, separators=(",", ":"), sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()

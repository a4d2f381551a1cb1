"""Makes a JSON schema of a custom resource's definition: python make.py < CRD.yaml > KIND.json

What the definition does not name is an error, as with `kubectl --validate=strict`. Descriptions are left out,
and so are pods: they are checked as pods.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml


def strict(node: Any) -> Any:
    """Return the schema without prose and extensions, closed to unknown fields."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "containers" in node.get("properties", {}):
        return {"type": "object"}
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
    (version,) = (item for item in yaml.safe_load(sys.stdin)["spec"]["versions"] if item["name"] == "v1")
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    json.dump(schema, sys.stdout, separators=(",", ":"), sort_keys=True)


if __name__ == "__main__":
    main()

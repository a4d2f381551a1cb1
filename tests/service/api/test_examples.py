"""Every example of the OpenAPI document, sent to a running service as "Try it out" sends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.checkpoint.hub import DEFAULT
from tests.service.api.test_openapi import DOCUMENT, exactly
from tests.service.experimenting import BOSS, KEYS, config
from tests.service.in_process import serve

OPERATION_IDS = {
    "/v1/score": "score",
    "/v1/compare": "compare",
    "/v1/attention": "attention",
    "/v1/condense": "condense",
    "/v1/models": "models",
    "/v1/variants": "variants",
    "/v1/masks": "masks",
    "/v1/outcomes": "outcomes",
    "/v1/experiments": "experiments",
    "/v1/experiments/{name}": "experiment",
    "/v1/experiments/{name}/ramp": "ramp",
    "/v1/experiments/{name}/stop": "stop",
    "/v1/experiments/{name}/ship": "ship",
    "/health/live": "live",
    "/health/ready": "ready",
    "/metrics": "metrics",
}


def examples(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[Any]:
    """The bodies that an operation shows; one None for an operation without a body."""
    if "requestBody" not in operation:
        yield None
        return
    media = operation["requestBody"]["content"]["application/json"]
    schema = media["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    shown = [example["value"] for example in media.get("examples", {}).values()]
    shown += [media["example"]] if "example" in media else []
    shown += schema.get("examples", [])
    assert shown, f"{operation['operationId']} shows no request"
    yield from shown


def address(path: str, operation: dict[str, Any]) -> str:
    """The path with the example of each of its parameters."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            shown = parameter.get("example", next(iter(parameter["schema"].get("examples", ())), None))
            assert shown is not None, f"{path} shows no {parameter['name']}"
            path = path.replace(f"{{{parameter['name']}}}", str(shown))
    return path


async def test_every_example_is_answered_as_documented(tmp_path: Path) -> None:
    live = config([{"name": "full"}, {"name": "pruned20", "head_mask": "@pruned20", "sliced": True}])
    database = f"sqlite:///{tmp_path / 'experiments.db'}"
    async with serve(DEFAULT, live, api_keys=KEYS, database_url=database) as service:
        document = (await service.http.get("/openapi.json", headers=BOSS)).json()
        sent = 0
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                for body in examples(document, operation):
                    answer = await service.http.request(
                        method, address(path, operation), json=body, headers=BOSS
                    )
                    assert answer.status_code == 200, (path, body, answer.text)
                    sent += 1
                    if "content" not in operation["responses"]["200"]:
                        assert answer.content == b"", path
                        continue
                    ((kind, shown),) = operation["responses"]["200"]["content"].items()
                    assert answer.headers["content-type"].startswith(kind), path
                    if kind == "application/json":
                        exactly(shown["schema"]).validate(answer.json())
    assert sent > len(document["paths"])


def test_the_names_of_the_operations_stay() -> None:
    """Generated clients name their calls after them."""
    names = {
        path: operation["operationId"]
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
    }
    assert OPERATION_IDS.items() <= names.items()
    assert len(set(names.values())) == len(names)

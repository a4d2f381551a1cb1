"""What `/openapi.json` promises to people and to generators of clients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from service.api import create_app
from service.config.settings import Settings
from service.observe.metrics import Metrics

DOCUMENT: dict[str, Any] = create_app(Settings(api_keys="alpha"), Metrics()).openapi()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def exactly(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    """A validator of this schema under which objects have the fields that are documented and no others."""
    schemas = copy.deepcopy(SCHEMAS)
    for component in schemas.values():
        if "properties" in component:
            component.setdefault("additionalProperties", False)
    return jsonschema_rs.Draft202012Validator({**schema, "components": {"schemas": schemas}})


THEIRS = {
    "/v1/rerank": ["RerankError"],
    "/v2/rerank": ["RerankError"],
    "/rerank": ["RerankError", "TeiError"],
    **{path: ["TeiError"] for path in ("/", "/predict", "/info", "/health", "/ping")},
}
"""The shapes of errors under the paths of other people's clients."""


def shapes_of_errors(path: str) -> list[str]:
    if path == "/v2" or path.startswith(("/v2/health", "/v2/models")):
        return ["OipError"]
    return THEIRS.get(path, ["Error"])


def test_every_error_of_every_route_has_the_one_shape() -> None:
    for name, operation in operations():
        shapes = [f"#/components/schemas/{shape}" for shape in shapes_of_errors(name.partition(" ")[2])]
        for status, response in operation["responses"].items():
            if status == "200":
                continue
            (media,) = response["content"].items()
            assert media[0] == "application/json", (name, status)
            branches = media[1]["schema"].get("anyOf", [media[1]["schema"]])
            assert branches == [{"$ref": shape} for shape in shapes], (name, status)
    assert "HTTPValidationError" not in SCHEMAS


def test_every_field_and_every_parameter_is_described() -> None:
    silent = [f"{name}" for name, schema in SCHEMAS.items() if not schema.get("description")]
    for name, schema in SCHEMAS.items():
        for field, value in schema.get("properties", {}).items():
            target = SCHEMAS[value["$ref"].rpartition("/")[2]] if "$ref" in value else {}
            if not (value.get("description") or target.get("description")):
                silent.append(f"{name}.{field}")
    for name, operation in operations():
        assert operation["description"], name
        silent += [
            f"{name} {parameter['name']}"
            for parameter in operation.get("parameters", ())
            if not parameter.get("description")
        ]
    assert silent == []

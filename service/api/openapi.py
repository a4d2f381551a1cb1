"""Completes FastAPI's OpenAPI document, which it makes from the types: answers, errors, limits, keys."""

from __future__ import annotations

from typing import Any

from service.api.errors import shape_of, tei
from service.api.keys import is_open
from service.api.strict_json import MAX_DEPTH
from service.config.settings import Settings
from service.errors import (
    BodyTooLarge,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InferenceFailed,
    InternalError,
    InvalidJSON,
    InvalidRequest,
    NotFound,
    QueueFull,
    RequestTimeout,
    ServiceError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    to_response,
)
from service.schemas.limits import MAX_COLUMNS
from service.schemas.responses import Error

DESCRIPTION = """\
Grades how relevant product titles are to a search query, with a BERT whose attention heads can be switched
off per request.

Errors have one shape, `{"error": {"type", "message", "param"}}`, for unknown paths (404) and methods (405)
too. Bodies are strict JSON: duplicate keys, NaN, infinities and lone surrogates are refused. Every answer
carries `X-Request-ID` (yours, if you send a plain one) and `Server-Timing`. An answer in another server's
shape carries `X-Degraded: true` if the load has made it worse (see `degraded` of /v1/score).
"""

_HEADERS: dict[str, dict[str, Any]] = {
    "retry-after": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}},
    "www-authenticate": {"WWW-Authenticate": {"schema": {"type": "string"}}},
}
"""The documented form of the headers that errors bring."""

_BY_STATUS: dict[int, tuple[str, ServiceError]] = {
    example.status: (meaning, example)
    for meaning, example in (
        ("The body is not strict JSON, or nested too deeply.", InvalidJSON()),
        ("No valid API key.", Unauthorized()),
        (
            "The API key is not of the admin role; or no keys are set, and the request is not from here.",
            Forbidden(),
        ),
        ("There is nothing of this name.", NotFound()),
        ("The body did not arrive in time.", RequestTimeout()),
        ("The current state does not allow it.", Conflict()),
        ("The body is over the size limit.", BodyTooLarge()),
        ("The body is said to be something other than JSON, or compressed.", UnsupportedMediaType()),
        ("A field is wrong; `param` names it.", InvalidRequest("should be a string", param="titles[3]")),
        ("The queue is over its token limit, or the key's rate is used up.", QueueFull()),
        ("A defect of the server.", InternalError()),
        ("Starting, draining, or the device or replica failed.", Unavailable()),
        ("The deadline or the request timeout passed; work not begun was dropped.", DeadlineExceeded()),
    )
}
"""The meaning of each status that a route may answer with, and one error that has it."""
_BY_STATUS[424] = ("The model gave no finite score.", InferenceFailed())  # only in TEI's shape


def errors(*statuses: int, model: Any = Error) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may answer with errors of these statuses.

    model: the type of their bodies.
    """
    described: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        meaning, example = _BY_STATUS[status]
        described[status] = {"model": model, "description": meaning}
        for header in to_response(example).headers:
            if header in _HEADERS:
                described[status]["headers"] = _HEADERS[header]
    return described


GET_ERRORS = errors(401, 403, 429, 500, 503)
POST_ERRORS = errors(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)


def complete(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Write this server's limits and keys into FastAPI's document; a second time changes nothing."""
    schemas = document["components"]["schemas"]
    most = dict.fromkeys(("titles", "pairs", "documents"), settings.max_pairs)
    most |= dict.fromkeys(("masks", "variants"), MAX_COLUMNS)
    for name, schema in schemas.items():
        for field, value in schema.get("properties", {}).items():
            for branch in value.get("anyOf", [value]):
                if field == "deadline_ms" and branch.get("type") == "number":
                    branch["maximum"] = settings.request_timeout_s * 1000
                elif name.endswith("Request") and field in most and branch.get("type") == "array":
                    branch["maxItems"] = most[field]
    document["info"]["description"] = (
        f"{DESCRIPTION}\nA body holds up to {settings.max_body_bytes} bytes, nested {MAX_DEPTH} deep, with "
        f"up to {settings.max_pairs} titles or pairs. An answer takes up to {settings.request_timeout_s:g} "
        f"seconds. /v1/compare takes up to {MAX_COLUMNS} masks and variants. Pairs under each mask and "
        f"variant, or chunks, are up to {settings.max_compare_rows} rows.\n"
    )
    if settings.api_keys:
        document["components"]["securitySchemes"] = {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key of this service. To change an experiment it needs the admin role.",
            }
        }
    _drop_fastapis_errors(document)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _show_answers(path, method.upper(), operation, schemas)
            if is_open(method.upper(), path):
                operation["security"] = []
            elif settings.api_keys:
                operation["security"] = [{"key": []}]
            else:
                operation["responses"].pop("401", None)
    return document


def _drop_fastapis_errors(document: dict[str, Any]) -> None:
    """Remove the 422 that FastAPI adds to routes that document none, such as those that answer with 400."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]


def _show_answers(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Add an example to each answer: made of the schema, or for an error the error itself."""
    for status, response in operation["responses"].items():
        if "content" not in response:  # the answers about health that are empty
            continue
        (content,) = response["content"].values()
        if status == "200":
            content["example"] = _example(content["schema"], schemas)
        else:
            _, error = _BY_STATUS[int(status)]
            # A path of several kinds of clients has the statuses, and the shapes, of all of them.
            answers = (shape(error, to_response(error)) for shape in (shape_of(path, method), tei))
            example = next(answer.body for answer in answers if answer.status == int(status))
            shown = {"schema": content["schema"], "example": example}
            response["content"] = {"application/json": shown}  # the errors of /metrics are JSON, too


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """Return a value that a schema of an answer allows, of its fields' own examples where they have one."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _example(schema[key][0], schemas)
    for key in ("examples", "enum"):
        if key in schema:
            return schema[key][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object")
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: _example(field, schemas) for name, field in fields.items()}
    if kind == "array":
        sides = schema.get("prefixItems") or [schema["items"]]
        return [_example(side, schemas) for side in sides]
    return {"string": "text", "integer": 1, "number": 0.5, "boolean": False, "null": None}[kind]

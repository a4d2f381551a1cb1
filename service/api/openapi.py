"""What the OpenAPI document says beyond what FastAPI finds in the types: answers, limits, keys."""

from __future__ import annotations

from typing import Any

from service.responses import Error
from service.settings import Settings

DESCRIPTION = """\
Grades how relevant product titles are to a search query, with a BERT whose attention heads can be switched
off per request.

Errors have one shape, `{"error": {"type", "message", "param"}}`, for unknown paths (404) and methods (405)
too. Bodies are strict JSON: duplicate keys, NaN, infinities and lone surrogates are refused. Every answer
carries `X-Request-ID` (yours, if you send a plain one) and `Server-Timing`.
"""

_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}

_ERRORS: dict[int, dict[str, Any]] = {
    400: {"description": "The body is not strict JSON, or nested too deeply."},
    401: {
        "description": "No valid API key.",
        "headers": {"WWW-Authenticate": {"schema": {"type": "string"}}},
    },
    403: {"description": "The API key is not of the admin role."},
    404: {"description": "There is nothing of this name."},
    408: {"description": "The body did not arrive in time."},
    409: {"description": "It does not go with the present state."},
    413: {"description": "The body is over the size limit."},
    415: {"description": "The body is said to be something other than JSON, or compressed."},
    422: {"description": "A field is wrong; `param` names it."},
    429: {
        "description": "The queue is over its token limit, or the key's rate is used up.",
        "headers": _RETRY_AFTER,
    },
    500: {"description": "A defect of the server."},
    503: {
        "description": "Starting, draining, or the device or replica failed.",
        "headers": _RETRY_AFTER,
    },
    504: {"description": "The deadline or the request timeout passed; work not begun was dropped."},
}

_GET = (401, 429, 500, 503)
_POST = (400, 401, 408, 413, 415, 422, 429, 500, 503, 504)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these errors."""
    return {status: {"model": Error, **_ERRORS[status]} for status in statuses}


GET_ERRORS = errors(*_GET)
POST_ERRORS = errors(*_POST)


def complete(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Write this server's limits and keys into FastAPI's document; a second time changes nothing."""
    schemas = document["components"]["schemas"]
    for name in ("ScoreRequest", "CompareRequest"):
        for field in ("titles", "pairs"):
            _of_type(schemas[name]["properties"][field], "array")["maxItems"] = settings.max_pairs
    for field in ("masks", "variants"):
        schemas["CompareRequest"]["properties"][field]["maxItems"] = settings.max_columns
    schemas["CompareRequest"]["description"] = (
        "Score the same pairs under several masks and variants, in the same batches: "
        f"up to {settings.max_columns} of them, and {settings.max_compare_rows} rows in all."
    )
    for name in ("ScoreRequest", "CompareRequest", "AttentionRequest"):
        deadline = _of_type(schemas[name]["properties"]["deadline_ms"], "number")
        deadline["maximum"] = settings.request_timeout_s * 1000
    document["info"]["description"] = (
        f"{DESCRIPTION}\nA body holds up to {settings.max_body_bytes} bytes, nested "
        f"{settings.max_json_depth} deep, with up to {settings.max_pairs} titles or pairs; "
        f"a request takes up to {settings.request_timeout_s:g} s."
    )
    if settings.api_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/health/"):
                operation["security"] = []
            elif settings.api_keys:
                operation["security"] = [{"key": []}]
            else:
                operation["responses"].pop("401", None)
    return document


def _of_type(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """The branch of a nullable schema that is of this type."""
    branches: list[dict[str, Any]] = schema.get("anyOf", [schema])
    return next(branch for branch in branches if branch.get("type") == kind)

"""Completes FastAPI's OpenAPI document, which it makes from the types: answers, errors, limits, keys."""

from typing import Any

from headroom.service.api.body import MAX_DEPTH
from headroom.service.api.layers import OPEN_PATHS
from headroom.service.config.settings import Settings
from headroom.service.schemas.requests import MAX_COLUMNS
from headroom.service.schemas.responses import Error

DESCRIPTION = """\
Grades how relevant product titles are to a search query, with a BERT whose attention heads can be switched
off per request.

Errors have one shape, `{"error": {"type", "message", "param"}}`, for unknown paths (404) and methods (405)
too. Bodies are strict JSON: duplicate keys, NaN, infinities and lone surrogates are refused. Every answer
carries `X-Request-ID` (yours, if you send a plain one) and `Server-Timing`. An answer in another server's
shape carries `X-Degraded: true` if the load has made it worse (see `degraded` of /v1/score). An interleaved
answer carries its id as `X-Impression` (see `assignment.impression` of /v1/score).
"""

_MEANINGS = {
    400: "The body is not strict JSON, or nested too deeply.",
    401: "No valid API key.",
    403: "The API key is not of the admin role; or no keys are set, and the request is not from here.",
    404: "There is nothing of this name.",
    408: "The body did not arrive in time.",
    409: "The current state does not allow it.",
    413: "The body is over the size limit.",
    415: "The body is said to be something other than JSON, or compressed.",
    422: "A field is wrong; `param` names it.",
    424: "The model gave no finite score.",
    429: "The queue is over its token limit, or the key's rate is used up.",
    500: "A defect of the server.",
    503: "Starting, draining, or the device or replica failed.",
    504: "The deadline or the request timeout passed; work not begun was dropped.",
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def errors(*statuses: int, model: Any = Error) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may answer with errors of these statuses.

    model: the type of their bodies.
    """
    return {
        status: {"model": model, "description": _MEANINGS[status], "headers": _HEADERS.get(status, {})}
        for status in statuses
    }


GET_ERRORS = errors(401, 403, 429, 500, 503)
POST_ERRORS = errors(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)


def complete(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Write this server's limits and keys into FastAPI's document; a second time changes nothing."""
    _describe_fields(document["components"]["schemas"], settings)
    document["info"]["description"] = (
        f"{DESCRIPTION}\nA body holds up to {settings.max_body_bytes} bytes, nested {MAX_DEPTH} deep, with "
        f"up to {settings.max_pairs} titles or pairs. An answer takes up to {settings.request_timeout_s:g} "
        f"seconds. /v1/compare takes up to {MAX_COLUMNS} masks and variants. Pairs under each mask and "
        f"variant, or chunks, are up to {settings.max_compare_rows} rows.\n"
    )
    if settings.needs_keys:
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
            for status, response in operation["responses"].items():
                if not status.startswith("2"):  # the errors of /metrics are JSON, too
                    (content,) = response["content"].values()
                    response["content"] = {"application/json": content}
            if method == "get" and path in OPEN_PATHS:
                operation["security"] = []
            elif settings.needs_keys:
                operation["security"] = [{"key": []}]
            else:
                operation["responses"].pop("401", None)
    return document


def _describe_fields(schemas: dict[str, Any], settings: Settings) -> None:
    """Write the limits into the fields' schemas."""
    max_items = dict.fromkeys(("titles", "pairs", "documents", "ids"), settings.max_pairs)
    max_items |= dict.fromkeys(("masks", "variants"), MAX_COLUMNS)
    for name, schema in schemas.items():
        for field, value in schema.get("properties", {}).items():
            for branch in value.get("anyOf", [value]):
                if field == "deadline_ms" and branch.get("type") == "number":
                    branch["maximum"] = settings.request_timeout_s * 1000
                elif name.endswith("Request") and field in max_items and branch.get("type") == "array":
                    branch["maxItems"] = max_items[field]


def _drop_fastapis_errors(document: dict[str, Any]) -> None:
    """Remove the 422 that FastAPI adds to routes that document none, such as those that answer with 400."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]

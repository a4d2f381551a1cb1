"""Answers as bytes."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from service.errors import ErrorResponse, to_response
from service.schemas.responses import to_json


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer, from plain objects, dataclasses and numpy rows."""
    return Response(to_json(value), status, headers, media_type="application/json")


def error_response(error: BaseException) -> Response:
    """The answer for a failure, in the error shape."""
    reply: ErrorResponse = to_response(error)
    return json_response(reply.body, status=reply.status, headers=reply.headers)

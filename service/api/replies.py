"""Answers as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Response

from service.api.error_shapes import shaped
from service.schemas.responses import to_json


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer, from plain objects, dataclasses and numpy rows."""
    return Response(to_json(value), status, headers, media_type="application/json")


def error_response(error: BaseException, scope: Mapping[str, Any]) -> Response:
    """The answer for a failure of a request, in the error shape of its path."""
    reply = shaped(error, scope)
    return json_response(reply.body, status=reply.status, headers=reply.headers)

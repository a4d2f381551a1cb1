"""Routes whose requests skip FastAPI's machinery: it documents them, and they answer by themselves.

Its way to an endpoint (three exit stacks, an e-mail parser for the content type, dependencies) is code and
data that every request would pull through the caches anew: docs/decisions/009-the-way-of-a-request.md.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from service.http.body import read_json
from service.http.validation import explain


class DirectRoute(APIRoute):
    """A route for an endpoint `async (request, body) -> Response`, body being one pydantic model.

    FastAPI's dependencies and other parameters are not for such an endpoint. Errors leave as exceptions.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert self.body_field is not None
        self._model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request. Raises ServiceError; HTTPException for another method."""
        if self.methods and scope["method"] not in self.methods:
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive)
        value = await read_json(request)
        try:
            body = self._model.model_validate(value)
        except ValidationError as error:
            raise explain(error.errors(include_url=False, include_context=False)) from None
        response = await self.endpoint(request, body)
        await response(scope, receive, send)

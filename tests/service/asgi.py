"""Drives an ASGI app through the edge, as behind HAProxy, also by hand, because an HTTP client library would
not send such requests."""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple

import httpx
import jsonschema_rs
import orjson
from starlette.types import ASGIApp

from headroom.service.api.edge import Edge


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = orjson.loads(self.body)["error"]
        return error


@asynccontextmanager
async def client(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app that checks each answer against the OpenAPI document."""
    transport = httpx.ASGITransport(Edge(app, in_replica=True))
    kind = {"content-type": "application/json"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=kind, event_hooks={"response": [conforms]}
    ) as session:
        yield session


def chunk(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


DISCONNECT: dict[str, Any] = {"type": "http.disconnect"}


class Exchange:
    """One request whose messages the test sends when it wants; after the last one, the client just waits."""

    def __init__(
        self,
        app: ASGIApp,
        method: str = "POST",
        path: str = "/v1/score",
        headers: Iterable[tuple[str, str]] = (),
        messages: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.incoming.put_nowait(message)
        self.received = 0
        headers = {"content-type": "application/json"} | dict(headers)
        self.sent: list[dict[str, Any]] = []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("service", 80),
        }
        self.task = asyncio.create_task(Edge(app, in_replica=True)(scope, self._receive, self._send))  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, Any]:
        message = await self.incoming.get()
        self.received += 1
        return message

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def answer(self) -> Answer:
        await self.task
        start, *rest = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


@cache
def _operations() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    from tests.service.fake_backend import document

    patterns = {"model": ".+"}  # a model's name may hold slashes
    return [
        (re.compile(re.sub(r"\{(\w+)\}", lambda name: patterns.get(name[1], "[^/]+"), path)), methods)
        for path, methods in sorted(document()["paths"].items(), key=lambda item: -len(item[0]))
    ]


@cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    """Return a validator under which objects have the fields that are documented and no others."""
    from tests.service.fake_backend import document

    schemas = copy.deepcopy(document()["components"]["schemas"])
    for component in schemas.values():
        if "properties" in component:
            component.setdefault("additionalProperties", False)
    return jsonschema_rs.Draft202012Validator({**json.loads(schema), "components": {"schemas": schemas}})


async def conforms(response: httpx.Response) -> None:
    """Raise AssertionError if an answer has a status or a body that the document does not allow.

    What the document leaves out passes: the pages, unknown paths, wrong methods, and tensors as bytes.
    """
    request = response.request
    if request.method not in ("GET", "POST") or response.status_code == 405:
        return
    methods = next((found for path, found in _operations() if path.fullmatch(request.url.path)), {})
    operation = methods.get(request.method.lower())
    if operation is None:
        return
    said = f"{request.method} {request.url.path}: {response.status_code}"
    documented = operation["responses"].get(str(response.status_code))
    assert documented is not None, f"{said} is not documented"
    content = (await response.aread(), response.headers.get("content-type", "").partition(";")[0])
    if "content" not in documented:
        assert content == (b"", ""), f"{said} is documented as empty"
    elif content[1] == "application/json":
        schema = documented["content"]["application/json"]["schema"]
        try:
            _validator(json.dumps(schema)).validate(json.loads(content[0]))
        except jsonschema_rs.ValidationError as error:
            raise AssertionError(f"{said} is not as documented: {error}") from None

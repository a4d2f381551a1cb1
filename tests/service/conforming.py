"""Every answer that a test gets from our application must be one that the OpenAPI document allows."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx
import jsonschema_rs


@cache
def _operations() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    from tests.service.api.test_openapi import DOCUMENT

    patterns = {"model": ".+"}  # a model's name may hold slashes
    return [
        (re.compile(re.sub(r"\{(\w+)\}", lambda name: patterns.get(name[1], "[^/]+"), path)), methods)
        for path, methods in sorted(DOCUMENT["paths"].items(), key=lambda item: -len(item[0]))
    ]


@cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    from tests.service.api.test_openapi import exactly

    return exactly(json.loads(schema))


async def check(response: httpx.Response) -> None:
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

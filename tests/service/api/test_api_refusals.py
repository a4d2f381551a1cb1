"""What a wrong request is told: which field, and why."""

import asyncio
from typing import Any

import orjson
import pytest

from tests.service.api.test_api import SCORE, app_with, assert_error, post
from tests.service.asgi import client

NUL = "must not hold a NUL character: PostgreSQL cannot keep it"
OUTCOME = {"experiment": "e", "unit": "u", "metric": "click", "value": 1, "time": 1.0, "id": "o"}
BAD_REQUESTS: list[tuple[str, dict[str, Any] | list[Any] | str | None, str | None, str]] = [
    ("/v1/score", {}, "query", "missing"),
    ("/v1/score", {**SCORE, "pairs": [["a", "b"]]}, "pairs", "not both"),
    ("/v1/score", {**SCORE, "query": "\x00\u200b"}, "query", "blank"),
    ("/v1/score", {"query": "a", "titles": ["b"] * 1001}, "titles", "1000"),
    ("/v1/score", {"query": "a", "titles": ["b", 3]}, "titles[1]", "string"),
    ("/v1/score", {f"k{n}" * 50: n for n in range(100)}, f"{'k0' * 32}…", "no such field"),
    ("/v1/score", {**SCORE, "head_mask": "1" * 20_000}, "head_mask", "at most 16384"),
    ("/v1/score", {**SCORE, "variant": "nobody"}, "variant", "full"),
    ("/v1/score", {**SCORE, "deadline_ms": 60_001}, "deadline_ms", "60000"),
    ("/v1/compare", SCORE, "masks", "at least one"),
    ("/v1/compare", {**SCORE, "masks": ["none"] * 32, "variants": ["full"] * 33}, "masks", "64"),
    ("/v1/compare", {**SCORE, "titles": ["a"] * 100, "masks": ["none"] * 41}, "titles", "4096"),
    ("/v1/condense", {"query": "w " * 100, "titles": list("abcdefg")}, "titles", "send at most 5 titles"),
    ("/v1/condense", {**SCORE, "query": "w " * 5000}, "query", "send fewer words"),
    (
        *("/v1/condense", {"query": "long " * 3900, "titles": ["b"], "method": "leave_one_out"}, "query"),
        "send fewer words or shorter ones",
    ),
    ("/v1/condense", {"query": "long" * 2000 + " w" * 99, "titles": ["b"]}, "query", "limit is 20000000"),
    ("/v1/outcomes", {"outcomes": [OUTCOME, OUTCOME | {"foo": 1}]}, "outcomes[1].foo", "no such field"),
    *(
        ("/v1/outcomes", {"outcomes": [OUTCOME | {field: wrong}]}, f"outcomes[0].{field}", says)
        for field, wrong, says in [
            ("time", 1_795_000_000_000, "should be seconds since 1970, not milliseconds"),
            ("value", 1e16, "should be less than or equal to 1000000000000000"),
            ("unit", "a\0b", NUL),
            ("unit", "", ""),
            ("id", "a\0b", NUL),
        ]
    ),
    ("/v1/score", {**SCORE, "unit": "a\0b"}, "unit", NUL),
    ("/v1/experiments/e/ship", {"arm": "b", "reason": "a\0b"}, "reason", NUL),
]


@pytest.mark.parametrize(("path", "body", "param", "says"), BAD_REQUESTS)
async def test_a_wrong_request_is_told_which_field_and_why(
    path: str, body: Any, param: str | None, says: str
) -> None:
    message = assert_error(await post(app_with(), path, body), 422, "invalid_request", param)
    assert says in message
    if param is not None:
        assert message.startswith(f"{param}: ")


async def test_a_long_query_within_the_limit_of_characters_is_taken() -> None:
    body = {"query": "long " * 1413, "titles": ["b"], "method": "leave_one_out"}
    assert (await post(app_with(), "/v1/condense", body)).status_code == 200


async def test_a_million_wrong_items_are_one_short_error() -> None:
    app = app_with()
    for status, body in (
        (400, b'{"query": "a", "titles": [' + b"1," * 1_900_000 + b"1]}"),  # too many values to look at
        (422, b"{" + b",".join(b'"%d":1' % n for n in range(40_000)) + b"}"),
        (400, b'{"query": "a", "titles": ["b"], "head_mask": {"off": [' + b"1," * 1_900_000 + b"1]}}"),
        (422, b'{"query": "a", "titles": ["b"], "head_mask": "' + b"1.1," * 900_000 + b'1.1"}'),
    ):
        async with client(app) as session:
            async with asyncio.timeout(5):
                response = await session.post("/v1/score", content=body)
        assert response.status_code == status
        assert len(response.content) < 1000


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/a+json"]
)
async def test_json_may_be_called_json_by_several_names(kind: str) -> None:
    headers = {"content-type": kind}
    async with client(app_with()) as session:
        response = await session.post("/v1/score", content=orjson.dumps(SCORE), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": ""},  # as a web page of another site could send it unasked
        {"content-encoding": "gzip"},
    ],
)
async def test_another_type_of_body_is_a_415(headers: dict[str, str]) -> None:
    async with client(app_with()) as session:
        response = await session.post("/v1/score", content=orjson.dumps(SCORE), headers=headers)
    assert_error(response, 415, "unsupported_media_type")

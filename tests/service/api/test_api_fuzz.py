"""Malformed requests (`make fuzz`: ten thousand), from our own OpenAPI document and from mangled bytes.

Each must be a 4xx in the error shape: never a 5xx, never a hang; and memory must be flat after them.
"""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.service.asgi import Answer, Exchange, chunk
from tests.service.fake_backend import app_with
from tests.service.running import Server

PATHS = ("/v1/score", "/v1/compare", "/v1/attention", "/v1/condense")
MALFORMED_PER_PATH = int(os.environ.get("FUZZ_CASES", "240")) // len(PATHS)
MANGLED = 200
SECONDS_PER_REQUEST = 60.0
"""After so long a request hangs, on a machine of any speed."""
HERE = {"host": "localhost"}  # schemathesis says "testserver", and without keys no other name is answered


def repeatable(examples: int) -> settings:
    """The same examples in every run, however slow the machine."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def ask(app: FastAPI, path: str, body: bytes, headers: dict[str, str] | None = None) -> Answer:
    """Send one request and wait for its answer, but not for ever."""

    async def exchange() -> Answer:
        async with asyncio.timeout(SECONDS_PER_REQUEST):
            messages = [chunk(body, more=False)]
            return await Exchange(app, "POST", path, (headers or {}).items(), messages).answer()

    return asyncio.run(exchange())


def assert_refused(answer: Answer) -> None:
    assert 400 <= answer.status < 500, (answer.status, answer.body[:500])
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.error) == ["type", "message", "param"]
    assert isinstance(answer.error["message"], str)
    assert len(answer.body) < 2000, "an error does not send the request back"


@pytest.mark.more
@pytest.mark.slow
def test_requests_that_break_the_document_are_refused_by_the_real_service(server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    replica = server.replica()
    statuses: Counter[int] = Counter()
    memory = []

    for path in PATHS:

        @repeatable(MALFORMED_PER_PATH)
        @given(case=schema[path]["POST"].as_strategy(generation_mode=GenerationMode.NEGATIVE))
        def run(case: Case) -> None:
            response = case.call(timeout=SECONDS_PER_REQUEST)
            statuses[response.status_code] += 1
            assert list(response.json()) == ["error"]
            if response.status_code == 504 and "deadline_ms" in case.body:
                return  # on a slow machine, a deadline can pass before what is wrong is found
            assert 400 <= response.status_code < 500, (response.status_code, response.text[:500])
            case.validate_response(response)

        run()
        memory.append(replica.memory_info().rss)

    assert sum(statuses.values()) >= MALFORMED_PER_PATH * len(PATHS)
    # The first path's requests fill what is filled once; after that the process may not grow.
    assert memory[-1] - memory[0] < 8_000_000, memory
    assert server.replica() == replica


OTHERS = "/v1/rerank /v2/rerank /rerank /predict / /score".split()
NOT_IN_THE_DOCUMENT = (
    *("head_mask", "variant", "masks", "variants", "heads", "query", "pairs", "grades"),
    *("model", "unit", "arm", "ids", "documents", "rank_fields", "on_failure", "min_score", "min_grade"),
    *("texts", "inputs", "text_1", "text_2", "queries", "truncate_prompt_tokens"),
)
"""Fields whose rules a schema cannot say in full, such as the masks and variants that this model has."""


@pytest.mark.slow
@pytest.mark.parametrize("path", [*PATHS, *(pytest.param(path, marks=pytest.mark.more) for path in OTHERS)])
def test_requests_that_keep_to_the_document_are_answered_as_it_says(path: str) -> None:
    statuses: Counter[int] = Counter()
    schema = schemathesis.openapi.from_asgi("/openapi.json", app_with(), headers=HERE)

    @repeatable(50 if path in PATHS else 25)
    @given(case=schema[path]["POST"].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def run(case: Case) -> None:
        response = case.call(headers=HERE)
        assert response.status_code in ((200, 422) if path in PATHS else (200, 400, 422)), response.text[:500]
        case.validate_response(response, excluded_checks=[schemathesis.checks.positive_data_acceptance])
        if response.status_code != 200:
            error = response.json()["error"]
            sentence = error if isinstance(error, str) else error["message"]
            assert re.split(r"[:[]", sentence)[0] in NOT_IN_THE_DOCUMENT, sentence
        statuses[response.status_code] += 1

    run()
    assert statuses[200] > 0


GOOD = {
    "/v1/score": {
        "query": "angle bracket",
        "titles": ["Simpson 12-Gauge", "😀"],
        "head_mask": {"off": [[2, 3]]},
    },
    "/v1/compare": {"query": "angle bracket", "titles": ["Simpson"], "masks": ["none", "0-5.*"]},
    "/v1/attention": {"query": "angle bracket", "title": "Simpson", "heads": "2.3,4.*"},
    "/v1/condense": {"query": "an angle bracket", "titles": ["Simpson", "😀"], "max_loss": 0.1},
}
VICIOUS = st.sampled_from(
    [
        *(b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"NaN", b"1e999", b"-Infinity", b"[" * 2000, b"{" * 40),
        *(b'"', b"\\", rb"\ud800", rb"\u0000", b"null", b"true", b"9" * 5000, b"-", b'{"a":1,"a":1}', b"//"),
    ]
)


@st.composite
def mangled(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, bytes]:
    """A good request with bytes cut, doubled or replaced by something vicious."""
    path = draw(st.sampled_from(PATHS))
    body = json.dumps(GOOD[path], ensure_ascii=draw(st.booleans())).encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 12)))
        body = body[:start] + draw(VICIOUS | st.binary(max_size=6)) + body[end:]
    return path, body


@repeatable(MANGLED)
@given(mangled())
def test_mangled_bytes_are_refused_or_understood_but_never_an_error_of_ours(
    request: tuple[str, bytes],
) -> None:
    answer = ask(app_with(), *request)
    if answer.status != 200:
        assert_refused(answer)


@repeatable(100)
@given(
    headers=st.dictionaries(
        st.sampled_from(
            ["content-type", "content-length", "content-encoding", "authorization", "x-request-id", "accept"]
        ),
        st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40),
    )
)
def test_odd_headers_are_no_error_of_ours(headers: dict[str, str]) -> None:
    answer = ask(app_with(), "/v1/score", orjson.dumps(GOOD["/v1/score"]), headers)
    if answer.status != 200:
        assert_refused(answer)

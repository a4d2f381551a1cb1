"""Requests of search engines and RAG programs, as their code sends them: what each of them reads is there.

`tests/fixtures/integrations.json` holds each request with the address of the code that sends it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.api.test_api import post
from tests.service.asgi import client
from tests.service.fake_backend import FakeBackend, app_with
from tests.service.in_process import Service, in_session

ROOT = Path(__file__).parents[4]
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/fixtures/integrations.json").read_text("utf-8"))
QUERY: str = RECORDED["query"]
DOCUMENTS: list[str] = RECORDED["documents"]
REQUESTS: dict[str, dict[str, Any]] = RECORDED["requests"]
UNTYPED = REQUESTS["weaviate"]


def by_result(answer: Any) -> list[float]:
    """The score of each document, as Dify, RAGFlow, Milvus and Open WebUI find it: by the result's index."""
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    return [scores[index] for index in range(len(DOCUMENTS))]


def by_document(answer: Any) -> list[float]:
    """As LibreChat and users of Xinference's client find it: by the text of the result's document."""
    scores = {result["document"]["text"]: result["relevance_score"] for result in answer["results"]}
    return [scores[document] for document in DOCUMENTS]


def in_bare_list(answer: Any) -> list[float]:
    """As clients of text-embeddings-inference find it, Milvus and RAGFlow among them."""
    scores = {rank["index"]: rank["score"] for rank in answer}
    return [scores[index] for index in range(len(DOCUMENTS))]


def in_the_requests_order(answer: Any) -> list[float]:
    """As Weaviate finds it: by position."""
    assert [each["document"] for each in answer["scores"]] == DOCUMENTS
    assert by_result(answer) == [each["score"] for each in answer["scores"]]
    return [each["score"] for each in answer["scores"]]


READERS: dict[str, Callable[[Any], list[float]]] = {
    "weaviate": in_the_requests_order,
    "milvus_tei": in_bare_list,
    "ragflow_huggingface": in_bare_list,
    "librechat": by_document,
    "xinference": by_document,
    "ragflow_xinference": by_document,
}
"""How each program reads the answer; others: `by_result`."""


async def send(session: httpx.AsyncClient, request: dict[str, Any], **headers: str) -> httpx.Response:
    """Send a recorded request, without headers that the program does not send."""
    built = httpx.Request(
        "POST",
        session.base_url.copy_with(path=request["path"]),
        content=request["body"].encode(),
        headers=request["headers"] | headers,
    )
    return await session.send(built)


@in_session
@pytest.mark.parametrize("name", REQUESTS)
async def test_each_program_finds_the_score_of_every_document(shared: Service, name: str) -> None:
    request = REQUESTS[name]
    answer = await send(shared.http, request)
    assert answer.status_code == 200, answer.text
    scored = await shared.post("/v1/score", query=QUERY, titles=DOCUMENTS)
    expected = [result["score"] for result in scored["results"]]
    assert len(set(expected)) == len(DOCUMENTS)
    assert READERS.get(name, by_result)(answer.json()) == pytest.approx(expected)


async def test_xinferences_booleans_may_be_texts_and_its_tokens_are_there() -> None:
    """RAGFlow sends "true"."""
    body = {"query": "a", "documents": ["b"], "return_documents": "false"}
    answer = (await post(app_with(), "/v1/rerank", body)).json()
    assert "document" not in answer["results"][0]
    assert answer["meta"]["tokens"] == {"input_tokens": 17, "output_tokens": 0}
    refused = await post(app_with(), "/v1/rerank", body | {"return_documents": "some"})
    assert "return_documents: should be true or false" in refused.text


async def test_a_body_without_a_content_type_is_read_for_weaviate_only() -> None:
    body = json.dumps({"query": "a", "documents": ["b"], "titles": ["b"], "texts_1": "a"})
    async with client(app_with()) as session:
        for path in ("/v1/rerank", "/v2/rerank", "/reranking", "/v1/score", "/score", "/predict", "/"):
            answer = await send(session, {"path": path, "headers": {}, "body": body})
            assert answer.status_code == 415, path
        without_property = await send(session, {"path": "/rerank", "headers": {}, "body": body})
        assert [each["document"] for each in without_property.json()["scores"]] == ["b"]
        typed = await session.post("/rerank", json={"query": "a", "documents": ["b"]})
        assert "scores" not in typed.json()
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            assert (await send(session, UNTYPED, **{"content-type": kind})).status_code == 415


BROWSERS = (
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "http://127.0.0.1"},  # its own page has no reason to
    {"sec-fetch-site": "same-origin"},
)


@pytest.mark.parametrize("headers", BROWSERS, ids=str)
async def test_a_body_without_a_content_type_from_a_browser_is_not_read(headers: dict[str, str]) -> None:
    """A page of another site can send one unasked, in a Blob without a type."""
    for settings in ({}, {"api_keys": "YOUR-KEY"}):
        backend = FakeBackend()
        async with client(app_with(backend, **settings)) as session:
            key = {"authorization": "Bearer YOUR-KEY"} if settings else {}
            answer = await send(session, UNTYPED, host="127.0.0.1", **headers, **key)
        assert answer.status_code in (403, 415)
        assert backend.requests == []


async def test_weaviates_errors_are_a_text() -> None:
    """Its client reads `error` as a string, and else says only that it cannot."""
    async with client(app_with()) as session:
        for wrong in ('{"query":" ","documents":["a"],"property":""}', '{"query":"a","property":""}'):
            answer = await send(session, UNTYPED | {"body": wrong})
            assert answer.status_code == 400
            assert list(answer.json()) == ["error"]
            assert isinstance(answer.json()["error"], str)
    async with client(app_with(api_keys="YOUR-KEY")) as session:
        stranger = await send(session, UNTYPED)
    assert stranger.status_code == 401
    assert "API key" in stranger.json()["error"]


async def test_weaviate_waits_until_the_service_is_ready() -> None:
    app = app_with(api_keys="YOUR-KEY")
    async with client(app) as session:
        for path in ("/.well-known/ready", "/.well-known/live"):
            answer = await session.get(path, headers={"host": "headroom:8000"})
            assert (answer.status_code, answer.content) == (204, b"")
        app.state.backend.reason = "draining"
        assert (await session.get("/.well-known/ready")).status_code == 503
        assert (await session.get("/.well-known/live")).status_code == 204


@pytest.mark.parametrize(
    "path", ["/v1/rerank/", "//v1/rerank", "/v1//rerank//", "/v2/rerank/", "/reranking/"]
)
async def test_slashes_at_the_end_of_a_base_url_or_a_path_are_forgiven(path: str) -> None:
    async with client(app_with()) as session:
        request = {"path": path, "headers": {"content-type": "application/json"}}
        answer = await send(session, request | {"body": '{"query": "a", "documents": ["b"]}'})
        assert answer.json()["results"][0]["index"] == 0
        wrong = await send(session, request | {"body": "{"})
        assert list(wrong.json()) == ["message", "detail", "error"]


async def test_slashes_at_the_end_redirect_only_the_page_of_the_docs() -> None:
    async with client(app_with()) as session:
        assert (await session.get("/v1/models/")).status_code == 200
        assert (await session.get("/health/ready/")).status_code == 200
        moved = await session.get("/docs/")
        assert (moved.status_code, moved.headers["location"]) == (307, "../docs")

"""Nothing on the event loop grows with what a caller sends, however it is refused or answered.

The loop of a replica answers all requests and the health checks. So these tests measure its longest turn
while a request is answered: its processor time, which no other program of the machine changes.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from tests.checkpoints import write_checkpoint
from tests.service.asgi import Answer, Exchange, chunk
from tests.service.in_process import QUERY, Service, serve

LONGEST_TURN_S = 0.4
"""More than a body of 4 MB costs when it is read and validated: up to 0.16 s on a slow processor, and 0.27
beside other programs."""

BODY_BYTES = 4_000_000
WORDS = "steel wood lamp deck screws black white red cable charger kitchen towel phone case ".split()
LONG = " ".join(WORDS[number % len(WORDS)] for number in range(600))
SPEC = ",".join(["0.0"] * 4096)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wide(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A replica whose model has a window of 512 tokens."""
    model = write_checkpoint(tmp_path_factory.mktemp("wide") / "model", max_position_embeddings=512)
    async with serve(Path(model), max_queue_s=1e6, max_queue_tokens=10**9, max_compare_rows=1500) as service:
        await service.post("/v1/score", query=QUERY, titles=["a"])
        yield service


async def longest_turn(service: Service, path: str, body: bytes, **headers: str) -> tuple[float, Answer]:
    """Return the longest turn of the loop, in seconds of processor time, until the request is answered."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    gc.freeze()  # what other tests of this process left is not this request's to collect
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    answer = await Exchange(
        service.app,
        path=path,
        headers=[("host", "localhost"), *headers.items()],
        messages=[chunk(body, more=False)],
    ).answer()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    gc.unfreeze()
    return longest, answer


def many(item: str) -> bytes:
    """Return a JSON list that fills a body."""
    return b"[" + b",".join([item.encode()] * ((BODY_BYTES - 1000) // (len(item) + 1))) + b"]"


def tensors(titles: Any, *, sent_bytes: int | None = None) -> dict[str, Any]:
    """Return a request with these titles, or with bytes after it in their place."""
    query = {"name": "query", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    title = {"name": "title", "datatype": "BYTES", "shape": [1], "data": titles}
    if sent_bytes is not None:
        title |= {"shape": [sent_bytes // 4], "parameters": {"binary_data_size": sent_bytes}}
    return {"inputs": [query, title]}


SCORED = {"query": QUERY, "titles": [LONG] * 1000}
BODIES: dict[str, tuple[str, int, bytes]] = {
    "equal titles in chunks": ("/v1/score", 422, orjson.dumps(SCORED | {"overflow": "chunks"})),
    "long masks": ("/v1/compare", 200, orjson.dumps({"query": QUERY, "titles": ["a"], "masks": [SPEC] * 64})),
    "a long list of heads": (
        "/v1/score",
        200,
        orjson.dumps({"query": QUERY, "titles": ["a"], "head_mask": {"off": [[0, 1]] * 32_000}}),
    ),
    "attention": (
        "/v1/attention",
        200,
        orjson.dumps({"query": QUERY, "title": LONG, "heads": "*.*"}),
    ),
    "many texts for vLLM": ("/score", 400, b'{"text_1":"a","text_2":' + many('""') + b"}"),
    "many documents to make texts of": (
        "/v1/rerank",
        400,
        orjson.dumps(
            {
                "query": "a",
                "documents": [{"text": "a"}] * 42_000,
                "rank_fields": [*(f"field {number}" for number in range(63)), "text"],
            }
        ),
    ),
    "many elements of an input": ("/v2/models/full/infer", 400, orjson.dumps(tensors([["a"]] * 60_000))),
    "a query of a million words": (
        "/v1/condense",
        422,
        orjson.dumps({"query": "a " * 1_000_000, "titles": ["a"]}),
    ),
    "a long instruction": (
        "/v1/score",
        422,
        orjson.dumps({"query": "a", "titles": ["a"], "instruction": "a " * 1_900_000}),
    ),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_request_holds_up_no_other(wide: Service, name: str) -> None:
    path, status, body = BODIES[name]
    assert len(body) <= BODY_BYTES + 1
    longest, answer = await longest_turn(wide, path, body)
    assert answer.status == status, answer.body[:300]
    assert longest < LONGEST_TURN_S


async def test_tensors_of_a_million_texts_hold_up_no_other(wide: Service) -> None:
    texts = bytes(3_900_000)
    head = orjson.dumps(tensors(None, sent_bytes=len(texts)))
    longest, answer = await longest_turn(
        wide, "/v2/models/full/infer", head + texts, **{"inference-header-content-length": str(len(head))}
    )
    assert answer.status == 400
    assert longest < LONGEST_TURN_S


async def test_attention_is_the_same_however_it_is_written(wide: Service) -> None:
    body = orjson.dumps({"query": QUERY, "title": LONG, "heads": "0.1"})
    _, answer = await longest_turn(wide, "/v1/attention", body)
    (head,) = orjson.loads(answer.body)["heads"]
    rows = head["probabilities"]
    assert [len(row) for row in rows] == [len(rows)] * 512
    assert [sum(row) for row in rows] == pytest.approx([1.0] * 512, abs=1e-4)

"""Any mix of `on_failure`, cut-offs, `top_n`, a deadline and the own order, in any shape, on any device.

The device may fail in any way, which `original` never notices.

The answer is a whole order or one sentence; nothing crashes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headroom.service.errors import DeviceFailed, InferenceFailed, OutOfMemory
from tests.service.in_process import QUERY, TITLES, Service, serve
from tests.service.test_on_failure import Device, scores_of

FIELD_OF_TITLES = {
    "/v2/rerank": "documents",
    "/v1/rerank": "documents",
    "/rerank": "documents",
    "/reranking": "documents",
    "/v1/score": "titles",
}
SHAPES: list[tuple[str, str, dict[str, Any]]] = [
    *((path, field, {}) for path, field in FIELD_OF_TITLES.items()),
    ("/v1/rerank", "documents", {"return_documents": True}),
    ("/rerank", "texts", {}),
    ("/rerank", "documents", {"property": ""}),
]
"""Path, field of the titles, and further fields, of shapes whose answers name each title's index."""
IN_THE_REQUESTS_ORDER = ("/v1/score",)

MISSING = object()
FIELDS: dict[str, tuple[Any, ...]] = {
    "on_failure": ("original_order", "original_order", "original_order", "error", None, MISSING),
    "min_score": (MISSING, MISSING, 0, 0.4, 0.5, 0.6, 1.0, None),
    "min_grade": (MISSING, MISSING, 0, 2, 4, None),
    "top_n": (MISSING, MISSING, 1, 2, 3, 9, None),
    "top_k": (MISSING, MISSING, 2),
    "deadline_ms": (MISSING, MISSING, 0.001, 1, 15, 30),
    "variant": (MISSING, MISSING, MISSING, "original"),
}
WRONG: list[tuple[str, Any]] = [
    *(("on_failure", value) for value in ("no", 1, [])),
    *(("min_score", value) for value in (1.1, -1, "0.5", True)),
    *(("min_grade", value) for value in (5, -1, 2.5)),
    *(("deadline_ms", value) for value in (0, -1, "1", 1e9)),
]
FAILURES: tuple[Callable[[], Exception] | None, ...] = (
    *(None, DeviceFailed, OutOfMemory, InferenceFailed),
    partial(ZeroDivisionError, "secret"),
)
"""What makes the error that the device raises; None: it hangs."""
WELL = 99
"""Passes of a device that does not fail."""


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, dict[str, Any], Exception | None, int]:
    """Draw the path, the field of the titles, the body, what the device raises, and after how many passes."""
    path, field, more = draw(st.sampled_from(SHAPES))
    titles = draw(st.lists(st.sampled_from(TITLES), min_size=1, max_size=6))
    failure = draw(st.sampled_from(FAILURES))
    fails = None if failure is None else failure()
    passes = draw(st.sampled_from([WELL, WELL, 0, 1, 2]))
    mix = {name: draw(st.sampled_from(values)) for name, values in FIELDS.items()}
    if draw(st.integers(0, 4)) == 4:
        mix |= [draw(st.sampled_from(WRONG))]
    if fails is None and passes < WELL and mix["deadline_ms"] is MISSING:
        mix["deadline_ms"] = 30
    if path in IN_THE_REQUESTS_ORDER:  # which has neither
        del mix["top_n"]
    if path != "/v1/rerank":
        del mix["top_k"]
    given_fields = {name: value for name, value in mix.items() if value is not MISSING}
    return path, field, {"query": QUERY, field: titles, **more, **given_fields}, fails, passes


class Known(NamedTuple):
    """What the model says of a title."""

    score: float
    grade: int


def check(
    path: str, titles: list[str], body: dict[str, Any], answer: httpx.Response, known: dict[str, Known]
) -> str:
    """Check an answer; return what it says of its order, or "error"."""
    keeps_order = body.get("on_failure") == "original_order"
    if answer.status_code != 200:
        content = answer.json()
        message = content["error"] if isinstance(content.get("error"), str) else content["error"]["message"]
        assert 0 < len(message) < 400
        assert "\n" not in message
        assert "secret" not in answer.text
        limits = (400, 404, 422) if keeps_order else (400, 404, 422, 424, 429, 500, 503, 504)
        assert answer.status_code in limits, answer.text
        return "error"
    reranked = answer.headers["x-reranked"]
    rows = list(scores_of(answer).items())
    ordered = sorted(rows, key=lambda row: -row[1])  # as a client sorts: equal scores keep their order
    if path not in IN_THE_REQUESTS_ORDER:
        assert rows == ordered
    assert all(0 <= index < len(titles) for index, _ in rows)
    count = "top_k" if "top_k" in body else "top_n"  # with top_k it is Voyage's
    shown = body.get(count) or len(titles)
    if body.get("variant") == "original":
        assert reranked == "true"
        assert [index for index, _ in ordered] == [*range(len(titles))][:shown]
        return "own order"
    scored = [
        (index, score)
        for index, score in rows
        if score == pytest.approx(known[titles[index]].score, abs=1e-5)
    ]
    rest = [index for index, score in ordered if (index, score) not in scored]
    assert {score for index, score in rows if index in rest} <= {0}
    assert rest == sorted(rest)
    min_score = body.get("min_score") or 0
    min_grade = body.get("min_grade") or 0
    assert all(score >= min_score - 1e-6 for _, score in scored)
    match reranked:
        case "true":
            assert not rest
            of_titles = [known[title] for title in titles]
            kept = [each.score for each in of_titles if each.score >= min_score and each.grade >= min_grade]
            assert [score for _, score in ordered] == pytest.approx(sorted(kept)[::-1][:shown], abs=1e-5)
            assert answer.headers.get("x-dropped", "0") == str(len(titles) - len(kept))
        case "false":
            assert rest == [*range(len(titles))][:shown]
        case _:
            pytest.fail(reranked)
    assert reranked == "true" or keeps_order
    return reranked


def test_any_mix_in_any_shape_gives_an_order_or_one_sentence(tiny_checkpoint: Path) -> None:
    seen: Counter[str] = Counter()
    with asyncio.Runner() as runner:

        async def start(stack: AsyncExitStack) -> tuple[Service, Device, dict[str, Known]]:
            service = await stack.enter_async_context(
                serve(tiny_checkpoint, max_batch_tokens=16, drain_timeout_s=0.1)
            )
            answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
            known = {TITLES[row["index"]]: Known(row["score"], row["grade"]) for row in answer["results"]}
            return service, Device(service), known

        async def ask(
            path: str, body: dict[str, Any], fails: Exception | None, passes: int
        ) -> httpx.Response:
            device.fails = fails
            device.passes = passes
            device.computed.clear()
            try:
                return await service.http.post(path, json=body)
            finally:
                device.hang.set()
                device.hang = asyncio.Event()

        stack = AsyncExitStack()
        service, device, known = runner.run(start(stack))
        try:

            @settings(max_examples=200)
            @given(cases())
            def holds(case: tuple[str, str, dict[str, Any], Exception | None, int]) -> None:
                path, field, body, fails, passes = case
                answer = runner.run(ask(path, body, fails, passes))
                seen[check(path, body[field], body, answer, known)] += 1

            holds()
        finally:
            runner.run(stack.aclose())
    assert {*seen} == {"true", "false", "error", "own order"}, seen

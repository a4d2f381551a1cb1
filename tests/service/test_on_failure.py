"""`on_failure: original_order`: whatever fails, the caller gets its titles, as its client reads them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headroom.service.config.settings import LiveConfig
from headroom.service.engine.request import Submission
from headroom.service.engine.runner import Batch
from headroom.service.errors import DeviceFailed, InferenceFailed, OutOfMemory
from tests.service.experimenting import config as experiment_config
from tests.service.experimenting import exposing_requests
from tests.service.in_process import (
    CONFIG,
    LIMITS,
    QUERY,
    TITLES,
    Service,
    in_session,
    long_queue,
    serve,
)
from tests.service.running import PATIENCE_S

KEEP = {"on_failure": "original_order"}
DROPS: dict[str, Any] = {"drain_timeout_s": 0.1}
"""Settings of a service that at its end does not wait for a device that hangs."""
KEY = {"authorization": "Bearer slow"}


class Device:
    """Stands between the queue and the network: passes batches on, or fails.

    passes: how many batches it computes first. fails: what the others raise, or return for a row; None: they
    never end.
    """

    def __init__(self, service: Service, fails: Exception | None = None, *, passes: int = 0) -> None:
        self.passes = passes
        self.fails = fails
        self.computed: list[int] = []
        self.hang = asyncio.Event()
        runner = service.replica.scheduler._runner
        self._forward: Callable[[Batch], Awaitable[Sequence[Any]]] = runner.forward
        runner.forward = self._run

    async def _run(self, batch: Batch) -> Sequence[Any]:
        if len(self.computed) < self.passes:
            self.computed.append(len(batch.rows))
            return await self._forward(batch)
        if self.fails is None:
            await self.hang.wait()
            return [InferenceFailed() for _ in batch.rows]
        if isinstance(self.fails, InferenceFailed):
            return [self.fails for _ in batch.rows]
        assert self.fails is not None
        raise self.fails


@asynccontextmanager
async def failing(reason: str, model: Path, config: dict[str, Any] | None = None) -> AsyncIterator[Service]:
    """A service in which everything that is to be scored fails for this reason."""
    settings = LIMITS | DROPS
    if reason == "rate_limited":
        settings["api_keys"] = "slow;rate=0.001"
    async with serve(model, config, **settings) as service:
        match reason:
            case "queue_full":
                async with long_queue(service):
                    service.replica.scheduler._admission.max_queue_tokens = 1
                    yield service
                return
            case "rate_limited":
                service.http.headers.update(KEY)
                await service.post("/v1/score", query=QUERY, titles=TITLES)
            case "starting":
                service.app.state.backend = None
            case "draining":
                await service.replica.drain()
            case "device_failed":
                Device(service, DeviceFailed("cuda"))
            case "out_of_memory":
                Device(service, OutOfMemory())
            case "internal_error":
                Device(service, ZeroDivisionError("secret"))
            case "deadline_exceeded":
                Device(service)
        yield service


REASONS = {
    "queue_full": 429,
    "rate_limited": 429,
    "starting": 503,
    "draining": 503,
    "device_failed": 503,
    "out_of_memory": 503,
    "internal_error": 500,
    "deadline_exceeded": 504,
}


@pytest.mark.parametrize("reason", REASONS)
async def test_whatever_fails_the_titles_come_back_as_they_were_sent(
    reason: str, tiny_checkpoint: Path
) -> None:
    async with failing(reason, tiny_checkpoint) as service:
        body: dict[str, Any] = {"query": QUERY, "titles": TITLES}
        if reason == "deadline_exceeded":
            body["deadline_ms"] = 100
        error = await service.refused("/v1/score", REASONS[reason], **body)
        assert error["type"] == reason
        answer = await service.http.post("/v1/score", json=body | KEEP)
        assert (answer.status_code, answer.headers["x-reranked"]) == (200, "false")
        assert answer.headers["x-reranked-reason"] == reason
        content = answer.json()
        assert (content["reranked"], content["reason"], content["dropped"]) == (False, reason, 0)
        assert [result["index"] for result in content["results"]] == [0, 1, 2, 3]
        assert {(result["score"], result["raw_score"]) for result in content["results"]} == {(0, 0)}
        assert not any(result.get("scored", True) for result in content["results"])
        assert "secret" not in answer.text
        assert service.metric(f'headroom_unreranked_total{{reason="{reason}"}}') == 1
        is_shed = {"queue_full": "queue_full", "rate_limited": "rate", "deadline_exceeded": "deadline"}
        if reason in is_shed:  # the error and the answer in its place
            assert service.metric(f'headroom_shed_total{{reason="{is_shed[reason]}"}}') == 2


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere 2": ("/v2/rerank", {"query": QUERY, "documents": TITLES}),
    "cohere 1": ("/v1/rerank", {"query": QUERY, "documents": TITLES, "return_documents": True}),
    "infinity": ("/rerank", {"query": QUERY, "documents": TITLES}),
    "voyage": ("/v1/rerank", {"query": QUERY, "documents": TITLES, "top_k": 9}),
    "tei": ("/rerank", {"query": QUERY, "texts": TITLES}),
    "vllm": ("/score", {"queries": QUERY, "documents": TITLES}),
    "ours": ("/v1/score", {"query": QUERY, "titles": TITLES}),
    "tensors": (
        "/v2/models/full/infer",
        {
            "inputs": [
                {"name": "query", "datatype": "BYTES", "shape": [1], "data": [QUERY]},
                {"name": "title", "datatype": "BYTES", "shape": [len(TITLES)], "data": TITLES},
            ]
        },
    ),
}


def scores_of(answer: httpx.Response) -> dict[int, float]:
    """Return the scores by index, in the order of the answer, as each shape's client reads them."""
    content = answer.json()
    if isinstance(content, list):
        return {row["index"]: row["score"] for row in content}
    if "outputs" in content:
        return dict(enumerate(content["outputs"][0]["data"]))
    rows = content.get("data") or content.get("results") or []
    return {row["index"]: row.get("relevance_score", row.get("score")) for row in rows}


async def test_every_shape_keeps_the_callers_order_and_says_so(tiny_checkpoint: Path) -> None:
    async with failing("device_failed", tiny_checkpoint, CONFIG | KEEP) as service:
        for shape, (path, body) in SHAPES.items():
            answer = await service.http.post(path, json=body)
            assert (answer.status_code, answer.headers["x-reranked"]) == (200, "false"), answer.text
            scores = scores_of(answer)
            assert list(scores) == [0, 1, 2, 3], shape
            assert len(set(scores.values())) == 1, shape
            content = answer.json()
            if shape in ("cohere 1", "cohere 2", "infinity", "voyage"):
                warnings = content["meta"]["warnings"] if "meta" in content else content["warnings"]
                assert warnings == [
                    "4 of the documents were not reranked (device_failed) and keep their order."
                ]
            if shape == "tensors":
                assert [(row["name"], row["data"]) for row in content["outputs"][1:]] == [
                    ("probabilities", [0] * 20),
                    ("grade", [-1] * 4),
                ]
            overridden = await service.http.post(path, json=body | {"on_failure": "error"})
            assert overridden.status_code == 503, shape


async def test_labels_have_no_order_to_keep(shared: Service) -> None:
    for field in (KEEP, {"min_score": 0.5}, {"min_grade": 1}):
        answer = await shared.http.post("/predict", json={"inputs": [QUERY, TITLES[0]]} | field)
        assert answer.status_code == 422
        assert answer.json()["error"].startswith(f"{next(iter(field))}: ")


@pytest.mark.parametrize("passes", [0, 1])
async def test_a_cascade_with_a_stage_that_fails_keeps_the_order(passes: int, tiny_checkpoint: Path) -> None:
    cascade = {"name": "two", "cascade": [{"variant": "masked", "keep": 2}, {"variant": "full"}]}
    config = CONFIG | {"variants": [*CONFIG["variants"], cascade]}
    async with serve(tiny_checkpoint, config) as service:
        Device(service, DeviceFailed("cuda"), passes=passes)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="two", **KEEP)
        assert (answer["reranked"], answer["reason"]) == (False, "device_failed")
        assert [row["index"] for row in answer["results"]] == [0, 1, 2, 3]
        assert not any(row.get("scored", True) for row in answer["results"])


async def test_a_late_arm_counts_as_late_and_its_unit_as_exposed(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, experiment_config(), **DROPS) as service:
        Device(service)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit="u", deadline_ms=50, **KEEP)
        assert (answer["reranked"], answer["assignment"]) == (False, None)
        assert exposing_requests(service) == 1


async def test_a_failed_request_without_an_order_is_an_error_all_the_same(tiny_checkpoint: Path) -> None:
    async with failing("device_failed", tiny_checkpoint, CONFIG | KEEP) as service:
        await service.refused("/v1/compare", 503, query=QUERY, titles=TITLES, masks=["none"])
        answer = await service.http.post("/predict", json={"inputs": [QUERY, TITLES[0]]})
        assert answer.status_code == 503
    async with failing("rate_limited", tiny_checkpoint, CONFIG | KEEP) as service:
        await service.refused("/v1/compare", 429, query=QUERY, titles=TITLES, masks=["none"])
        await service.refused("/no/such/path", 429)
        assert (await service.http.get("/v1/models")).status_code == 429
        assert json.loads((await service.http.post("/v1/score", content="{")).text)["error"]["type"] == (
            "invalid_json"
        )


BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
STAMPS: list[tuple[str, float, bool]] = [  # the machine, seconds before now, whether that counts
    (BOOT_ID, 10.0, True),
    (BOOT_ID, 0.0, False),
    (BOOT_ID, -1000.0, False),
    ("another machine", 10.0, False),
    ("", 10.0, False),
]


@in_session
@pytest.mark.parametrize(("machine", "seconds", "counts"), STAMPS)
async def test_a_deadline_counts_from_the_proxy_of_this_machine(
    machine: str, seconds: float, counts: bool, shared: Service
) -> None:
    """A request whose replica died is sent to another one, which must not give it all of its time anew."""
    headers = {"x-headroom-received": f"{machine};{int((time.time() - seconds) * 1e6)}"}
    body = {"query": QUERY, "titles": TITLES, "deadline_ms": 9000}
    answer = await shared.http.post("/v1/score", json=body, headers=headers)
    assert answer.status_code == (504 if counts else 200)
    kept = await shared.http.post("/v1/score", json=body | KEEP, headers=headers)
    assert (kept.status_code, kept.headers["x-reranked"]) == (200, "false" if counts else "true")


@in_session
@pytest.mark.parametrize(
    "stamp", ["", ";", "1", f"{BOOT_ID};", f"{BOOT_ID};-1", f"{BOOT_ID};1e3", "é;1" * 99]
)
async def test_a_stamp_that_is_none_is_ignored(stamp: str, shared: Service) -> None:
    headers = {b"x-headroom-received": stamp.encode("latin-1")}
    body = {"query": QUERY, "titles": TITLES}
    assert (await shared.http.post("/v1/score", json=body, headers=headers)).status_code == 200


async def test_an_answer_without_scores_counts_in_no_stage(tiny_checkpoint: Path) -> None:
    """Zeros would make the stages of a service that fails look fast."""
    async with serve(tiny_checkpoint, max_batch_tokens=16, **DROPS) as service:
        counted = 'headroom_stage_seconds_count{stage="inference"}'
        await service.post("/v1/score", query=QUERY, titles=TITLES, **KEEP)
        assert service.metric(counted) == 1
        Device(service, DeviceFailed("cuda"), passes=1)
        assert (await service.post("/v1/score", query=QUERY, titles=TITLES, **KEEP))["reranked"] is False
        assert service.metric(counted) == 1


async def test_an_edit_that_removes_what_a_waiting_request_names_changes_nothing_for_it(
    tiny_checkpoint: Path,
) -> None:
    async with serve(tiny_checkpoint, CONFIG, **LIMITS, **DROPS) as service:
        before = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="masked")
        device = Device(service)
        forward = device._forward
        begin = asyncio.Event()

        async def later(batch: Batch) -> Sequence[Any]:
            await begin.wait()
            return await forward(batch)

        scheduler = service.replica.scheduler
        scheduler._runner.forward = later
        accepted = list[Submission]()  # with those whose deadline passes before the last one comes
        submit = scheduler.submit

        def accepting(*args: Any, **kwargs: Any) -> Submission:
            accepted.append(submit(*args, **kwargs))
            return accepted[-1]

        scheduler.submit = accepting
        _, tensors = SHAPES["tensors"]
        late = {"query": QUERY, "titles": TITLES, "deadline_ms": 500, **KEEP}
        path = "/v2/models/masked/infer"
        requests = [
            ("/v1/score", {"query": QUERY, "titles": TITLES, "variant": "masked"}),
            (path, tensors),
            ("/v1/score", late | {"variant": "masked"}),
            ("/v1/score", late | {"head_mask": "@some"}),
            (path, tensors | {"deadline_ms": 500, **KEEP}),
        ]
        answers = [asyncio.create_task(service.http.post(path, json=body)) for path, body in requests]
        async with asyncio.timeout(PATIENCE_S):
            while len(accepted) < len(answers):
                await asyncio.sleep(0.01)
        edited = LiveConfig.model_validate({"variants": [{"name": "full"}]})
        await asyncio.to_thread(service.replica.apply, edited)
        for answer in await asyncio.gather(*answers[2:]):
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-reranked"] == "false"
        (probabilities,) = (
            output for output in answers[4].result().json()["outputs"] if output["name"] == "probabilities"
        )
        assert (probabilities["shape"], set(probabilities["data"])) == ([len(TITLES), 5], {0})
        begin.set()
        ours, theirs = await asyncio.gather(*answers[:2])
        assert ours.json()["results"] == before["results"]
        assert theirs.status_code == 200, theirs.text
        (scores,) = (output for output in theirs.json()["outputs"] if output["name"] == "score")
        assert scores["data"] == pytest.approx([row["score"] for row in before["results"]], abs=1e-6)

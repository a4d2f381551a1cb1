"""The whole way of a request in one process: HTTP, scheduler, forward thread, a real (small) network."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fastapi import FastAPI
from safetensors.torch import load_file, save_file

from models import Classifier, HeadMask
from models.compress.quantize import quantize
from service.errors import DeviceFailed, OutOfMemory
from service.http import create_app
from service.metrics import Metrics
from service.scoring import pipeline as pipeline_module
from service.scoring.pipeline import Pipeline
from service.settings import InvalidConfig, LiveConfig, Settings
from tests.checkpoints import write_checkpoint
from tests.service.asgi import Exchange, chunk, client

QUERY = "angle bracket"
TITLES = ["Simpson Strong-Tie 12-Gauge Angle", "wood deck screws", "angle", "steel bracket, black " * 30]
CONFIG: dict[str, Any] = {
    "masks": {"some": "random:0.5@7"},
    "variants": [
        {"name": "full"},
        {"name": "masked", "head_mask": "1.0-2"},
        {"name": "cut", "head_mask": "@some", "sliced": True},
    ],
}


class Service:
    """A running pipeline behind its HTTP side."""

    def __init__(self, app: FastAPI, pipeline: Pipeline, http: httpx.AsyncClient, metrics: Metrics) -> None:
        self.app = app
        self.pipeline = pipeline
        self.http = http
        self.metrics = metrics

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    async def refused(self, path: str, status: int, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    def metric(self, line: str) -> float:
        """The value of the series that starts with `line`."""
        for row in self.metrics.render().decode().splitlines():
            if row.startswith(line):
                return float(row.rsplit(" ", 1)[1])
        return 0.0


@asynccontextmanager
async def serve(
    model: Path, config: dict[str, Any] | None = None, *, threads: int = 1, **settings: Any
) -> AsyncIterator[Service]:
    # A wait that no machine reaches: only tests of the limits are to meet them.
    settings = {"dtype": "float32", "max_queue_s": 60.0} | settings
    options = Settings(model=str(model), device="cpu", **settings)
    metrics = Metrics()
    pipeline = Pipeline.load(options, LiveConfig.model_validate(config or CONFIG), metrics, threads=threads)
    await pipeline.start()
    app = create_app(options, metrics)
    app.state.pipeline = pipeline
    try:
        async with client(app) as http:
            yield Service(app, pipeline, http, metrics)
    finally:
        await pipeline.drain()


@pytest.fixture
async def service(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint) as running:
        yield running


@pytest.fixture(scope="module")
def clf(tiny_checkpoint: Path) -> Classifier:
    return Classifier.load(tiny_checkpoint, "cpu", "float32")


def pairs() -> list[tuple[str, str]]:
    return [(QUERY, title) for title in TITLES]


async def test_scores_are_the_classifiers_own_in_the_request_order(service: Service, clf: Classifier) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, head_mask="2.3,1.*")
    expected = clf.score(pairs(), HeadMask.parse("1.*,2.3", layers=3, heads=4))

    assert [row["index"] for row in answer["results"]] == [0, 1, 2, 3]
    for i, row in enumerate(answer["results"]):
        np.testing.assert_allclose(row["probabilities"], expected.probabilities[i], atol=1e-5)
        assert row["expected_grade"] == pytest.approx(expected.expected_grade[i], abs=1e-4)
        assert row["score"] == pytest.approx(expected.score[i], abs=1e-4)
        assert row["grade"] == expected.grade[i]
        assert row["label"] == clf.grades[row["grade"]]
    assert [row["truncated"] for row in answer["results"]] == [False, False, False, True]
    assert answer["results"][3]["tokens"] == clf.max_tokens
    assert answer["head_mask"] == {
        "id": HeadMask.parse("1.*,2.3", layers=3, heads=4).id,
        "spec": "1.*,2.3",
        "heads_on": 7,
        "heads": 12,
    }
    assert answer["usage"] == {"pairs": 4, "tokens": sum(row["tokens"] for row in answer["results"])}
    assert answer["variant"] == "full"
    assert answer["assignment"] is None
    assert set(answer["timing_ms"]) == {"tokenize", "queue", "inference", "total"}


async def test_pairs_in_place_of_query_and_titles(service: Service) -> None:
    one = await service.post("/v1/score", query=QUERY, titles=TITLES)
    other = await service.post("/v1/score", pairs=[list(pair) for pair in pairs()])
    assert one["results"] == other["results"]


@pytest.mark.parametrize(
    ("variant", "spec"), [("full", "none"), ("masked", "1.0-2"), ("cut", "random:0.5@7"), (None, "none")]
)
async def test_every_variant_scores_as_its_mask(
    service: Service, clf: Classifier, variant: str | None, spec: str
) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant=variant)
    expected = clf.score(pairs(), HeadMask.parse(spec, layers=3, heads=4))
    scores = [row["score"] for row in answer["results"]]
    np.testing.assert_allclose(scores, expected.score, atol=1e-5)


async def test_a_mask_is_multiplied_onto_the_variants(service: Service) -> None:
    answer = await service.post(
        "/v1/score", query=QUERY, titles=TITLES, variant="masked", head_mask={"keep": [[1, 0], [1, 3]]}
    )
    assert answer["head_mask"]["spec"] == "0.*,1.0-2,2.*"
    assert answer["variant"] == "masked"


async def test_requests_with_different_masks_at_once_get_each_their_own(
    service: Service, clf: Classifier
) -> None:
    specs = ["none", "1.*", "0-1.*", "random:0.5@1", "random:0.5@2", "keep:2.2", "0-2.*"] * 6

    answers = await asyncio.gather(
        *(service.post("/v1/score", query=QUERY, titles=TITLES, head_mask=spec) for spec in specs)
    )

    for spec, answer in zip(specs, answers, strict=True):
        expected = clf.score(pairs(), HeadMask.parse(spec, layers=3, heads=4))
        scores = [row["score"] for row in answer["results"]]
        np.testing.assert_allclose(scores, expected.score, atol=1e-5)


async def test_batches_side_by_side_score_as_one(tiny_checkpoint: Path, clf: Classifier) -> None:
    async with serve(tiny_checkpoint, threads=3) as service:
        titles = TITLES * 20
        answers = await asyncio.gather(
            *(service.post("/v1/score", query=QUERY, titles=titles, variant=name) for name in ("full", "cut"))
        )
        for answer, spec in zip(answers, ("none", "random:0.5@7"), strict=True):
            expected = clf.score(pairs(), HeadMask.parse(spec, layers=3, heads=4)).score
            scores = [row["score"] for row in answer["results"]]
            np.testing.assert_allclose(scores, np.tile(expected, 20), atol=1e-5)
        assert service.metric("headroom_batch_pairs_count") > 2  # the first request was spread over three


@pytest.mark.parametrize("threads", [1, 2])
async def test_deterministic_scores_are_the_same_bits_under_any_load(
    tiny_checkpoint: Path, threads: int
) -> None:
    async with serve(tiny_checkpoint, deterministic=True, threads=threads) as service:
        alone = await service.post("/v1/score", query=QUERY, titles=TITLES[:1], head_mask="1.2")
        crowd = await asyncio.gather(
            *(
                service.post("/v1/score", query=QUERY, titles=TITLES[: 1 + i % 4], head_mask=f"1.2,{i % 3}.0")
                for i in range(20)
            ),
            service.post("/v1/score", query=QUERY, titles=TITLES[:1], head_mask="1.2"),
        )
        assert crowd[-1]["results"] == alone["results"]


async def test_compare_gives_a_column_for_each_mask_and_variant_in_order(
    service: Service, clf: Classifier
) -> None:
    answer = await service.post(
        "/v1/compare", query=QUERY, titles=TITLES, masks=["none", "0-1.*"], variants=["cut", "full"]
    )

    assert [column["head_mask"]["spec"] for column in answer["columns"]] == [
        "none",
        "0-1.*",
        HeadMask.parse("random:0.5@7", layers=3, heads=4).spec,
        "none",
    ]
    assert [column["variant"] for column in answer["columns"]] == ["full", "full", "cut", "full"]
    for column in answer["columns"]:
        expected = clf.score(pairs(), HeadMask.parse(column["head_mask"]["spec"], layers=3, heads=4))
        np.testing.assert_allclose([row["score"] for row in column["results"]], expected.score, atol=1e-5)
    assert answer["usage"]["pairs"] == 16


async def test_compare_names_the_column_that_is_wrong(service: Service) -> None:
    error = await service.refused("/v1/compare", 422, query=QUERY, titles=TITLES, masks=["none", "9.0"])
    assert error["param"] == "masks[1]"
    error = await service.refused("/v1/compare", 422, query=QUERY, titles=TITLES, variants=["full", "nope"])
    assert error["param"] == "variants[1]"


async def test_attention_shows_the_heads_that_were_asked_for(service: Service, clf: Classifier) -> None:
    answer = await service.post(
        "/v1/attention", query="angle", title="steel angle", heads="2.3,0.*", head_mask="0.1"
    )

    size = len(answer["tokens"])
    assert answer["tokens"] == ["[CLS]", "angle", "[SEP]", "steel", "angle", "[SEP]"]
    assert answer["segments"] == [0, 0, 0, 1, 1, 1]
    assert [(head["layer"], head["head"]) for head in answer["heads"]] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (2, 3),
    ]
    pair = clf.tokenizer.encode([("angle", "steel angle")])[0]
    mask = HeadMask.parse("0.1", layers=3, heads=4)
    expected = clf.attention(pair, [(0, 0), (0, 1), (0, 2), (0, 3), (2, 3)], mask)
    for head, matrix in zip(answer["heads"], expected, strict=True):
        assert np.array(head["probabilities"]).shape == (size, size)
        np.testing.assert_allclose(head["probabilities"], matrix, atol=1e-5)


async def test_attention_refuses_more_than_one_answer_can_hold(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_attention_values=100) as service:
        error = await service.refused("/v1/attention", 422, query="angle", title=TITLES[0], heads="*.*")
        assert error["param"] == "heads"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": QUERY, "titles": ["x"], "head_mask": "3.0"}, "head_mask"),
        ({"query": QUERY, "titles": ["x"], "head_mask": {"weights": [[1]]}}, "head_mask"),
        ({"query": QUERY, "titles": ["x"], "head_mask": "@unknown"}, "head_mask"),
        ({"query": QUERY, "titles": ["x"], "variant": "nope"}, "variant"),
        ({"query": "\u0301", "titles": ["x"]}, "query"),
        ({"pairs": [["a", "b"], ["\u0301", "x"]]}, "pairs[1][0]"),
    ],
)
async def test_what_only_the_model_can_refuse_names_the_field(
    service: Service, body: dict[str, Any], param: str
) -> None:
    error = await service.refused("/v1/score", 422, **body)
    assert error["param"] == param
    assert service.metric("headroom_batch_pairs_count") == 0  # nothing was queued


@pytest.mark.parametrize(
    "title", ["", "🦆" * 10, "a\x00b\x07c", "\u202eright to left", "강남역 맛집", "x" * 1_000_000, " "]
)
async def test_any_text_is_scored(service: Service, title: str) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=[title, "angle"])
    alone = await service.post("/v1/score", query=QUERY, titles=["angle"])
    assert answer["results"][1]["score"] == pytest.approx(alone["results"][0]["score"], abs=1e-5)


async def test_unknown_script_is_said(service: Service) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=["강남역 맛집", "angle"])
    assert [row["unknown_tokens"] for row in answer["results"]] == [2, 0]


async def test_a_full_queue_is_429_with_retry_after(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=256) as service:
        answers = await asyncio.gather(
            *(service.http.post("/v1/score", json={"query": QUERY, "titles": TITLES}) for _ in range(60))
        )
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "queue_full"
        shed = sum(answer.status_code == 429 for answer in answers)
        assert service.metric('headroom_shed_total{reason="queue_full"}') == shed


async def test_a_long_request_shuts_nobody_out(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=256) as service:
        long = asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 200))
        scheduler = service.pipeline._scheduler
        while not scheduler.queued_tokens:
            await asyncio.sleep(0)
        assert scheduler.queued_tokens > 256
        for _ in range(5):
            await service.post("/v1/score", query=QUERY, titles=TITLES[:1])
        assert not long.done(), "too short for the test to mean something"
        refused = await asyncio.gather(
            *(
                service.http.post("/v1/score", json={"query": QUERY, "titles": TITLES * 100})
                for _ in range(20)
            )
        )
        assert {answer.status_code for answer in refused} == {429}
        assert len((await long)["results"]) == len(TITLES) * 200


async def test_a_request_of_more_tokens_than_one_may_have_is_refused_before_it_is_queued(
    tiny_checkpoint: Path,
) -> None:
    async with serve(tiny_checkpoint, max_request_tokens=100) as service:
        tokens = (await service.post("/v1/score", query=QUERY, titles=TITLES[:1]))["usage"]["tokens"]
        fits, many = 100 // tokens, 100 // tokens + 1
        await service.post("/v1/score", query=QUERY, titles=TITLES[:1] * fits)
        error = await service.refused("/v1/score", 422, query=QUERY, titles=TITLES[:1] * many)
        assert error["type"] == "invalid_request"
        assert error["param"] == "titles"
        assert error["message"] == f"titles: {many * tokens} tokens are more than the 100 of one request"
        error = await service.refused("/v1/score", 422, pairs=[[QUERY, TITLES[0]]] * many)
        assert error["param"] == "pairs"
        # Each column of a compare is work of its own.
        await service.post("/v1/compare", query=QUERY, titles=TITLES[:1], masks=["none"] * fits)
        error = await service.refused(
            "/v1/compare", 422, query=QUERY, titles=TITLES[:1], masks=["none"] * many
        )
        assert error["param"] == "titles"
        assert service.metric("headroom_batch_pairs_sum") == 1 + fits + fits
    async with serve(tiny_checkpoint, max_request_tokens=5) as service:
        error = await service.refused("/v1/attention", 422, query=QUERY, title=TITLES[0], heads="0.0")
        assert error["param"] == "title"


async def test_texts_tokenised_in_turns_give_what_they_give_at_once(
    service: Service, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "PORTION_CHARS", 300)
    titles = [f"steel bracket {number} " + "of wood and steel " * (number % 40) for number in range(200)]
    answer = await service.post("/v1/score", query=QUERY, titles=[*titles, *titles[:10]])
    expected = clf.score([(QUERY, title) for title in [*titles, *titles[:10]]])
    np.testing.assert_allclose(
        [row["score"] for row in answer["results"]], [float(score) for score in expected.score], atol=1e-4
    )


async def test_a_deadline_that_passed_is_504_and_counted(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=10**6) as service:
        crowd = [
            asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 20)) for _ in range(3)
        ]
        error = await service.refused("/v1/score", 504, query=QUERY, titles=TITLES * 200, deadline_ms=1)
        await asyncio.gather(*crowd)
        assert error["type"] == "deadline_exceeded"
        assert service.metric('headroom_shed_total{reason="deadline"}') == 1


async def test_the_queued_work_of_a_client_that_hung_up_is_dropped(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=10**6) as service:
        body = httpx.Request("POST", "http://x", json={"query": QUERY, "titles": TITLES * 200}).content
        exchange = Exchange(service.app, messages=[chunk(body, more=False)])
        scheduler = service.pipeline._scheduler
        while not scheduler.queued_tokens:
            await asyncio.sleep(0)
        exchange.incoming.put_nowait({"type": "http.disconnect"})
        await exchange.task

        assert scheduler.queued_tokens == 0
        assert service.metric('headroom_shed_total{reason="disconnect"}') == 1


async def test_a_row_without_a_finite_score_fails_its_own_request_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = service.pipeline._engine
    classifier = engine.classifiers[""]
    forward = classifier.forward

    def poisoned(encoded: Any, weights: Any, **how: Any) -> np.ndarray:
        logits = forward(encoded, weights, **how)
        for i, pair in enumerate(encoded):
            if "lamp" in classifier.tokenizer.tokens(pair):
                logits[i] = np.nan
        return logits

    monkeypatch.setattr(classifier, "forward", poisoned)
    good, bad = await asyncio.gather(
        service.post("/v1/score", query=QUERY, titles=TITLES),
        service.refused("/v1/score", 500, query=QUERY, titles=["a lamp"]),
    )
    assert len(good["results"]) == 4
    assert "finite" in bad["message"]


async def test_an_int8_model_that_overflows_fails_its_items_rather_than_guess(
    tiny_checkpoint: Path, clf: Classifier, tmp_path: Path
) -> None:
    quantize(tiny_checkpoint, tmp_path / "int8", clf.tokenizer.encode(pairs()))
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    for part in ("query", "key"):
        tensors[f"bert.encoder.layer.2.attention.self.{part}.weight_scale"] *= 1e30
    save_file(tensors, tmp_path / "int8" / "model.safetensors", {"format": "pt"})

    async with serve(tmp_path / "int8") as service:
        error = await service.refused("/v1/score", 500, query=QUERY, titles=TITLES)
        assert "finite" in error["message"]
        whole = await service.post("/v1/score", query=QUERY, titles=TITLES, head_mask="2.*")
        assert len(whole["results"]) == len(TITLES)


async def test_a_failed_device_is_503_counted_and_no_longer_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(service.pipeline._engine.classifiers[""], "forward", broken)
    error = await service.refused("/v1/score", 503, query=QUERY, titles=TITLES)
    assert error["type"] == DeviceFailed.type
    assert (await service.http.get("/health/ready")).status_code == 503
    assert (await service.http.get("/health/live")).status_code == 200
    await service.refused("/v1/score", 503, query=QUERY, titles=TITLES)
    assert service.metric('headroom_device_failures_total{kind="cuda"}') == 1


async def test_a_batch_that_does_not_fit_the_memory_is_halved_until_it_does(
    service: Service, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = service.pipeline._engine.classifiers[""]
    forward = classifier.forward

    def small(encoded: Any, weights: Any, **how: Any) -> np.ndarray:
        if len(encoded) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(encoded, weights, **how)

    monkeypatch.setattr(classifier, "forward", small)
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES * 4)
    scores = [row["score"] for row in answer["results"]]
    np.testing.assert_allclose(scores, clf.score(pairs() * 4).score, atol=1e-5)

    monkeypatch.setattr(classifier, "forward", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    error = await service.refused("/v1/score", 503, query=QUERY, titles=TITLES)
    assert error["type"] == OutOfMemory.type


async def test_a_live_config_changes_variants_without_touching_requests_under_way(
    service: Service, tmp_path: Path
) -> None:
    old = asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 100, variant="cut"))
    other = write_checkpoint(tmp_path / "other", seed=9)
    await asyncio.to_thread(
        service.pipeline.apply,
        LiveConfig.model_validate(
            {"variants": [{"name": "full"}, {"name": "other", "checkpoint": str(other)}], "default": "other"}
        ),
    )

    assert len((await old)["results"]) == 400
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
    assert (answer["variant"], answer["model"]) == ("other", "other")
    expected = Classifier.load(other, "cpu", "float32").score(pairs()).score
    np.testing.assert_allclose([row["score"] for row in answer["results"]], expected, atol=1e-5)
    error = await service.refused("/v1/score", 422, query=QUERY, titles=TITLES, variant="cut")
    assert "full, other" in error["message"]
    listed = (await service.http.get("/v1/variants")).json()
    assert [(v["name"], v["default"]) for v in listed["variants"]] == [("full", False), ("other", True)]


async def test_every_sliced_variant_has_room_for_its_heads(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.live_heads.LEAST_CACHE_BYTES", 0)
    network = service.pipeline._base.network
    attention = sum(layer.attention.nbytes for layer in network.layers if layer.attention)
    rooms = []
    for masks in (["0.0", "0.1", "0.1", "1.*"], []):
        variants = [
            {"name": f"v{number}", "head_mask": mask, "sliced": True} for number, mask in enumerate(masks)
        ]
        live = LiveConfig.model_validate({"variants": [{"name": "full"}, *variants]})
        await asyncio.to_thread(service.pipeline.apply, live)
        rooms.append(network.live_heads.cache.max_bytes)
    assert rooms == [(1 + 3) * attention, attention]  # two have the same mask


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"variants": [{"name": "a", "head_mask": "7.0"}]}, r"variants\[0\]\.head_mask: layer 7"),
        ({"variants": [{"name": "a", "head_mask": "@nope"}]}, "nope"),
        ({"masks": {"m": "0.9"}, "variants": [{"name": "a"}]}, r"masks\.m: head 9"),
        ({"variants": [{"name": "a", "checkpoint": "/no/such"}]}, "does not exist"),
    ],
)
async def test_a_config_that_does_not_fit_the_model_leaves_the_last_good_one(
    service: Service, config: dict[str, Any], message: str
) -> None:
    before = service.pipeline.config_version
    with pytest.raises(InvalidConfig, match=message):
        service.pipeline.apply(LiveConfig.model_validate(config))
    assert service.pipeline.config_version == before
    await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cut")


async def test_listings_say_what_is_loaded(service: Service, clf: Classifier) -> None:
    await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cut")
    models = (await service.http.get("/v1/models")).json()["models"]
    variants = (await service.http.get("/v1/variants")).json()["variants"]
    masks = (await service.http.get("/v1/masks")).json()["masks"]

    assert len(models) == 1
    assert models[0]["parameters"] == clf.network.parameters
    assert (models[0]["layers"], models[0]["heads"], models[0]["grades"]) == (3, 4, list(clf.grades))
    assert models[0]["sliced_bytes"] > 0
    assert [v["name"] for v in variants] == ["full", "masked", "cut"]
    assert variants[2]["parameters"] == models[0]["parameters"] - 6 * 8 * (4 * 32 + 3)
    assert [(m["name"], m["source"]) for m in masks] == [("some", "config")]


async def test_metrics_count_pairs_grades_and_batches_exactly(service: Service) -> None:
    await service.post("/v1/score", query=QUERY, titles=TITLES, variant="masked")
    await service.post("/v1/score", query=QUERY, titles=TITLES, head_mask="0.0")
    await service.post("/v1/compare", query=QUERY, titles=TITLES[:2], masks=["none"], variants=["cut"])

    assert service.metric('headroom_pairs_total{arm="",variant="masked"}') == 4
    assert service.metric('headroom_pairs_total{arm="",variant="custom"}') == 6
    assert service.metric('headroom_pairs_total{arm="",variant="cut"}') == 2
    assert service.metric("headroom_truncated_total") == 2
    assert service.metric("headroom_batch_pairs_sum") == 12
    grades = [
        service.metric(f'headroom_grade_total{{grade="{grade}",variant="masked"}}') for grade in range(5)
    ]
    assert sum(grades) == 4
    assert service.metric('headroom_heads_on{variant="cut"}') == 6
    assert service.metric("headroom_ready") == 1


async def test_draining_answers_what_was_accepted_and_refuses_what_comes_after(
    tiny_checkpoint: Path,
) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=10**6) as service:
        accepted = [
            asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 10)) for _ in range(5)
        ]
        while len(service.pipeline._scheduler._tickets) < len(accepted):
            await asyncio.sleep(0)
        draining = asyncio.create_task(service.pipeline.drain())
        await asyncio.sleep(0)

        late = await service.http.post("/v1/score", json={"query": QUERY, "titles": TITLES})
        assert late.status_code == 503
        assert "retry-after" in late.headers
        assert (await service.http.get("/health/ready")).status_code == 503
        assert [len(answer["results"]) for answer in await asyncio.gather(*accepted)] == [40] * 5
        await draining


async def test_a_one_label_model_gives_scores_and_no_grades(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "one", num_labels=1)
    async with serve(model) as service:
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
        row = answer["results"][0]
        assert (row["grade"], row["label"], row["expected_grade"], row["probabilities"]) == (None,) * 4
        expected = Classifier.load(model, "cpu", "float32").score(pairs()).score
        np.testing.assert_allclose([r["score"] for r in answer["results"]], expected, atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by Linux's /proc")
def test_loading_leaves_no_helper_threads_behind() -> None:
    """A second set of them would put those of the forward pass to sleep after every product."""
    script = """
import os, torch
from service.scoring.pipeline import load_classifier
from service.settings import Settings
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
load_classifier(Settings(device="cpu", dtype="float32"), None)
assert torch.get_num_threads() == 4
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"

"""`original`: the order in which the titles came is a variant, wherever a variant is named."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom.service.experiments.buckets import bucket
from tests.service.experimenting import config as experiment_config
from tests.service.experimenting import draw_by_the_contract, exposed, score, shadow_of
from tests.service.in_process import CONFIG, LIMITS, QUERY, TITLES, Service, in_session, long_queue, serve

NAMED = {"query": QUERY, "titles": TITLES, "variant": "original"}
IN_ORDER = list(range(len(TITLES)))


def against_the_order(**experiment: Any) -> dict[str, Any]:
    """A live config whose experiment compares the model with the order."""
    return experiment_config([{"name": "full"}], **{"arms": arms("original", "full"), **experiment})


def arms(control: str, treatment: str) -> list[dict[str, str]]:
    return [{"name": "control", "variant": control}, {"name": "pruned", "variant": treatment}]


@asynccontextmanager
async def without_device(model: Path, config: dict[str, Any] | None = None) -> AsyncIterator[Service]:
    """A service that can neither read a text, nor queue one, nor run a network."""

    def untouchable(*_: Any, **__: Any) -> Any:
        raise AssertionError("original needs no engine")

    async with serve(model, config) as service:
        service.replica.scheduler.submit = untouchable  # type: ignore[method-assign]
        service.replica.catalog.base.tokenizer.encode = untouchable  # type: ignore[method-assign]
        service.replica.engine.failed_kind = "cuda"
        yield service


def order(results: list[dict[str, Any]]) -> list[int]:
    """The order in which a client that sorts by score shows the titles."""
    return [result["index"] for result in sorted(results, key=lambda result: -result["score"])]


async def test_the_titles_come_back_in_their_order_although_the_device_is_gone(tiny_checkpoint: Path) -> None:
    async with without_device(tiny_checkpoint) as service:
        answer = await service.http.post("/v1/score", json=NAMED)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["variant"], body["reranked"], answer.headers["x-reranked"]) == ("original", True, "true")
        assert order(body["results"]) == IN_ORDER
        scores = [result["score"] for result in body["results"]]
        assert np.all(np.diff(np.float32(scores)) < 0)
        assert all(0 < value <= 1 for value in scores)
        assert not any(result["scored"] for result in body["results"])
        assert body["usage"] == {"pairs": 0, "tokens": 0}
        assert body["head_mask"]["heads"] == 0
        timing = body["timing_ms"]
        assert (timing["tokenize"], timing["queue"], timing["inference"]) == (0, 0, 0)
        await service.refused("/v1/score", 500, **NAMED | {"variant": "full"})  # the tools above are in use
        assert service.metric('headroom_pairs_total{arm="",variant="original"}') == len(TITLES)
        assert service.metric('headroom_pair_seconds_count{arm="",variant="original"}') == len(TITLES)


@in_session
async def test_it_is_listed_last_and_compared_beside_masks(shared: Service) -> None:
    listed = (await shared.http.get("/v1/variants")).json()["variants"]
    assert [variant["name"] for variant in listed] == ["full", "masked", "cut", "original"]
    assert (listed[-1]["parameters"], listed[-1]["head_mask"]["heads"]) == (0, 0)
    found = await shared.post(
        "/v1/compare", query=QUERY, titles=TITLES, masks=["none"], variants=["original"]
    )
    masked, in_order = found["columns"]
    assert (masked["variant"], in_order["variant"]) == ("full", "original")
    assert all(result["grade"] is not None for result in masked["results"])
    assert order(in_order["results"]) == IN_ORDER
    assert found["usage"]["pairs"] == len(TITLES)


ATTENTION = {"query": QUERY, "title": "a", "heads": "0.0", "variant": "original"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("score", NAMED | {"head_mask": "none"}, "head_mask: 'original' is the order in which the titles came"),
    ("score", NAMED | {"min_score": 0.5}, "min_score: 'original' is the order in which the titles came and"),
    ("score", NAMED | {"min_grade": 1}, "min_grade: 'original' is the order in which the titles came and"),
    ("attention", ATTENTION, "variant: 'original' is the order"),
    ("condense", NAMED | {"max_words": 1}, "variant: 'original' is the"),
]


@in_session
async def test_what_an_order_cannot_do_is_one_sentence(shared: Service) -> None:
    for path, body, beginning in REFUSED:
        error = await shared.refused(f"/v1/{path}", 422, **body)
        assert error["message"].startswith(beginning)
    answer = await shared.http.post("/predict", json={"inputs": [[QUERY, "a"]], "variant": "original"})
    assert answer.status_code == 422
    assert "variant: 'original' is an order of titles and gives no labels" in answer.text


async def test_a_guardrail_of_scores_is_refused_beside_an_order(tiny_checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="score_shift compares scores, and 'original' gives none"):
        async with serve(tiny_checkpoint, against_the_order(guardrails={"score_shift": 0.2})):
            pass


async def test_as_the_default_it_answers_what_names_nothing_and_masks_need_a_network(
    tiny_checkpoint: Path,
) -> None:
    async with serve(tiny_checkpoint, CONFIG | {"default": "original"}) as service:
        plain = await service.post("/v1/score", query=QUERY, titles=TITLES, min_score=0.9)
        assert plain["variant"] == "original"
        assert order(plain["results"]) == IN_ORDER  # nothing is known of a title, so none is left out
        assert (await service.post("/v1/score", query=QUERY, titles=TITLES, head_mask="0.0"))[
            "variant"
        ] == "full"
        compared = await service.post("/v1/compare", query=QUERY, titles=TITLES, masks=["none"])
        assert compared["columns"][0]["variant"] == "full"
        seen = await service.post("/v1/attention", query=QUERY, title="a", heads="0.0")
        assert seen["variant"] == "full"
        assert (await service.http.get("/info")).status_code == 200


async def test_in_a_brownout_it_stands_in_for_orders_only(tiny_checkpoint: Path) -> None:
    degrade = {"above_queue_tokens": 1, "variant": "original"}
    async with (
        serve(tiny_checkpoint, CONFIG | {"degrade": degrade}, **LIMITS) as service,
        long_queue(service),
    ):
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
        assert (answer["variant"], answer["degraded"], answer["reranked"]) == ("original", True, True)
        labels = asyncio.create_task(service.http.post("/predict", json={"inputs": [[QUERY, "a"]]}))
        while len(service.replica.scheduler._requests) < 5:
            assert not labels.done(), "answered by an order"
            await asyncio.sleep(0)
        labels.cancel()


async def test_as_an_arm_it_is_exposed_timed_and_never_computed(
    database_url: str, tiny_checkpoint: Path
) -> None:
    async with serve(tiny_checkpoint, against_the_order(), database_url=database_url) as service:
        units = [f"u{number}" for number in range(40)]
        of_order = {unit for unit in units if bucket("2026-11", unit) < 5000}
        forward = service.replica.scheduler.submit
        submitted = 0

        def counting(*rows: Any, **options: Any) -> Any:
            nonlocal submitted
            submitted += 1
            return forward(*rows, **options)

        service.replica.scheduler.submit = counting  # type: ignore[method-assign]
        for unit in units:
            answer = await score(service, unit)
            assert answer["variant"] == ("original" if unit in of_order else "full")
            assert answer["assignment"]["arm"] == ("control" if unit in of_order else "pruned")
        assert 0 < len(of_order) < len(units)
        assert submitted == len(units) - len(of_order)
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        assert {unit for unit, arm in exposed(database_url).items() if arm == "control"} == of_order
        (_, guard) = (await service.http.get("/v1/experiments/prune20")).json()["guardrails"]
        assert guard["requests"] == len(units) - len(of_order)
        pairs = service.metric('headroom_pairs_total{arm="control",variant="original"}')
        assert pairs == len(of_order) * len(TITLES)


@pytest.mark.parametrize("control", ["original", "full"])
async def test_interleaved_lists_hide_which_arm_is_the_order(
    control: str, database_url: str, tiny_checkpoint: Path
) -> None:
    treatment = "full" if control == "original" else "original"
    config = against_the_order(kind="interleave", arms=arms(control, treatment))
    async with serve(tiny_checkpoint, config, database_url=database_url) as service:
        model = (await service.post("/v1/score", query=QUERY, titles=TITLES, variant="full"))["results"]
        of_model = [result["raw_score"] for result in model]
        of_order = [-index for index in IN_ORDER]
        by_variant = {"full": of_model, "original": of_order}
        for number in range(8):
            answer = await score(service, f"u{number}", ids=[f"t{index}" for index in IN_ORDER])
            assert answer["assignment"]["arm"] == "interleaved"
            drawn, _ = draw_by_the_contract(f"u{number}", by_variant[control], by_variant[treatment])
            by_rank = sorted(answer["results"], key=lambda result: result["rank"])
            assert [result["index"] for result in by_rank] == drawn
            assert order(answer["results"]) == drawn
            for result, alone in zip(answer["results"], model, strict=True):
                assert result["grade"] == alone["grade"]
                assert result["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6)
                assert result["score"] <= alone["score"] + 1e-6
        limit = sorted(result["score"] for result in model)[1]
        cut = await score(service, "u0", min_score=limit)
        kept = {result["index"] for result in cut["results"]}
        assert kept == {result["index"] for result in model if result["score"] >= limit}
        assert cut["dropped"] == 1


async def test_in_shadow_the_orders_are_compared_and_the_scores_are_not(
    database_url: str, tiny_checkpoint: Path
) -> None:
    config = against_the_order(shadow=1.0, traffic=0.0)
    async with serve(tiny_checkpoint, config, database_url=database_url) as service:
        await score(service, grades=[3, 0, 1, 2])
        shadow = await shadow_of(service)
        assert {"mean_delta", "mean_abs_delta"}.isdisjoint(shadow["measures"])
        assert {"order_changed", "rank_correlation", "ndcg_loss", "seconds_delta"} <= set(shadow["measures"])
        model = (await service.post("/v1/score", query=QUERY, titles=TITLES, variant="full"))["results"]
        ranks = np.argsort(np.argsort([-result["raw_score"] for result in model]))
        correlation = float(np.corrcoef(ranks, IN_ORDER)[0, 1])
        assert shadow["measures"]["rank_correlation"]["mean"] == pytest.approx(correlation)
        assert shadow["measures"]["seconds_delta"]["mean"] > 0


async def test_an_order_of_tensors(tiny_checkpoint: Path) -> None:
    tensors = [
        {"name": "query", "datatype": "BYTES", "shape": [len(TITLES)], "data": [QUERY] * len(TITLES)},
        {"name": "title", "datatype": "BYTES", "shape": [len(TITLES)], "data": TITLES},
    ]
    async with without_device(tiny_checkpoint) as service:
        answer = await service.http.post("/v2/models/original/infer", json={"inputs": tensors})
        assert answer.status_code == 200, answer.text
        outputs = {output["name"]: output["data"] for output in json.loads(answer.text)["outputs"]}
        assert np.all(np.diff(outputs["score"]) < 0)
        assert outputs["grade"] == [-1] * len(TITLES)

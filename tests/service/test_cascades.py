"""Cascades as their users meet them: variants, columns, arms and shapes of a service, asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from models import Classifier, HeadMask, Scores
from service.scoring.cascade import comparable_scores
from service.settings import InvalidConfig, LiveConfig
from tests.checkpoints import WORDS, write_checkpoint
from tests.service.asgi import Exchange, chunk
from tests.service.experimenting import config as experiment_config
from tests.service.experimenting import eventually, exposed
from tests.service.in_process import QUERY, Service, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one service for most of the tests

TITLES = [" ".join(WORDS[i : i + 4]) for i in range(20)]
VARIANTS: list[dict[str, Any]] = [
    {"name": "cascade", "cascade": [{"variant": "cheap", "keep": 5}, {"variant": "full"}]},
    {"name": "cheap", "head_mask": "0-1.*", "sliced": True},
    {"name": "full"},
    {"name": "middle", "head_mask": "1.*"},
    {
        "name": "three",
        "cascade": [{"variant": "cheap", "keep": 0.5}, {"variant": "middle", "keep": 3}, {"variant": "full"}],
    },
]
CONFIG = {"variants": VARIANTS, "default": "full"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, CONFIG, threads=2) as running:
        yield running


def own_scores(clf: Classifier, spec: str, titles: list[str] = TITLES, query: str = QUERY) -> Scores:
    mask = HeadMask.parse(spec, layers=clf.num_layers, heads=clf.num_heads)
    return clf.score([(query, title) for title in titles], mask)


def best(scores: np.ndarray, pairs: list[int], count: int) -> list[int]:
    return sorted(sorted(pairs, key=lambda pair: -scores[pair])[:count])


async def test_the_best_titles_of_a_stage_are_scored_by_the_next(service: Service, clf: Classifier) -> None:
    cheap, full = own_scores(clf, "0-1.*"), own_scores(clf, "none")
    kept = best(cheap.score, list(range(20)), 5)
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")

    assert answer["variant"] == "cascade"
    results = answer["results"]
    assert [row["index"] for row in results] == list(range(20))
    assert [row["index"] for row in results if row["stage"] == "full"] == kept
    assert {row["stage"] for row in results} == {"cheap", "full"}
    for row in results:  # grades and probabilities are those of the stage that scored the title
        own = full if row["stage"] == "full" else cheap
        np.testing.assert_allclose(row["probabilities"], own.probabilities[row["index"]], atol=1e-5)
        assert row["expected_grade"] == pytest.approx(own.expected_grade[row["index"]], abs=1e-4)
    stages = np.array([row["stage"] == "full" for row in results], np.int64)
    expected = comparable_scores(np.where(stages, full.score, cheap.score), stages, 0.0)
    np.testing.assert_allclose([row["score"] for row in results], expected, atol=1e-5)
    lowest_kept = min(row["score"] for row in results if row["stage"] == "full")
    assert all(row["score"] < lowest_kept for row in results if row["stage"] == "cheap")

    assert [(stage["variant"], stage["pairs"]) for stage in answer["stages"]] == [("cheap", 20), ("full", 5)]
    assert [stage["head_mask"]["heads_on"] for stage in answer["stages"]] == [4, 12]
    assert answer["head_mask"]["heads_on"] == 12
    tokens = [row["tokens"] for row in results]
    assert answer["usage"] == {"pairs": 25, "tokens": sum(tokens) + sum(tokens[pair] for pair in kept)}
    assert answer["degraded"] is False


async def test_any_number_of_stages_each_of_what_the_one_before_kept(
    service: Service, clf: Classifier
) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="three")
    first = best(own_scores(clf, "0-1.*").score, list(range(20)), 10)
    second = best(own_scores(clf, "1.*").score, first, 3)
    of_stage = {
        name: [row["index"] for row in answer["results"] if row["stage"] == name]
        for name in ("cheap", "middle", "full")
    }
    assert of_stage["full"] == second
    assert sorted(of_stage["middle"] + second) == first
    assert [stage["pairs"] for stage in answer["stages"]] == [20, 10, 3]
    order = [row["stage"] for row in sorted(answer["results"], key=lambda row: -row["score"])]
    assert order == ["full"] * 3 + ["middle"] * 7 + ["cheap"] * 10


async def test_a_stage_that_would_keep_all_titles_is_skipped(service: Service, clf: Classifier) -> None:
    """Its scores are the last variant's own: a single title costs no first stage."""
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES[:5], variant="cascade")
    assert {row["stage"] for row in answer["results"]} == {"full"}
    assert [stage["pairs"] for stage in answer["stages"]] == [0, 5]
    expected = own_scores(clf, "none", TITLES[:5]).score
    np.testing.assert_allclose([row["score"] for row in answer["results"]], expected, atol=1e-5)


async def test_pairs_of_several_queries_keep_so_many_of_each(service: Service, clf: Classifier) -> None:
    pairs = [[query, title] for title in TITLES[:8] for query in (QUERY, "deck screws")]
    pairs.append(["laptop", TITLES[0]])
    answer = await service.post("/v1/score", pairs=pairs, variant="cascade")
    for query in (QUERY, "deck screws"):
        cheap = own_scores(clf, "0-1.*", TITLES[:8], query).score
        of_query = [row for row, pair in zip(answer["results"], pairs, strict=True) if pair[0] == query]
        kept = [place for place, row in enumerate(of_query) if row["stage"] == "full"]
        assert kept == best(cheap, list(range(8)), 5)
    assert answer["results"][-1]["stage"] == "full"
    assert [stage["pairs"] for stage in answer["stages"]] == [16, 11]


async def test_a_requests_mask_is_multiplied_onto_each_stage(service: Service, clf: Classifier) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade", head_mask="2.0")
    specs = [stage["head_mask"]["spec"] for stage in answer["stages"]]
    assert specs == ["0-1.*,2.0", "2.0"]
    kept = best(own_scores(clf, "0-1.*,2.0").score, list(range(20)), 5)
    assert [row["index"] for row in answer["results"] if row["stage"] == "full"] == kept


async def test_long_titles_in_chunks_go_on_with_all_their_chunks(service: Service) -> None:
    titles = [*TITLES[:7], "steel bracket, black " * 40]
    whole = await service.post("/v1/score", query=QUERY, titles=titles, variant="full", overflow="chunks")
    answer = await service.post("/v1/score", query=QUERY, titles=titles, variant="cascade", overflow="chunks")
    for ours, full in zip(answer["results"], whole["results"], strict=True):
        assert ours["tokens"] == full["tokens"]
        assert (ours["chunk"] is None) == (full["chunk"] is None)
        if ours["stage"] == "full":
            assert ours["score"] == pytest.approx(full["score"], abs=1e-5)
    assert answer["usage"]["tokens"] > whole["usage"]["tokens"]


async def test_a_cascade_is_a_column_of_a_compare(service: Service) -> None:
    alone = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
    full = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="full")
    answer = await service.post(
        "/v1/compare",
        query=QUERY,
        titles=TITLES,
        masks=["none"],
        variants=["cascade", "full", "three"],
    )
    columns = answer["columns"]
    assert [column["variant"] for column in columns] == ["full", "cascade", "full", "three"]
    assert [column["stages"] is None for column in columns] == [True, False, True, False]
    for column, other in ((columns[1], alone), (columns[2], full)):
        assert [row["stage"] for row in column["results"]] == [row["stage"] for row in other["results"]]
        np.testing.assert_allclose(
            [row["score"] for row in column["results"]], [row["score"] for row in other["results"]], atol=1e-5
        )
    assert answer["usage"]["pairs"] == 20 + 25 + 20 + 33
    assert not any(column["degraded"] for column in columns)


async def test_other_clients_shapes_get_the_cascades_order(service: Service) -> None:
    alone = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
    order = [row["index"] for row in sorted(alone["results"], key=lambda row: -row["score"])]
    for raw in (False, True):
        body = {"query": QUERY, "texts": TITLES, "variant": "cascade", "raw_scores": raw}
        ranks = (await service.http.post("/rerank", json=body)).json()
        assert [rank["index"] for rank in ranks] == order
        assert [rank["score"] for rank in ranks] == sorted((rank["score"] for rank in ranks), reverse=True)
    cohere = await service.post("/v2/rerank", query=QUERY, documents=TITLES, model="x@cascade", top_n=3)
    assert [row["index"] for row in cohere["results"]] == order[:3]
    infer = await service.post(
        "/v2/models/cascade/infer",
        inputs=[
            {"name": "query", "datatype": "BYTES", "shape": [1], "data": [QUERY]},
            {"name": "title", "datatype": "BYTES", "shape": [len(TITLES)], "data": TITLES},
        ],
    )
    scores = next(output["data"] for output in infer["outputs"] if output["name"] == "score")
    np.testing.assert_allclose(scores, [row["score"] for row in alone["results"]], atol=1e-5)


async def test_the_listing_names_the_stages(service: Service) -> None:
    listed = (await service.http.get("/v1/variants")).json()["variants"]
    assert [variant["name"] for variant in listed] == [variant["name"] for variant in VARIANTS]
    by_name = {variant["name"]: variant for variant in listed}
    assert by_name["full"]["cascade"] is None
    assert by_name["cascade"]["cascade"] == [
        {"variant": "cheap", "keep": 5},
        {"variant": "full", "keep": None},
    ]
    assert by_name["three"]["cascade"][0]["keep"] == 0.5
    assert by_name["cascade"]["head_mask"] == by_name["full"]["head_mask"]


async def test_attention_is_the_last_stages(service: Service) -> None:
    body = {"query": QUERY, "title": TITLES[0], "heads": "2.3"}
    ours = await service.post("/v1/attention", **body, variant="cascade")
    full = await service.post("/v1/attention", **body, variant="full")
    assert ours["heads"] == full["heads"]


async def test_metrics_count_a_cascade_by_its_name_and_its_stages(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG) as service:
        await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        await service.post("/v1/score", query=QUERY, titles=TITLES[:2], variant="cascade")
        assert service.metric('headroom_pairs_total{arm="",variant="cascade"}') == 22
        assert service.metric('headroom_cascade_pairs_total{stage="cheap",variant="cascade"}') == 20
        assert service.metric('headroom_cascade_pairs_total{stage="full",variant="cascade"}') == 7
        assert service.metric("headroom_degraded_total") == 0


async def test_stages_may_be_other_checkpoints(tiny_checkpoint: Path, tmp_path: Path) -> None:
    small = write_checkpoint(tmp_path / "small", seed=5, num_hidden_layers=1)
    variants = [
        {"name": "full"},
        {"name": "small", "checkpoint": str(small)},
        {"name": "cascade", "cascade": [{"variant": "small", "keep": 4}, {"variant": "full"}]},
    ]
    async with serve(tiny_checkpoint, {"variants": variants}) as service:
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        cheap = own_scores(Classifier.load(small, "cpu", "float32"), "none").score
        kept = best(cheap, list(range(20)), 4)
        assert [row["index"] for row in answer["results"] if row["stage"] == "full"] == kept
        assert answer["model"] == tiny_checkpoint.name
        assert [stage["model"] for stage in answer["stages"]] == ["small", tiny_checkpoint.name]
        one_label = write_checkpoint(tmp_path / "one", num_labels=1)
        mixed = [*variants[:1], {**variants[1], "checkpoint": str(one_label)}, variants[2]]
        with pytest.raises(InvalidConfig, match=r"variants\[2\].cascade\[0\].variant: small gives one score"):
            service.replica.check(LiveConfig.model_validate({"variants": mixed}))


async def test_an_edit_with_a_wrong_cascade_is_refused_and_the_last_one_stays(
    tiny_checkpoint: Path,
) -> None:
    async with serve(tiny_checkpoint, CONFIG) as service:
        optional = [
            {"name": "full"},
            {"name": "tuned", "head_mask": "@tuned", "optional": True},
            {"name": "c", "cascade": [{"variant": "tuned", "keep": 5}, {"variant": "full"}]},
        ]
        with pytest.raises(
            InvalidConfig, match=r"variants\[2\].cascade\[0\].variant is tuned, but the model"
        ):
            await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate({"variants": optional}))
        assert len((await service.http.get("/v1/variants")).json()["variants"]) == 5

        optional[2]["optional"] = True
        await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate({"variants": optional}))
        listed = (await service.http.get("/v1/variants")).json()["variants"]
        assert [variant["name"] for variant in listed] == ["full"]
        with pytest.raises(InvalidConfig, match="default is c, whose stage tuned is left out"):
            service.replica.check(LiveConfig.model_validate({"variants": optional, "default": "c"}))

        shorter = {"name": "cascade", "cascade": [{"variant": "cheap", "keep": 2}, {"variant": "full"}]}
        edited = LiveConfig.model_validate({"variants": [shorter, *VARIANTS[1:3]]})
        await asyncio.to_thread(service.replica.apply, edited)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        assert [stage["pairs"] for stage in answer["stages"]] == [20, 2]


async def test_a_client_that_hangs_up_has_the_later_stages_dropped(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG, max_batch_tokens=64, max_queue_tokens=10**6) as service:
        scheduler = service.replica.scheduler
        body = {"query": QUERY, "titles": TITLES * 20, "variant": "cascade"}
        content = httpx.Request("POST", "http://x", json=body).content
        exchange = Exchange(service.app, messages=[chunk(content, more=False)])
        while not scheduler.queued_tokens:
            await asyncio.sleep(0)
        exchange.incoming.put_nowait({"type": "http.disconnect"})
        await exchange.task
        assert scheduler.queued_tokens == 0
        while scheduler.in_flight_items:
            await asyncio.sleep(0)
        assert service.metric('headroom_cascade_pairs_total{stage="cheap",variant="cascade"}') == 0


async def test_a_cascade_that_would_be_late_answers_with_what_it_has(tiny_checkpoint: Path) -> None:
    """The rate says that the second stage would miss the deadline: then the first stage's scores count."""
    async with serve(tiny_checkpoint, CONFIG) as service:
        # The last full batch took ten hours. The queue is empty, so the request is let in all the same.
        service.replica.scheduler._rate.record(1024, 0.0, 36_000.0, budget=1024)
        answer = await service.post(
            "/v1/score", query=QUERY, titles=TITLES, variant="cascade", deadline_ms=30_000
        )
        assert answer["degraded"] is True
        assert {row["stage"] for row in answer["results"]} == {"cheap"}
        assert [stage["pairs"] for stage in answer["stages"]] == [20, 0]
        assert service.metric("headroom_degraded_total") == 1


async def test_the_token_limit_of_a_request_counts_all_stages(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG) as service:
        tokens = (await service.post("/v1/score", query=QUERY, titles=TITLES))["usage"]["tokens"]
    async with serve(tiny_checkpoint, CONFIG, max_request_tokens=tokens) as service:
        await service.post("/v1/score", query=QUERY, titles=TITLES)
        error = await service.refused("/v1/score", 422, query=QUERY, titles=TITLES, variant="cascade")
        assert error["param"] == "titles"
        assert f"are more than the {tokens} of one request" in error["message"]


async def test_a_cascade_is_an_arm_and_is_shadowed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'experiments.db'}"
    variants = [{"name": "full"}, {"name": "cheap", "head_mask": "0-1.*"}, VARIANTS[0]]
    live = experiment_config(variants, shadow=1.0, traffic=1.0)
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        seen: dict[str, list[str | None]] = {}
        for unit in range(30):
            answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit=f"u{unit}")
            assignment = answer["assignment"]
            assert assignment["fallback"] is False
            expected = "cascade" if assignment["arm"] == "pruned" else "full"
            assert answer["variant"] == expected
            seen.setdefault(assignment["arm"], []).append(answer["results"][0]["stage"])
        assert set(seen) == {"control", "pruned"}
        assert set(seen["control"]) == {None}
        assert None not in seen["pruned"]
        await eventually(lambda: len(exposed(url)) == 30)
        scored = 'headroom_shadow_requests_total{experiment="prune20",result="scored"}'
        await eventually(lambda: service.metric(scored) == 30)
        assert service.metric('headroom_shadow_requests_total{experiment="prune20",result="failed"}') == 0
        await asyncio.to_thread(service.replica.live.writer.flush, 5)
        (arm,) = (await service.http.get("/v1/experiments/prune20")).json()["report"]["arms"]
        alone = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        full = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="full")
        deltas = [c["score"] - f["score"] for c, f in zip(alone["results"], full["results"], strict=True)]
        mean = arm["shadow"]["measures"]["mean_delta"]["mean"]
        assert mean == pytest.approx(np.mean(deltas), abs=1e-4)

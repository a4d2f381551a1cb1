"""What users of an interleaved experiment are shown, on every route that answers an order."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from headroom import Classifier, HeadMask, Scores
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.errors import DeviceFailed
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import impressions
from tests.checkpoints import WORDS, write_checkpoint
from tests.service.experimenting import (
    BOSS,
    KEYS,
    USER,
    config,
    draw_by_the_contract,
    eventually,
    exposed,
    exposing_requests,
    write_broken_checkpoint,
)
from tests.service.in_process import QUERY, Service, serve

TITLES = [" ".join(WORDS[start : start + 4]) for start in range(20)]
UNITS = [f"user-{number}" for number in range(6)]


def interleaving(variants: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """A live config with an interleaved experiment between the first and the last variant."""
    return config(variants, kind="interleave", **more)


@pytest.fixture
async def service(tiny_checkpoint: Path, file_url: str) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, interleaving(), database_url=file_url, api_keys=KEYS) as running:
        running.http.headers.update(USER)
        yield running


def own_scores(clf: Classifier, spec: str, query: str = QUERY, titles: Sequence[str] = TITLES) -> Scores:
    mask = HeadMask.parse(spec, layers=clf.num_layers, heads=clf.num_heads)
    return clf.score([(query, title) for title in titles], mask)


async def ask(service: Service, unit: str = "user-1", path: str = "/v1/score", **body: Any) -> httpx.Response:
    texts = {} if "pairs" in body else {"query": QUERY, "titles": TITLES}
    answer = await service.http.post(path, json={**texts, "unit": unit, **body})
    assert answer.status_code == 200, answer.text
    return answer


def order_of(answer: dict[str, Any]) -> list[int]:
    """The indices of an answer of /v1/score, in the order to show."""
    assert [result["index"] for result in answer["results"]] == list(range(len(answer["results"])))
    return [result["index"] for result in sorted(answer["results"], key=lambda result: result["rank"])]


async def test_the_order_is_drawn_from_what_both_variants_say_of_the_titles(
    service: Service, clf: Classifier, file_url: str
) -> None:
    control, treatment = own_scores(clf, "none"), own_scores(clf, "0.*")
    for unit in UNITS:
        response = await ask(service, unit)
        answer = response.json()
        order, teams = draw_by_the_contract(unit, control.raw_score, treatment.raw_score)
        assert set(teams) == {"c", "s", "t"}, "the variants agree too much for the test to mean something"
        assert order_of(answer) == order
        shown = [answer["results"][index] for index in order]
        assert [result["rank"] for result in shown] == list(range(1, len(TITLES) + 1))
        for result, team in zip(shown, teams, strict=True):
            expected = treatment if team == "t" else control
            assert result["grade"] == expected.grade[result["index"]]
            assert result["probabilities"] == pytest.approx(expected.probabilities[result["index"]], abs=1e-5)
            assert result["score"] <= expected.score[result["index"]] + 1e-5
        assert answer["results"][order[0]]["score"] == pytest.approx(
            float((treatment if teams[0] == "t" else control).score[order[0]]), abs=1e-5
        )
        for field in ("score", "raw_score", "expected_grade"):
            values = np.array([result[field] for result in shown], np.float32)
            assert (np.diff(values) < 0).all(), field
        assignment = answer["assignment"]
        assert (assignment["experiment"], assignment["arm"]) == ("prune20", "interleaved")
        assert assignment["fallback"] is False
        assert response.headers["x-impression"] == assignment["impression"]
        assert (answer["variant"], answer["degraded"], answer["usage"]["pairs"]) == ("full", False, 40)
    await eventually(lambda: exposed(file_url) == dict.fromkeys(UNITS, "interleaved"))
    assert service.metric('headroom_interleaved_total{experiment="prune20",rankings="different"}') == len(
        UNITS
    )


async def test_both_arms_are_computed_in_one_batch_and_each_counts(service: Service) -> None:
    batches = service.metric("headroom_batch_pairs_count")
    await ask(service, pairs=[[QUERY, title] for title in TITLES])  # of one query, which have an order, too
    assert service.metric("headroom_batch_pairs_count") == batches + 1
    for arm, variant in (("control", "full"), ("pruned", "cut")):
        assert service.metric(f'headroom_pairs_total{{arm="{arm}",variant="{variant}"}}') == len(TITLES)
    shown = (await service.http.get("/v1/experiments")).json()["experiments"][0]["guardrails"]
    assert [(each["arm"], each["requests"]) for each in shown] == [("control", 1), ("pruned", 1)]


SHAPES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("/v1/rerank", "documents", {}, "results", "relevance_score"),
    ("/v2/rerank", "documents", {"top_n": 7}, "results", "relevance_score"),
    ("/v1/rerank", "documents", {"top_k": 7}, "data", "relevance_score"),
    ("/rerank", "texts", {"raw_scores": True, "return_text": True}, "", "score"),
]


async def test_every_rerank_shape_answers_in_the_drawn_order_and_its_scores_fall(service: Service) -> None:
    order = order_of((await ask(service)).json())
    for path, field, more, results, score in SHAPES:
        body = {"query": QUERY, field: TITLES, "unit": "user-1", **more}
        answer = await service.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        ranked = answer.json()[results] if results else answer.json()
        assert [result["index"] for result in ranked] == order[: more.get("top_n", more.get("top_k"))]
        values = np.array([result[score] for result in ranked], np.float32)
        assert (np.diff(values) < 0).all()
        impression = answer.headers["x-impression"]
        if results:
            assert answer.json()["assignment"]["impression"] == impression
        if results == "results":
            assert answer.json()["id"] == impression


async def stored(service: Service, url: str) -> dict[str, tuple[str, list[int], list[str] | None]]:
    """The team of each title, the indices in the order shown and the ids, of each stored impression."""
    await asyncio.to_thread(service.replica.live.writer.flush, 60)
    store = Store(url)
    try:
        with store.read() as db:
            return {
                row.id: (row.teams_by_index, json.loads(row.places), row.ids and json.loads(row.ids))
                for row in db.execute(select(impressions))
            }
    finally:
        store.close()


async def test_what_is_cut_off_is_not_shown_and_no_impression_has_it(
    service: Service, clf: Classifier, file_url: str
) -> None:
    """A click on a title that nobody saw would count for a team.

    Control's scores and grades cut the titles of both arms before the draw. If each arm's own cut its titles,
    users who click by position alone would prefer the arm that scores higher.
    """
    control, treatment = (own_scores(clf, mask) for mask in ("none", "0.*"))
    middle = float(np.sort(control.score)[len(TITLES) // 2])
    best = int(control.grade.max())
    for limit, is_kept in (
        ({"min_score": middle}, control.score >= np.float32(middle)),
        ({"min_grade": best}, control.grade >= best),
    ):
        kept = np.flatnonzero(is_kept)
        order, picked = draw_by_the_contract("user-1", control.raw_score[kept], treatment.raw_score[kept])
        expected = kept[order].tolist()
        cut = (await ask(service, **limit)).json()
        assert {row["rank"]: row["index"] for row in cut["results"]} == dict(enumerate(expected, start=1))
        assert cut["dropped"] == len(TITLES) - len(kept)
        impression = cut["assignment"]["impression"]
        teams, places, _ = (await stored(service, file_url))[impression]
        assert places == expected
        assert len(teams) == len(TITLES)
        assert {i: team for i, team in enumerate(teams) if team != "-"} == dict(
            zip(expected, picked, strict=True)
        )
    none = (await ask(service, min_score=1.0)).json()
    assert (none["results"], none["dropped"]) == ([], len(TITLES))


async def test_an_impression_says_whose_each_title_that_was_shown_is(
    service: Service, clf: Classifier, file_url: str
) -> None:
    top_n = 7
    ids = [f"product-{number}" for number in range(len(TITLES))]
    raw_scores = [own_scores(clf, mask).raw_score.tolist() for mask in ("none", "0.*")]
    order, teams = draw_by_the_contract("user-1", *raw_scores)
    shown = dict(zip(order[:top_n], teams, strict=False))
    body = {"query": QUERY, "documents": TITLES, "unit": "user-1", "ids": ids, "top_n": top_n}
    answer = await service.http.post("/v2/rerank", json=body)
    assert await stored(service, file_url) == {
        answer.headers["x-impression"]: (
            "".join(shown.get(index, "-") for index in range(len(TITLES))),
            order[:top_n],
            ids,
        )
    }


async def test_a_failed_interleaved_answer_keeps_the_callers_order_and_leaves_no_impression(
    service: Service, file_url: str
) -> None:
    async def fails(*_: Any) -> Any:
        raise DeviceFailed("cuda")

    service.replica.scheduler._runner.forward = fails
    answer = await ask(service, on_failure="original_order")
    assert answer.headers["x-reranked"] == "false"
    assert "x-impression" not in answer.headers
    assert (answer.json()["assignment"], answer.json()["reason"]) == (None, "device_failed")
    assert not await stored(service, file_url)


@pytest.mark.parametrize("kind", ["twin", "cascade"])
async def test_an_arm_may_be_any_variant(tiny_checkpoint: Path, file_url: str, kind: str) -> None:
    variants: list[dict[str, Any]] = [{"name": "full"}, {"name": "twin", "head_mask": "none"}]
    if kind == "cascade":
        cut = {"name": "cut", "head_mask": "0.*"}
        stages = [{"variant": "cut", "keep": 5}, {"variant": "full"}]
        variants = [{"name": "full"}, cut, {"name": "cascade", "cascade": stages}]
    # The cache would give an arm's scores to the other, or old ones.
    settings: dict[str, Any] = {"database_url": file_url, "score_cache_size": 1000}
    async with serve(tiny_checkpoint, interleaving(variants), **settings) as service:
        raw_scores = [
            [result["raw_score"] for result in (await ask(service, variant=name)).json()["results"]]
            for name in ("full", kind)
        ]
        lookups = [f'headroom_cache_total{{result="{result}"}}' for result in ("miss", "hit")]
        before = list(map(service.metric, lookups))
        for unit in UNITS:
            answer = (await ask(service, unit)).json()
            assert order_of(answer) == draw_by_the_contract(unit, *raw_scores)[0]
            stages_of_answer = [(stage["variant"], stage["pairs"]) for stage in answer["stages"] or []]
            assert stages_of_answer == ([("cut", 20), ("full", 5)] if kind == "cascade" else [])
        assert list(map(service.metric, lookups)) == before
        counted = 'headroom_interleaved_total{experiment="prune20",rankings='
        rankings = "equal" if kind == "twin" else "different"
        assert service.metric(f'{counted}"{rankings}"}}') == len(UNITS)


@pytest.mark.parametrize("labels", [1, 5])
async def test_titles_at_the_lowest_score_still_fall_and_stay_in_its_range(
    tmp_path: Path, file_url: str, labels: int
) -> None:
    titles = [*TITLES[:3], "", " ", *TITLES[3:6], "\u200b"]
    checkpoint = write_checkpoint(tmp_path / "model", num_labels=labels)
    async with serve(checkpoint, interleaving(), database_url=file_url) as service:
        answer = (await ask(service, titles=titles)).json()
        order = order_of(answer)
        assert set(order[-3:]) == {3, 4, 8}
        for field in ("score", "raw_score"):
            values = np.array([answer["results"][index][field] for index in order], np.float32)
            assert np.isfinite(values).all()
            assert (np.diff(values) < 0).all()
        assert all(0 <= result["score"] <= 1 for result in answer["results"])


async def test_a_treatment_that_fails_is_answered_by_control(
    tiny_checkpoint: Path, file_url: str, tmp_path: Path
) -> None:
    broken = {"name": "broken", "checkpoint": str(write_broken_checkpoint(tmp_path / "broken"))}
    live = interleaving([{"name": "full"}, broken])
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        expected = (await ask(service, variant="full")).json()["results"]
        for unit in UNITS:
            response = await ask(service, unit)
            answer = response.json()
            assert (answer["variant"], answer["results"]) == ("full", expected)
            assert answer["assignment"]["fallback"] is True
            assert answer["assignment"]["impression"] is None
            assert "x-impression" not in response.headers
        fallbacks = 'headroom_experiment_fallbacks_total{arm="pruned",experiment="prune20"}'
        assert service.metric(fallbacks) == len(UNITS)
        await eventually(lambda: exposed(file_url) == dict.fromkeys(UNITS, "interleaved"))


async def test_a_control_that_fails_fails_the_request_and_keeps_the_unit(
    tiny_checkpoint: Path, file_url: str, tmp_path: Path
) -> None:
    """But a device that fails is no arm's fault."""
    broken = {"name": "broken", "checkpoint": str(write_broken_checkpoint(tmp_path / "broken"))}
    live = interleaving([broken, {"name": "full"}]) | {"default": "full"}
    body = {"query": QUERY, "titles": TITLES}
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        answer = await service.http.post("/v1/score", json=body | {"unit": "user-1"})
        assert answer.status_code == 500
        await eventually(lambda: exposed(file_url) == {"user-1": "interleaved"})
        service.replica.engine.failed_kind = "cuda"
        answer = await service.http.post("/v1/score", json=body | {"unit": "user-2"})
        assert answer.status_code == 503
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        assert exposed(file_url) == {"user-1": "interleaved"}
        guardrails = (await service.http.get("/v1/experiments")).json()["experiments"][0]["guardrails"]
        assert [(arm["requests"], arm["error_rate"]) for arm in guardrails] == [(1, 1.0), (1, 0.0)]


TWO_QUERIES = [[QUERY, TITLES[0]], ["mouse", TITLES[1]]]
WITHOUT_ORDER: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/score", {"pairs": TWO_QUERIES}, 422),
    ("/score", {"queries": QUERY, "documents": TITLES}, 422),
    ("/v1/score", {"text_1": QUERY, "text_2": TITLES}, 422),
    ("/predict", {"inputs": TWO_QUERIES}, 422),
    (
        "/v2/models/NAME/infer",
        {
            "inputs": [
                {"name": "query", "datatype": "BYTES", "shape": [1], "data": [QUERY]},
                {"name": "title", "datatype": "BYTES", "shape": [2], "data": TITLES[:2]},
            ]
        },
        400,
    ),
]


async def test_a_route_without_an_order_refuses_an_interleaved_unit_in_one_sentence(service: Service) -> None:
    name = (await service.http.get("/v1/models")).json()["models"][0]["name"]
    for route, body, status in WITHOUT_ORDER:
        path = route.replace("NAME", name)
        answer = await service.http.post(path, json={**body, "unit": "user-1"})
        assert answer.status_code == status
        error = answer.json()["error"]
        message = error["message"] if isinstance(error, dict) else error
        assert message.startswith("unit: is in the interleaved experiment 'prune20'")
        assert "\n" not in message
        assert (await service.http.post(path, json=body)).status_code == 200
    assert exposing_requests(service) == 0


async def test_long_titles_that_fit_a_request_fit_an_interleaved_one(
    tiny_checkpoint: Path, file_url: str
) -> None:
    """Both arms' chunks are more than the limit, which is no fault of the treatment."""
    live = interleaving()
    async with serve(tiny_checkpoint, live, database_url=file_url, max_compare_rows=12) as service:
        texts = {"query": QUERY, "titles": [" ".join(WORDS * 9), "angle"], "overflow": "chunks"}
        alone = await service.post("/v1/score", **texts)
        assert 6 < alone["results"][0]["chunk"]["chunks"] < 12
        answer = await service.post("/v1/score", **texts, unit="user-1")
        assert answer["assignment"]["impression"] is not None
        assert answer["assignment"]["fallback"] is False


async def test_wrong_ids_are_refused_in_one_sentence(service: Service) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ids": ["a"]}, f"ids: 1 ids for {len(TITLES)} titles"),
        ({"ids": ["a\0"] * len(TITLES)}, "ids[0]: must not hold a NUL character"),
        ({"query_id": "a\0"}, "query_id: must not hold a NUL"),
    ]
    for body, said in wrong:
        error = await service.refused("/v1/score", 422, query=QUERY, titles=TITLES, **body)
        assert error["message"].startswith(said)


async def test_an_experiment_without_a_file_draws_lists_and_its_arms_must_give_the_same_score(
    tiny_checkpoint: Path, file_url: str, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "one", num_labels=1)
    live = interleaving([{"name": "full"}, {"name": "cut", "head_mask": "0.*"}])
    entry = live.pop("experiments")[0]
    live["variants"].append({"name": "one", "checkpoint": str(other)})
    async with serve(tiny_checkpoint, live, database_url=file_url, api_keys=KEYS) as service:
        service.http.headers.update(USER)
        mixed = entry | {"arms": [{"name": "a", "variant": "full"}, {"name": "b", "variant": "one"}]}
        refused = await service.http.post("/v1/experiments", json=mixed, headers=BOSS)
        assert refused.status_code == 422
        assert refused.json()["error"]["message"].startswith("arms: full gives the grades")
        edited = LiveConfig.model_validate(live | {"experiments": [mixed]})
        with pytest.raises(
            InvalidConfig, match=r"experiments\[0\]\.arms: full gives the grades .* one gives"
        ):
            await asyncio.to_thread(service.replica.check, edited)
        begun = await service.http.post("/v1/experiments", json=entry, headers=BOSS)
        assert begun.status_code == 201, begun.text
        answer = (await ask(service)).json()
        assert answer["assignment"]["arm"] == "interleaved"
        assert order_of(answer) != sorted(range(len(TITLES)))
        flag = await service.post("/ofrep/v1/evaluate/flags/prune20", context={"targetingKey": "user-1"})
        assert (flag["variant"], flag["value"]) == ("interleaved", "full")

"""Which units get which arm, who is exposed, and what shadow work does."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import write_checkpoint
from tests.service.experimenting import (
    BOSS,
    KEYS,
    USER,
    config,
    eventually,
    exposed,
    score,
    shadow_of,
    write_broken_checkpoint,
)
from tests.service.in_process import LIMITS, QUERY, TITLES, Service, long_queue, serve


async def test_a_unit_gets_its_arms_variant_every_time_and_is_exposed_once(
    service: Service, file_url: str
) -> None:
    answers = [await score(service, f"user-{number}") for number in range(20) for _ in range(2)]
    variants = {"control": "full", "pruned": "cut"}
    arms: dict[str, str] = {}
    for number, answer in enumerate(answers):
        assignment = answer["assignment"]
        assert answer["variant"] == variants[assignment["arm"]]
        assert arms.setdefault(f"user-{number // 2}", assignment["arm"]) == assignment["arm"]
        assert (assignment["experiment"], assignment["fallback"]) == ("prune20", False)
    assert set(arms.values()) == {"control", "pruned"}
    await eventually(lambda: exposed(file_url) == arms)
    counts = Counter(arms.values())
    series = {arm: f'headroom_exposures_total{{arm="{arm}",experiment="prune20"}}' for arm in variants}
    await eventually(lambda: {arm: service.metric(series[arm]) for arm in variants} == counts)
    for arm in variants:
        pairs = f'headroom_pairs_total{{arm="{arm}",variant="{variants[arm]}"}}'
        assert service.metric(pairs) == 2 * len(TITLES) * counts[arm]


async def test_a_refused_request_exposes_nobody(tiny_checkpoint: Path, file_url: str) -> None:
    async with serve(tiny_checkpoint, config(), database_url=file_url, max_queue_tokens=1) as service:
        # What the tokenizer cannot read is found out after the unit has its arm; so is a full queue.
        await service.refused("/v1/score", 422, query="\ufffd", titles=TITLES, unit="unreadable")
        requests = [{"query": QUERY, "titles": TITLES, "unit": f"user-{number}"} for number in range(60)]
        answers = await asyncio.gather(*(service.http.post("/v1/score", json=body) for body in requests))
        assert {answer.status_code for answer in answers} == {200, 429}
        answered = {
            body["unit"] for body, answer in zip(requests, answers, strict=True) if answer.status_code == 200
        }
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        assert exposed(file_url).keys() == answered


async def test_a_cut_off_that_one_arms_model_lacks_is_refused_whatever_the_arm(
    tiny_checkpoint: Path, file_url: str, tmp_path: Path
) -> None:
    """It counted as the arm's failure, so a guardrail took a sound arm back; in control it was a 422."""
    three = {"name": "three", "checkpoint": str(write_checkpoint(tmp_path / "three", num_labels=3))}
    live = config([{"name": "full"}, three])
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        arms = set()
        for number in range(12):
            body = {
                "query": QUERY,
                "titles": TITLES,
                "unit": f"user-{number}",
                "on_failure": "original_order",
            }
            error = await service.refused("/v1/score", 422, **body, min_grade=3)
            assert error["param"] == "min_grade"
            arms.add((await service.post("/v1/score", **body, min_grade=2))["assignment"]["arm"])
        assert arms == {"control", "pruned"}
        assert service.metric("headroom_experiment_fallbacks_total") == 0


async def test_a_unit_whose_arm_fails_is_exposed_whatever_its_request_got(
    tiny_checkpoint: Path, file_url: str, tmp_path: Path
) -> None:
    """Without them an arm that fails would lose the units that it harmed."""
    broken = {"name": "broken", "checkpoint": str(write_broken_checkpoint(tmp_path / "broken"))}
    units = {f"user-{number}" for number in range(12)}
    for variants, statuses in (
        ([{"name": "full"}, broken], {200}),  # control answers in the arm's place
        ([broken, {"name": "full"}], {200, 500}),  # nothing answers in control's
    ):
        database = f"{file_url}-{variants[0]['name']}"
        async with serve(tiny_checkpoint, config(variants), database_url=database) as service:
            seen = {
                (
                    await service.http.post(
                        "/v1/score", json={"query": QUERY, "titles": TITLES, "unit": unit}
                    )
                ).status_code
                for unit in units
            }
            assert seen == statuses
            late = {"query": QUERY, "titles": TITLES, "unit": "late", "deadline_ms": 0.001}
            assert (await service.http.post("/v1/score", json=late)).status_code == 504
            await asyncio.to_thread(service.replica.live.writer.flush, 60)
            found = exposed(database)
            assert found.keys() == units | {"late"}
            assert set(found.values()) == {"control", "pruned"}


async def test_shadow_scores_every_arm_and_changes_no_answer(tiny_checkpoint: Path, file_url: str) -> None:
    live = config(shadow=1.0, traffic=0.0)
    titles = [*TITLES, *(f"steel angle bracket {number}" for number in range(9))]
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        full = await service.post("/v1/score", query=QUERY, titles=titles, variant="full")
        cut = await service.post("/v1/score", query=QUERY, titles=titles, variant="cut")
        grades = [number % 5 for number in range(len(titles))]
        for _ in range(2):
            answer = await service.post("/v1/score", query=QUERY, titles=titles, grades=grades, unit="user")
        assert answer["results"] == full["results"]
        shadow = await shadow_of(service, requests=2)
        deltas = [c["score"] - f["score"] for c, f in zip(cut["results"], full["results"], strict=True)]
        found = shadow["measures"]["mean_delta"]
        assert (found["requests"], found["units"]) == (2, 1)
        assert found["mean"] == pytest.approx(np.mean(deltas), abs=1e-4)
        assert {"rank_correlation", "top10_overlap", "ndcg_loss", "seconds_delta"} <= shadow[
            "measures"
        ].keys()
        error = await service.refused("/v1/score", 422, query=QUERY, titles=titles, grades=[1])
        assert error["param"] == "grades"


async def test_shadow_reads_texts_as_the_request_did(tmp_path: Path, file_url: str) -> None:
    """A client of text-embeddings-inference may send a text alone, and have the end of a long one read."""
    live = config(shadow=1.0, traffic=0.0)
    body = {"inputs": "steel " * 100 + "lamp", "truncation_direction": "Left"}
    async with serve(
        write_checkpoint(tmp_path / "one", num_labels=1), live, database_url=file_url
    ) as service:
        scores = []
        for variant in ("cut", "full"):
            answer = await service.http.post("/predict", json=body | {"variant": variant})
            scores.append(answer.json()[0]["score"])
        assert (await service.http.post("/predict", json=body)).status_code == 200
        mean_delta = (await shadow_of(service))["measures"]["mean_delta"]["mean"]
        assert mean_delta == pytest.approx(np.mean(np.subtract(*scores)), abs=1e-6)


async def test_shadow_work_is_dropped_under_load_and_once_its_experiment_is_stopped(
    tiny_checkpoint: Path, file_url: str
) -> None:
    """Else the device would be busy with scores that nobody compares any more."""
    settings = {**LIMITS, "database_url": file_url, "api_keys": KEYS}
    async with serve(tiny_checkpoint, config(shadow=1.0), **settings) as service:
        service.http.headers.update(USER)
        dropped, scored = (
            f'headroom_shadow_requests_total{{experiment="prune20",result="{fate}"}}'
            for fate in ("dropped", "scored")
        )
        await asyncio.gather(*(score(service, f"user-{number}") for number in range(120)))  # all 200
        assert service.metric(dropped) > 0
        await eventually(lambda: service.metric(dropped) + service.metric(scored) == 120)
        before = service.metric(dropped)
        async with long_queue(service):
            await score(service, "user-1")
            stopped = await service.http.post("/v1/experiments/prune20/stop", json={}, headers=BOSS)
            assert stopped.status_code == 200, stopped.text
        await eventually(lambda: service.metric(dropped) == before + 1)

"""What operators do to a running experiment, the outcomes that they send, and what the routes say."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from service.config.settings import InvalidConfig, LiveConfig
from tests.service.experimenting import BOSS, USER, config, score
from tests.service.in_process import Service, serve


async def test_an_admin_ramps_stops_and_ships_and_it_is_written_down(service: Service) -> None:
    async def act(
        verb: str, status: int = 200, headers: dict[str, str] = BOSS, **body: Any
    ) -> dict[str, Any]:
        answer = await service.http.post(f"/v1/experiments/prune20/{verb}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    refused = await act("stop", 403, USER)
    assert refused["error"]["type"] == "forbidden"
    assert (await act("ramp", traffic=0.25, reason="careful"))["traffic"] == 0.25
    assert (await act("stop"))["status"] == "stopped"
    assert (await act("stop", 409))["error"]["message"] == "The experiment 'prune20' is stopped already."
    assert (await score(service, "user-1"))["assignment"] is None
    assert (await act("ramp"))["traffic"] == 1.0
    no_step = (await act("ramp", 422))["error"]
    assert no_step["message"] == "traffic: 'prune20' has no next step; give the traffic"
    assert (await act("ship", 422, arm="nobody"))["error"]["param"] == "arm"
    too_little = (await act("ramp", 422, traffic=0.0001))["error"]
    assert too_little["param"] == "traffic"
    assert "0.0002 is the next" in too_little["message"]
    assert (await act("ramp", 422, traffic=0.5, reinstate=["pruned"]))["error"]["param"] == "reinstate[0]"
    shipped = await act("ship", arm="pruned", reason="as good, 18 % cheaper")
    assert (shipped["status"], shipped["shipped"]) == ("shipped", "pruned")
    for unit in ("user-1", None):
        answer = await score(service, unit)
        assert (answer["variant"], answer["assignment"]) == ("cut", None)
    assert (await act("ship", 409, arm="control"))["error"]["type"] == "conflict"
    history = (await act("stop"))["history"]
    assert [entry["kind"] for entry in history] == ["start", "ramp", "stop", "ramp", "ship", "stop"]
    assert history[1]["reason"] == "careful"
    assert history[1]["actor"].startswith("key ")
    assert all(abs(entry["time"] - time.time()) < 100 for entry in history)
    missing = await service.http.post("/v1/experiments/nothing/stop", json={}, headers=BOSS)
    assert missing.status_code == 404


async def test_without_keys_nobody_may_switch_anything(tiny_checkpoint: Path, url: str) -> None:
    async with serve(tiny_checkpoint, config(), database_url=url) as service:
        error = await service.refused("/v1/experiments/prune20/stop", 403)
        assert "HEADROOM_API_KEYS" in error["message"]


async def test_each_outcome_is_counted_under_what_became_of_it(tiny_checkpoint: Path, url: str) -> None:
    metrics = [
        {"name": "revenue", "covariate": "past_revenue"},
        {"name": "clicks", "kind": "ratio", "denominator": "impressions"},
    ]

    def outcome(metric: str = "revenue", **more: Any) -> dict[str, Any]:
        known = {"experiment": "prune20", "unit": "user-1", "time": time.time() + 1, "id": metric}
        return {"metric": metric, "value": 1, **known, **more}

    async with serve(tiny_checkpoint, config(metrics=metrics), database_url=url) as service:
        arms = [(await score(service, f"user-{number}"))["assignment"]["arm"] for number in range(4)]
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        batch = [outcome(name) for name in ("revenue", "past_revenue", "clicks", "impressions")]
        assert await service.post("/v1/outcomes", outcomes=batch) == {
            "accepted": 4,
            "duplicates": 0,
            "unknown": 0,
            "pending": 0,
            "unknown_outcomes": [],
            "pending_outcomes": [],
        }
        more = [
            *batch[:2],
            outcome(id="late", time="2026-11-20T14:00:00+01:00"),
            outcome(id="early", unit="never"),
            outcome(id="other", experiment="other"),
            outcome("click"),
        ]
        receipt = await service.post("/v1/outcomes", outcomes=more)
        assert [receipt[key] for key in ("accepted", "duplicates", "pending", "unknown")] == [1, 2, 1, 2]
        (pending,) = receipt["pending_outcomes"]
        assert (pending["index"], pending["id"]) == (3, "early")
        unknown = receipt["unknown_outcomes"]
        assert [(found["index"], found["id"], found["reason"]) for found in unknown] == [
            (4, "other", "experiment"),
            (5, "click", "metric"),
        ]
        assert "no metric 'click'; it has clicks, impressions, past_revenue, revenue" in unknown[1]["message"]
        shown = (await service.http.get("/v1/experiments/prune20")).json()
        assert shown["report"]["exposures"] == {arm: arms.count(arm) for arm in ("control", "pruned")}
        document = (await service.http.get("/openapi.json")).json()["components"]["schemas"]
        for found, schema in (
            (receipt, "OutcomeReceipt"),
            (unknown[0], "UnknownOutcome"),
            (pending, "PendingOutcome"),
        ):
            assert found.keys() == document[schema]["properties"].keys()


async def test_a_nul_is_refused_before_the_database_sees_it(service: Service) -> None:
    """PostgreSQL cannot keep one, which was a 500."""
    outcome = {"experiment": "a\0b", "unit": "u", "metric": "click", "value": 1, "time": 1.0, "id": "o"}
    error = await service.refused("/v1/outcomes", 422, outcomes=[outcome])
    assert error["param"] == "outcomes[0].experiment"
    for verb, more in (("ramp", {"traffic": 0.5}), ("stop", {}), ("ship", {"arm": "pruned"})):
        refused = await service.http.post(
            f"/v1/experiments/prune20/{verb}", json={"reason": "a\0b", **more}, headers=BOSS
        )
        assert refused.status_code == 422, refused.text
        assert refused.json()["error"]["param"] == "reason"


async def test_a_config_that_would_move_units_is_refused_while_the_experiment_runs(service: Service) -> None:
    weights = config()
    weights["experiments"][0]["arms"][0]["weight"] = 9
    with pytest.raises(InvalidConfig, match=r"experiments\[0\]: 'prune20' has begun"):
        await asyncio.to_thread(service.replica.check, LiveConfig.model_validate(weights))
    wider = LiveConfig.model_validate(config(traffic=0.5, shadow=0.1))
    await asyncio.to_thread(service.replica.apply, wider)
    answer = await service.http.get("/v1/experiments")
    assert answer.json()["experiments"][0]["traffic"] == 0.5
    assert answer.json()["config_version"] == wider.version


async def test_what_the_routes_answer_is_what_the_document_says(service: Service) -> None:
    await score(service, "user-1")
    await asyncio.to_thread(service.replica.live.writer.flush, 60)
    document = (await service.http.get("/openapi.json")).json()
    for path in ("/v1/outcomes", "/v1/experiments", "/v1/experiments/{name}", "/v1/experiments/{name}/ramp"):
        assert path in document["paths"]
    detail = (await service.http.get("/v1/experiments/prune20")).json()
    assert detail.keys() == document["components"]["schemas"]["ExperimentDetail"]["properties"].keys()
    schemas = document["components"]["schemas"]
    ratio = detail["report"]["sample_ratio"]
    assert ratio.keys() == schemas["SampleRatio"]["properties"].keys()
    assert schemas["EpochRatio"]["properties"].keys() == ratio["epochs"][0].keys()
    properties = document["components"]["schemas"]["ScoreRequest"]["properties"]
    assert {"unit", "attributes", "grades"} <= properties.keys()

"""What operators and guardrails do to a running experiment, outcomes, and what the routes say."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom.service.config.settings import LiveConfig
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import BOSS, USER, config, eventually, score, write_broken_checkpoint
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
    assert (await act("ramp", 422))["error"]["message"] == "traffic: is missing"
    assert (await act("ship", 422, arm="nobody"))["error"]["param"] == "arm"
    too_little = (await act("ramp", 422, traffic=0.0001))["error"]
    assert too_little["param"] == "traffic"
    assert "0.0002 is the next" in too_little["message"]
    shipped = await act("ship", arm="pruned", reason="as good, 18 % cheaper")
    assert (shipped["status"], shipped["shipped"]) == ("shipped", "pruned")
    for unit in ("user-1", None):
        answer = await score(service, unit)
        assert (answer["variant"], answer["assignment"]) == ("cut", None)
    assert (await act("ship", 409, arm="control"))["error"]["type"] == "conflict"
    history = (await act("stop"))["history"]
    assert [entry["kind"] for entry in history] == ["start", "ramp", "ship", "stop"]
    assert (await score(service, "user-1"))["assignment"] is None
    assert history[1]["actor"].startswith("key ")
    assert all(abs(entry["time"] - time.time()) < 100 for entry in history)
    missing = await service.http.post("/v1/experiments/nothing/stop", json={}, headers=BOSS)
    assert missing.status_code == 404


async def test_each_outcome_is_counted_under_what_became_of_it(tiny_checkpoint: Path, file_url: str) -> None:
    metrics = [
        {"name": "revenue", "covariate": "past_revenue"},
        {"name": "clicks", "kind": "ratio", "denominator": "impressions"},
    ]

    def outcome(metric: str = "revenue", **more: Any) -> dict[str, Any]:
        known = {"experiment": "prune20", "unit": "user-1", "time": time.time() + 1, "id": metric}
        return {"metric": metric, "value": 1, **known, **more}

    async with serve(tiny_checkpoint, config(metrics=metrics), database_url=file_url) as service:
        arms = [(await score(service, f"user-{number}"))["assignment"]["arm"] for number in range(4)]
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        batch = [outcome(name) for name in ("revenue", "past_revenue", "clicks", "impressions")]
        assert await service.post("/v1/outcomes", outcomes=batch) == {
            "accepted": 4,
            "duplicates": 0,
            "unknown": 0,
            "unknown_outcomes": [],
            "duplicate_ids": [],
        }
        more = [
            *batch[:2],
            outcome(id="late", time="2026-11-20T14:00:00+01:00"),
            outcome(id="early", unit="never"),
            outcome(id="other", experiment="other"),
            outcome("click"),
        ]
        receipt = await service.post("/v1/outcomes", outcomes=more)
        assert [receipt[key] for key in ("accepted", "duplicates", "unknown")] == [2, 2, 2]
        unknown = receipt["unknown_outcomes"]
        assert [(found["index"], found["id"], found["reason"]) for found in unknown] == [
            (4, "other", "experiment"),
            (5, "click", "metric"),
        ]
        assert (
            "no metric 'click'; there are clicks, impressions, past_revenue, revenue" in unknown[1]["message"]
        )
        # It is kept, and counts once the config has the metric.
        mended = LiveConfig.model_validate(config(metrics=[*metrics, {"name": "click"}]))
        await asyncio.to_thread(service.replica.apply, mended)
        assert (await service.post("/v1/outcomes", outcomes=[outcome("click")]))["duplicates"] == 1
        shown = (await service.http.get("/v1/experiments/prune20")).json()
        assert shown["report"]["exposures"] == {arm: arms.count(arm) for arm in ("control", "pruned")}


async def test_a_report_says_what_an_edit_changed_under_a_running_analysis(service: Service) -> None:
    """Another mask under the same name mixes two variants; another plan chosen by the data breaks the 5 %."""

    async def edit(**more: Any) -> dict[str, Any]:
        live = LiveConfig.model_validate(config(**more))
        await asyncio.to_thread(service.replica.apply, live)
        detail: dict[str, Any] = (await service.http.get("/v1/experiments/prune20")).json()
        return detail

    metrics = [{"name": "clicks", "margin": 0.05}]
    before = await edit(metrics=metrics)
    assert "changed" not in before["report"]["text"]
    replanned = await edit(metrics=metrics, planned_units=77)
    assert replanned["report"]["planned_units"] == 10_000
    other_mask = [{"name": "full"}, {"name": "cut", "head_mask": "1.*", "sliced": True}]
    masked = await edit(variants=other_mask, metrics=metrics)
    assert "The variant 'cut' was changed at 20" in masked["report"]["text"]
    assert "so its figures mix two variants" in masked["report"]["text"]
    assert "'full'" not in masked["report"]["text"]
    assert [entry["detail"] for entry in masked["history"][1:]] == [
        "planned_units 10000 to 77 (the intervals go by 10000, as at the start)",
        "planned_units 77 to 10000 (the intervals go by 10000, as at the start); variants: cut",
    ]


async def until_rolled_back(service: Service, guardrail: str) -> list[dict[str, Any]]:
    """The answers to a load that goes on until a guardrail steps in; all of them successes."""
    series = f'headroom_experiment_rollbacks_total{{experiment="prune20",guardrail="{guardrail}"}}'
    answers: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while not service.metric(series):
        assert time.monotonic() < deadline, "no roll-back"
        answers += await asyncio.gather(*(score(service, f"user-{len(answers) + i}") for i in range(10)))
    return answers


async def test_an_arm_that_fails_is_answered_by_control_and_rolled_back_by_itself(
    tiny_checkpoint: Path, file_url: str, tmp_path: Path
) -> None:
    broken = write_broken_checkpoint(tmp_path / "broken")
    live = config(
        [{"name": "full"}, {"name": "broken", "checkpoint": str(broken)}], guardrails={"min_requests": 20}
    )
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        # From 0 on, so that Prometheus sees the first one as an increase.
        zero = 'headroom_experiment_rollbacks_total{experiment="prune20",guardrail="error_rate"} 0'
        await eventually(lambda: zero in service.metrics.render().decode())
        seen = await until_rolled_back(service, "error_rate")
        expected = (await score(service, variant="full"))["results"]
        assert all(answer["results"] == expected for answer in seen)
        fell_back = [answer for answer in seen if answer["assignment"] and answer["assignment"]["fallback"]]
        assert len(fell_back) >= 20
        assert {(a["assignment"]["arm"], a["variant"]) for a in fell_back} == {("pruned", "full")}
        assert service.metric(
            'headroom_experiment_fallbacks_total{arm="pruned",experiment="prune20"}'
        ) == len(fell_back)

        after = [await score(service, f"user-{number}") for number in range(20)]
        assert {(answer["assignment"], answer["variant"]) for answer in after} == {(None, "full")}
        shown = (await service.http.get("/v1/experiments/prune20")).json()
        assert (shown["status"], shown["rolled_back"]) == ("rolled_back", ["pruned"])
        last = shown["history"][-1]
        assert (last["kind"], last["arm"], last["actor"], last["reason"]) == (
            *("rollback", "pruned", "guardrail", "error_rate"),
        )
        assert "requests failed" in last["detail"]
    # A new replica, with the same config and database, does not undo it.
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        assert (await score(service, "user-1"))["assignment"] is None


async def test_a_slow_arm_is_rolled_back_under_load_and_nobody_gets_an_error(
    tiny_checkpoint: Path, file_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "slow", seed=5)
    live = config(
        [{"name": "full"}, {"name": "slow", "checkpoint": str(other)}],
        guardrails={"p99_ms": 200, "min_requests": 20},
    )
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        classifier = service.replica.engine.classifiers[str(other)]
        forward = classifier.forward

        def slow(encoded: Any, weights: Any, **how: Any) -> np.ndarray:
            time.sleep(0.25)
            return forward(encoded, weights, **how)

        monkeypatch.setattr(classifier, "forward", slow)
        await until_rolled_back(service, "p99")
        assert (await score(service, "user-1"))["variant"] == "full"

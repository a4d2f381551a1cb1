"""Experiments on a running service: what users, operators and the database see."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.experiments.definition.epochs import Epoch
from service.experiments.definition.events import Action
from service.experiments.storage.store import Store
from service.settings import InvalidConfig, LiveConfig
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import BOSS, KEYS, USER, config, eventually, exposed, write_broken_checkpoint
from tests.service.experiments.storage.test_store import exposure
from tests.service.in_process import QUERY, TITLES, Service, serve


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'experiments.db'}"


@pytest.fixture
async def service(tiny_checkpoint: Path, url: str) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, config(), database_url=url, api_keys=KEYS) as running:
        running.http.headers.update(USER)
        yield running


async def score(service: Service, unit: str | None = None, **more: Any) -> dict[str, Any]:
    return await service.post(
        "/v1/score", query=QUERY, titles=TITLES, **({"unit": unit} if unit else {}), **more
    )


async def test_a_unit_gets_its_arms_variant_every_time_and_is_exposed_once(
    service: Service, url: str
) -> None:
    answers = [await score(service, f"user-{number}") for number in range(20) for _ in range(2)]
    variants = {"control": "full", "pruned": "cut"}
    arms: dict[str, str] = {}
    for number, answer in enumerate(answers):
        assignment = answer["assignment"]
        assert answer["variant"] == variants[assignment["arm"]]
        assert arms.setdefault(f"user-{number // 2}", assignment["arm"]) == assignment["arm"]
        assert (assignment["experiment"], assignment["forced"], assignment["fallback"]) == (
            "prune20",
            False,
            False,
        )
    assert set(arms.values()) == {"control", "pruned"}
    await eventually(lambda: exposed(url) == arms)
    counts = Counter(arms.values())
    for arm in variants:
        series = f'headroom_exposures_total{{arm="{arm}",experiment="prune20"}}'
        assert service.metric(series) == counts[arm]
        pairs = f'headroom_pairs_total{{arm="{arm}",variant="{variants[arm]}"}}'
        assert service.metric(pairs) == 2 * len(TITLES) * counts[arm]


async def test_who_names_a_variant_or_a_mask_or_no_unit_is_in_no_experiment(
    service: Service,
) -> None:
    for more in ({"unit": "u", "variant": "cut"}, {"unit": "u", "head_mask": "none"}, {}):
        answer = await score(service, **more)
        assert answer["assignment"] is None
        assert answer["variant"] == more.get("variant", "full")
    assert service.metric("headroom_exposures_total") == 0


async def test_targeting_takes_who_has_the_attributes(tiny_checkpoint: Path, url: str) -> None:
    live = config(where={"locale": ["en", "de"], "premium": True})
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        inside = {"locale": "de", "premium": True, "more": 1.5}
        assert (await score(service, "u1", attributes=inside))["assignment"]["experiment"] == "prune20"
        for other in (None, {}, {"locale": "fr", "premium": True}, {"locale": "de", "premium": 1}):
            assert (await score(service, "u1", attributes=other))["assignment"] is None
        for wrong, place in (
            ({"locale": ["en"]}, "attributes.locale"),
            ({"locale": "x" * 257}, "attributes.locale"),
            ({str(number): 1 for number in range(17)}, "attributes"),
        ):
            error = await service.refused("/v1/score", 422, query=QUERY, titles=TITLES, attributes=wrong)
            assert error["param"] == place


async def test_a_listed_unit_sees_its_arm_and_is_not_counted(tiny_checkpoint: Path, url: str) -> None:
    live = config(force={"qa": "pruned"}, traffic=0.0)
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        answer = await score(service, "qa")
        assert (answer["variant"], answer["assignment"]["forced"]) == ("cut", True)
        assert (await score(service, "somebody"))["assignment"] is None
    assert exposed(url) == {}


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
    tiny_checkpoint: Path, url: str, tmp_path: Path
) -> None:
    broken = write_broken_checkpoint(tmp_path / "broken")
    live = config(
        [{"name": "full"}, {"name": "broken", "checkpoint": str(broken)}], guardrails={"min_requests": 20}
    )
    async with serve(tiny_checkpoint, live, database_url=url) as service:
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
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        assert (await score(service, "user-1"))["assignment"] is None


async def test_a_slow_arm_is_rolled_back_under_load_and_nobody_gets_an_error(
    tiny_checkpoint: Path, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "slow", seed=5)
    live = config(
        [{"name": "full"}, {"name": "slow", "checkpoint": str(other)}],
        guardrails={"p99_ms": 200, "min_requests": 20},
    )
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        classifier = service.replica.engine.classifiers[str(other)]
        forward = classifier.forward

        def slow(encoded: Any, weights: Any, **how: Any) -> np.ndarray:
            time.sleep(0.25)
            return forward(encoded, weights, **how)

        monkeypatch.setattr(classifier, "forward", slow)
        await until_rolled_back(service, "p99")
        assert (await score(service, "user-1"))["variant"] == "full"


async def test_a_rollback_on_one_replica_reaches_the_others(tiny_checkpoint: Path, url: str) -> None:
    async with (
        serve(tiny_checkpoint, config(), database_url=url) as one,
        serve(tiny_checkpoint, config(), database_url=url) as other,
    ):
        assert (await score(other, "user-1"))["assignment"] is not None
        store = one.replica.live.ledger.store
        rollback = Action(experiment="prune20", kind="rollback", time=0.0, actor="guardrail", arm="pruned")
        await asyncio.to_thread(store.record_action, rollback)
        for service in (one, other):
            await eventually(
                lambda s=service: s.replica.live.ledger.standings["prune20"].status == "rolled_back", 5
            )
            assert (await score(service, "user-1"))["assignment"] is None


async def test_units_of_one_arm_that_get_lost_end_the_experiment(tiny_checkpoint: Path, url: str) -> None:
    """The sample ratio: the database has 300 units of control for 100 of the other arm."""
    store = Store(url)
    epoch = Epoch(actions=1, traffic=1.0).label  # that of the start
    rows = [exposure(f"c{number}", epoch=epoch) for number in range(300)]
    rows += [exposure(f"p{number}", "pruned", epoch=epoch) for number in range(100)]
    await asyncio.to_thread(store.add_exposures, rows)
    store.close()
    async with serve(tiny_checkpoint, config(), database_url=url) as service:
        series = 'headroom_experiment_rollbacks_total{experiment="prune20",guardrail="srm"}'
        await eventually(lambda: service.metric(series) == 1)
        assert service.metric('headroom_sample_ratio_p{experiment="prune20"}') < 0.001


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
    assert (await score(service, "user-1"))["assignment"] is None
    assert (await act("ramp"))["traffic"] == 1.0
    assert (await act("ship", 422, arm="nobody"))["error"]["param"] == "arm"
    too_little = (await act("ramp", 422, traffic=0.0001))["error"]
    assert too_little["param"] == "traffic"
    assert "the least is 0.0002" in too_little["message"]
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


async def test_a_rolled_back_arm_comes_back_only_by_name(service: Service) -> None:
    store = service.replica.live.ledger.store
    rollback = Action(
        experiment="prune20", kind="rollback", time=0.0, actor="guardrail", arm="pruned", reason="p99"
    )
    await asyncio.to_thread(store.record_action, rollback)
    await asyncio.to_thread(service.replica.live.ledger.refresh)
    ramp = "/v1/experiments/prune20/ramp"
    refused = await service.http.post(ramp, json={"traffic": 0.5}, headers=BOSS)
    assert refused.status_code == 409
    assert "pruned" in refused.json()["error"]["message"]
    taken = await service.http.post(ramp, json={"traffic": 0.5, "reinstate": ["pruned"]}, headers=BOSS)
    assert (taken.status_code, taken.json()["status"], taken.json()["rolled_back"]) == (200, "running", [])


async def test_outcomes_are_counted_once_and_by_what_became_of_them(service: Service) -> None:
    arms = [(await score(service, f"user-{number}"))["assignment"]["arm"] for number in range(4)]
    await asyncio.to_thread(service.replica.live.writer.flush, 5)

    def outcome(number: int, **more: Any) -> dict[str, Any]:
        return {
            "experiment": "prune20",
            "unit": f"user-{number}",
            "metric": "click",
            "value": 1,
            "time": time.time() + 1,
            "id": f"o{number}",
            **more,
        }

    batch = [outcome(number) for number in range(4)]
    assert await service.post("/v1/outcomes", outcomes=batch) == {
        "accepted": 4,
        "duplicates": 0,
        "unknown": 0,
        "unknown_outcomes": [],
    }
    late = outcome(9, unit="user-1", time="2026-11-20T14:00:00+01:00")
    again = [*batch[:2], late, outcome(5, unit="never"), outcome(6, experiment="other")]
    receipt = await service.post("/v1/outcomes", outcomes=again)
    assert (receipt["accepted"], receipt["duplicates"], receipt["unknown"]) == (1, 2, 2)
    assert [(found["index"], found["id"], found["reason"]) for found in receipt["unknown_outcomes"]] == [
        (3, "o5", "unit"),
        (4, "o6", "experiment"),
    ]
    shown = (await service.http.get("/v1/experiments/prune20")).json()
    assert shown["report"]["exposures"] == {arm: arms.count(arm) for arm in ("control", "pruned")}


async def test_an_outcome_of_an_unknown_metric_is_not_accepted(tiny_checkpoint: Path, url: str) -> None:
    metrics = [
        {"name": "revenue", "covariate": "past_revenue"},
        {"name": "clicks", "kind": "ratio", "denominator": "impressions"},
    ]
    async with serve(tiny_checkpoint, config(metrics=metrics), database_url=url) as service:
        await score(service, "user-1")
        await asyncio.to_thread(service.replica.live.writer.flush, 5)
        names = ["revenue", "past_revenue", "clicks", "impressions", "click"]
        batch = [
            {"experiment": "prune20", "unit": "user-1", "metric": name, "value": 1, "time": 1.0, "id": name}
            for name in names
        ]
        receipt = await service.post("/v1/outcomes", outcomes=batch)
        assert (receipt["accepted"], receipt["duplicates"], receipt["unknown"]) == (4, 0, 1)
        (unknown,) = receipt["unknown_outcomes"]
        assert (unknown["index"], unknown["id"], unknown["reason"]) == (4, "click", "metric")
        assert "no metric 'click'; it has clicks, impressions, past_revenue, revenue" in unknown["message"]
        document = (await service.http.get("/openapi.json")).json()["components"]["schemas"]
        assert receipt.keys() == document["OutcomeReceipt"]["properties"].keys()
        assert unknown.keys() == document["UnknownOutcome"]["properties"].keys()


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


async def test_a_refused_request_exposes_nobody(tiny_checkpoint: Path, url: str) -> None:
    async with serve(tiny_checkpoint, config(), database_url=url, max_queue_tokens=1) as service:
        # What the tokenizer cannot read is found out after the unit has its arm; so is a full queue.
        await service.refused("/v1/score", 422, query="\ufffd", titles=TITLES, unit="unreadable")
        requests = [{"query": QUERY, "titles": TITLES, "unit": f"user-{number}"} for number in range(60)]
        answers = await asyncio.gather(*(service.http.post("/v1/score", json=body) for body in requests))
        assert {answer.status_code for answer in answers} == {200, 429}
        answered = {
            body["unit"] for body, answer in zip(requests, answers, strict=True) if answer.status_code == 200
        }
        await asyncio.to_thread(service.replica.live.writer.flush, 5)
        assert exposed(url).keys() == answered


async def test_a_unit_whose_arm_fails_is_exposed_whatever_its_request_got(
    tiny_checkpoint: Path, url: str, tmp_path: Path
) -> None:
    """Without them an arm that fails would lose the units that it harmed."""
    broken = {"name": "broken", "checkpoint": str(write_broken_checkpoint(tmp_path / "broken"))}
    units = {f"user-{number}" for number in range(12)}
    for variants, statuses in (
        ([{"name": "full"}, broken], {200}),  # control answers in the arm's place
        ([broken, {"name": "full"}], {200, 500}),  # nothing answers in control's
    ):
        database = f"{url}-{variants[0]['name']}"
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
            await asyncio.to_thread(service.replica.live.writer.flush, 5)
            found = exposed(database)
            assert found.keys() == units | {"late"}
            assert set(found.values()) == {"control", "pruned"}


async def test_shadow_scores_every_arm_and_changes_no_answer(tiny_checkpoint: Path, url: str) -> None:
    live = config(shadow=1.0, traffic=0.0)
    titles = [*TITLES, *(f"steel angle bracket {number}" for number in range(9))]
    async with serve(tiny_checkpoint, live, database_url=url) as service:
        full = await service.post("/v1/score", query=QUERY, titles=titles, variant="full")
        cut = await service.post("/v1/score", query=QUERY, titles=titles, variant="cut")
        grades = [number % 5 for number in range(len(titles))]
        answer = await service.post("/v1/score", query=QUERY, titles=titles, grades=grades)
        assert answer["results"] == full["results"]
        scored = 'headroom_shadow_requests_total{experiment="prune20",result="scored"}'
        await eventually(lambda: service.metric(scored) == 1)
        await asyncio.to_thread(service.replica.live.writer.flush, 5)
        report = (await service.http.get("/v1/experiments/prune20")).json()["report"]
        (arm,) = report["arms"]
        shadow = arm["shadow"]
        deltas = [c["score"] - f["score"] for c, f in zip(cut["results"], full["results"], strict=True)]
        assert shadow["pairs"] == len(titles)
        assert shadow["measures"]["mean_delta"]["mean"] == pytest.approx(np.mean(deltas), abs=1e-4)
        assert {"rank_correlation", "top10_overlap", "ndcg_loss", "seconds_delta"} <= shadow[
            "measures"
        ].keys()
        error = await service.refused("/v1/score", 422, query=QUERY, titles=titles, grades=[1])
        assert error["param"] == "grades"


async def test_under_load_shadow_work_is_what_is_dropped(tiny_checkpoint: Path, url: str) -> None:
    async with serve(tiny_checkpoint, config(shadow=1.0), database_url=url) as service:
        await asyncio.gather(*(score(service, f"user-{number}") for number in range(120)))  # all 200
        assert service.metric('headroom_shadow_requests_total{experiment="prune20",result="dropped"}') > 0


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
    await asyncio.to_thread(service.replica.live.writer.flush, 5)
    document = (await service.http.get("/openapi.json")).json()
    for path in ("/v1/outcomes", "/v1/experiments", "/v1/experiments/{name}", "/v1/experiments/{name}/ramp"):
        assert path in document["paths"]
    detail = (await service.http.get("/v1/experiments/prune20")).json()
    assert detail.keys() == document["components"]["schemas"]["ExperimentDetail"]["properties"].keys()
    schemas = document["components"]["schemas"]
    ratio = detail["report"]["sample_ratio"]
    assert ratio.keys() == schemas["SampleRatio"]["properties"].keys()
    assert schemas["EpochRatio"]["properties"].keys() == ratio["epochs"][0].keys()
    assert {"cap", "value", "control_value", "relative"} <= schemas["Uncapped"]["properties"].keys()
    assert "uncapped" in schemas["MetricReport"]["properties"]
    properties = document["components"]["schemas"]["ScoreRequest"]["properties"]
    assert {"unit", "attributes", "grades"} <= properties.keys()

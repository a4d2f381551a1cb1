"""Arms that harm their units: control answers in their place, and guardrails roll them back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.config.settings import LiveConfig
from service.experiments.events import Action
from service.experiments.guardrails import Breach
from service.experiments.state import Epoch
from service.experiments.store import Store
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import BOSS, KEYS, config, eventually, score, write_broken_checkpoint
from tests.service.experiments.making import live_of
from tests.service.experiments.test_store import exposure
from tests.service.in_process import Service, serve


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
    epoch = Epoch(traffic=1.0).label
    rows = [exposure(f"c{number}", epoch=epoch) for number in range(300)]
    rows += [exposure(f"p{number}", "pruned", epoch=epoch) for number in range(100)]
    await asyncio.to_thread(store.add_exposures, rows)
    store.close()
    async with serve(tiny_checkpoint, config(), database_url=url) as service:
        series = 'headroom_experiment_rollbacks_total{experiment="prune20",guardrail="srm"}'
        await eventually(lambda: service.metric(series) == 1)
        assert service.metric('headroom_sample_ratio_p{experiment="prune20"}') < 0.001


async def test_a_rollback_that_comes_late_does_not_undo_a_reinstatement_after_it(
    tiny_checkpoint: Path, url: str
) -> None:
    """A replica that was cut off from the database records what it did before as soon as it is back."""
    breach = [Breach("pruned", "p99", "slow")]
    cut_off = live_of(Store(url))
    await asyncio.to_thread(cut_off.apply, LiveConfig.model_validate(config()).assigner, "v")
    cut_off.guard.roll_back("prune20", breach)
    try:
        async with serve(tiny_checkpoint, config(), database_url=url, api_keys=KEYS) as service:
            service.http.headers.update(BOSS)
            live = service.replica.live
            live.guard.roll_back("prune20", breach)
            ramp = {"traffic": 1.0, "reinstate": ["pruned"]}
            taken = await service.http.post("/v1/experiments/prune20/ramp", json=ramp)
            assert (taken.status_code, taken.json()["status"]) == (200, "running")

            assert cut_off.ledger.standing("prune20").status == "rolled_back"
            await asyncio.to_thread(cut_off.ledger.refresh)
            await asyncio.to_thread(live.ledger.refresh)
            kinds = [action.kind for action in live.ledger.history("prune20")]
            assert kinds == ["start", "rollback", "reinstate", "ramp", "rollback"]
            for ledger in (live.ledger, cut_off.ledger):
                assert ledger.standing("prune20").status == "running"

            live.guard.roll_back("prune20", breach)
            assert live.ledger.standing("prune20").status == "rolled_back"
    finally:
        await cut_off.close(1)

"""What was counted under other limits or before a rollback judges no arm; what is kept for how long."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from sqlalchemy import select

from service.config.settings import LiveConfig
from service.experiments.events import Action
from service.experiments.store import Store
from service.experiments.tables import exposures
from tests.service.experimenting import config, eventually
from tests.service.experiments.making import live_of
from tests.service.experiments.test_store import exposure


async def test_a_reinstated_arm_is_not_judged_by_what_it_did_before(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'experiments.db'}")
    live = live_of(store)
    edited = LiveConfig.model_validate(config(guardrails={"min_requests": 20, "window": "1h"}))
    live.apply(edited.assigner, "first")
    for number in range(100):
        live.windows.record("prune20", "control", 0.1, unit=f"c{number}")
        live.windows.record("prune20", "pruned", 0.1, unit=f"p{number}", is_error=True)
    live.guard.watch()
    assert live.ledger.standing("prune20").rolled_back == {"pruned"}
    live.guard.watch()
    live.ledger.act(
        "prune20", lambda _: [Action("prune20", "reinstate", time.time(), "operator", arm="pruned")]
    )
    live.guard.watch()
    assert live.ledger.standing("prune20").rolled_back == set()
    await live.close(1)


async def test_units_of_an_experiment_in_the_config_outlive_the_retention(tmp_path: Path) -> None:
    """A unit whose row was deleted counted again, and its outcomes so far as what it did before."""
    store = Store(f"sqlite:///{tmp_path / 'experiments.db'}", retention_days=30)
    rows = [exposure("unit", experiment=name, time=100.0) for name in ("prune20", "over")]
    store.add_exposures([*rows, exposure("new", experiment="over", time=time.time())])
    live = live_of(store)
    live.apply(LiveConfig.model_validate(config()).assigner, "first")

    def left() -> set[tuple[str, str]]:
        with store.read() as db:
            return {(row.experiment, row.unit) for row in db.execute(select(exposures))}

    await eventually(lambda: ("over", "unit") not in left())
    assert left() == {("prune20", "unit"), ("over", "new")}
    await live.close(1)


async def test_the_windows_start_anew_with_each_config(tmp_path: Path) -> None:
    live = live_of(Store(f"sqlite:///{tmp_path / 'experiments.db'}"))
    scored = np.array([0.5], dtype=np.float32)
    for version, p99_ms in (("first", 100.0), ("second", 300.0)):
        edited = LiveConfig.model_validate(config(guardrails={"p99_ms": p99_ms}))
        live.apply(edited.assigner, version)
        assert live.windows.counts("prune20", "pruned").requests == 0
        live.windows.record("prune20", "pruned", 0.2, scores=lambda: scored)
        counts = live.windows.counts("prune20", "pruned")
        assert (counts.requests, counts.slow, counts.scores.sum()) == (1, int(p99_ms == 100.0), 0)
    live.windows.record("removed", "pruned", 0.2)
    assert live.windows.counts("removed", "pruned").requests == 0
    await live.close(1)

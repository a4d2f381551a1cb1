"""What was counted under one config's limits must not be judged by another's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.experiments.online.live import LiveExperiments
from service.experiments.online.observer import ExperimentObserver
from service.experiments.storage.store import Store
from service.settings import LiveConfig
from tests.service.experimenting import config


async def test_the_windows_start_anew_with_each_config(tmp_path: Path) -> None:
    live = LiveExperiments(Store(f"sqlite:///{tmp_path / 'experiments.db'}"), ExperimentObserver())
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

"""Metrics: exact counts, at a cost that does not grow with the pairs."""

import asyncio
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headroom.service.api import create_app
from headroom.service.config.settings import Settings
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Exposure
from headroom.service.experiments.ledger import COUNTS_EVERY
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics
from tests.service.asgi import client
from tests.service.experiments.making import act
from tests.service.metering import samples


def test_a_variant_that_left_the_config_keeps_no_number() -> None:
    metrics = Metrics()
    metrics.config("01", {"full": 144, "old": 100})
    metrics.config("02", {"full": 144})
    found = samples(metrics.render())
    assert math.isnan(found['headroom_heads_on{variant="old"}'])
    assert found['headroom_heads_on{variant="full"}'] == 144
    assert found['headroom_config_version{version="01"}'] == 0
    assert found['headroom_config_version{version="02"}'] == 1


@pytest.mark.parametrize("end", ["stop", "removal"])
def test_an_experiment_that_is_not_measured_has_no_p_value(end: str, tmp_path: Path) -> None:
    """Otherwise the alert about its arms would go on until the replicas restart."""
    metrics, store = Metrics(), Store(f"sqlite:///{tmp_path / 'experiments.db'}")
    arms = [{"name": name, "variant": name} for name in ("control", "pruned")]
    config = ExperimentConfig.model_validate({"name": "prune20", "salt": "x", "arms": arms})
    live = LiveExperiments(store, metrics)

    def p() -> float:
        for _ in range(COUNTS_EVERY):
            live.ledger.refresh()
        live.show_gauges()
        return samples(metrics.render())['headroom_sample_ratio_p{experiment="prune20"}']

    try:
        live.apply((config,), "v")
        now = time.time()
        store.add([Exposure("prune20", f"u{i}", arms[i % 2]["name"], i, now, "v") for i in range(100)])
        assert p() > 0.1
        if end == "stop":
            store.append(act("stop", now))
        else:
            live.apply((), "w")
        assert math.isnan(p())
    finally:
        store.close()


def test_failures_of_the_device_are_counted_from_zero() -> None:
    """Prometheus sees no increase in a series that appears at 3, and the alert would not fire."""
    assert samples(Metrics().render())['headroom_device_failures_total{kind="cuda"}'] == 0


def test_charts_go_on_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    for now in (1000.0, 1005.0, 1010.0, 400.0, 405.0):
        monkeypatch.setattr(
            "headroom.service.observe.metrics.time", SimpleNamespace(time=lambda now=now: now)
        )
        metrics._scraped()
    assert [time for time, _ in metrics.history] == [400.0, 405.0]


async def test_a_scrape_leaves_the_event_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    begun, free = threading.Event(), threading.Event()
    render = metrics.render

    def slow() -> bytes:
        begun.set()
        assert free.wait(60)  # until the event loop has gone on
        return render()

    monkeypatch.setattr(metrics, "render", slow)
    app = create_app(Settings(), metrics)
    async with client(app) as http:
        scrape = asyncio.create_task(http.get("/metrics"))
        while not begun.is_set():
            await asyncio.sleep(0)
        assert (await http.get("/health/live")).status_code == 200
        assert not scrape.done()
        free.set()
        assert "headroom_ready" in (await scrape).text

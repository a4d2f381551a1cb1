"""The service that the page's tests look at: in this process, its experiments with some days of data."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from headroom.loadtest.server import free_port
from headroom.service.api.edge import Edge
from headroom.service.config.settings import LiveConfig
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Exposure, Outcome, ShadowResult
from headroom.service.experiments.log import Entry
from headroom.service.experiments.store import Store
from headroom.service.replica import Replica
from tests.service.experiments.making import declares, send, shadowed
from tests.service.in_process import serve
from tests.service.page.browsing import PATIENCE_S

SHIPPED = Path(__file__).parents[3] / "models" / "default"
DAYS = 3
UNITS = 4000

PRUNE20: dict[str, Any] = {
    "name": "prune20",
    "salt": "2026-11",
    "arms": [
        {"name": "control", "variant": "full", "weight": 50},
        {"name": "pruned", "variant": "pruned20", "weight": 50},
    ],
    "slots": [0, 5000],
    "shadow": 0.05,
    "planned_units": 10_600,
    "metrics": [{"name": "click", "kind": "proportion", "margin": 0.1}, {"name": "revenue", "margin": 0.2}],
}
DEEPER: dict[str, Any] = {
    "name": "deeper",
    "salt": "2026-11b",
    "arms": [
        {"name": "control", "variant": "full", "weight": 50},
        {"name": "half", "variant": "half", "weight": 50},
    ],
    "slots": [5000, 10000],
    "metrics": [
        {"name": "click", "kind": "proportion", "margin": 0.05},
        {"name": "latency_ms", "better": "lower", "margin": 0.08},
        {"name": "revenue", "relative": False, "margin": 1.5},
    ],
    "guardrails": {"p99_ms": 500},
}
LIVE: dict[str, Any] = {
    "variants": [
        {"name": "full"},
        {"name": "pruned20", "head_mask": "@pruned20", "sliced": True},
        {"name": "half", "head_mask": "random:0.5@7", "sliced": True},
    ],
    "experiments": [PRUNE20, DEEPER],
}


@contextmanager
def served(model: Path, live: LiveConfig | None = None, **options: Any) -> Iterator[str]:
    """The address of a service of a model, in a thread of this process."""
    with running(model, live, **options) as (url, _):
        yield url


@contextmanager
def running(
    model: Path, live: LiveConfig | None = None, *, port: int | None = None, **options: Any
) -> Iterator[tuple[str, Replica]]:
    """As `served`, with the replica, whose live config a test can change. port: None: a free one."""
    port = port or free_port()
    replicas: list[Replica] = []
    begun, finish = threading.Event(), threading.Event()

    async def main() -> None:
        async with serve(model, live or LiveConfig(), **options) as service:
            replicas.append(service.replica)
            app = Edge(service.app, in_replica=True)
            server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
            task = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            begun.set()
            await asyncio.to_thread(finish.wait)
            server.should_exit = True
            await task

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        yield f"http://127.0.0.1:{port}", replicas[0]
    finally:
        finish.set()
        thread.join()


def seed(database: Path) -> None:
    """Write the last days of both experiments, one of which a guardrail has ended."""
    database.parent.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{database}")
    began = time.time() - DAYS * 86_400
    try:
        store.append(declares(*map(ExperimentConfig.model_validate, (PRUNE20, DEEPER)), time=began))
        for config, rates in ((PRUNE20, (0.31, 0.318)), (DEEPER, (0.31, 0.30))):
            rolled_back = config is DEEPER
            _fill(store, config, began, DAYS * 86_400 * (0.4 if rolled_back else 1.0), rates)
            if rolled_back:
                detail = "p99 612 ms over 500 ms in 248 requests of 60 s"
                at = began + DAYS * 86_400 * 0.4
                more = {"actor": "guardrail", "reason": "p99_ms", "detail": detail}
                store.append(Entry("rollback", at, experiment="deeper", arm="half", **more))
    finally:
        store.close()


def _fill(
    store: Store, config: dict[str, Any], began: float, seconds: float, rates: tuple[float, float]
) -> None:
    """Units in turn to both arms, each with clicks at the arm's rate; shadow results for the second arm."""
    rng = np.random.default_rng(1)
    name, arms = config["name"], [arm["name"] for arm in config["arms"]]
    exposures, outcomes = [], []
    for number, moment in enumerate(np.sort(rng.uniform(began + 60, began + seconds - 900, UNITS))):
        which, unit, at = int(rng.integers(2)), f"u{number}", float(moment)
        outcomes.append(Outcome(name, f"l{number}", unit, "latency_ms", float(rng.gamma(40, 1.2)), at))
        bucket = 5000 * which + number % 5000
        exposures.append(Exposure(name, unit, arms[which], bucket, at, "v", slot=config["slots"][0]))
        if rng.random() < rates[which]:
            outcomes.append(Outcome(name, f"c{number}", unit, "click", 1.0, at + 30))
            outcomes.append(Outcome(name, f"r{number}", unit, "revenue", float(rng.gamma(2, 9)), at + 60))
    store.add(exposures)
    send(store, outcomes, [ExperimentConfig.model_validate(config)])
    if config.get("shadow"):
        store.add([_shadow(name, began + 60 * number, rng) for number in range(400)])


def _shadow(experiment: str, moment: float, rng: np.random.Generator) -> ShadowResult:
    return shadowed(
        float(rng.normal(0.002, 0.01)),
        float(rng.exponential(0.012)),
        experiment=experiment,
        time=moment,
        rank_correlation=float(rng.normal(0.97, 0.01)),
        top10_overlap=float(rng.choice([0.9, 1.0])),
        seconds_delta=float(rng.normal(-0.0015, 0.001)),
    )

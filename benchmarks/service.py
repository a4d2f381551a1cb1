"""Measures our server over HTTP: overhead over the model, overload, mixed traffic, memory and start.

The server is `headroom serve` with the shipped model and configuration on a free port. Our open-loop load
tester sends the requests. Measurements that are compared with each other run in turns.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import checkpoints, request_path
from benchmarks.crowd import ModelAlone, Requests
from benchmarks.measure import machine
from benchmarks.service_runs import (
    LONG_WORDS,
    MANY_TITLES,
    TITLES,
    Lengths,
    Start,
    crowd,
    idle,
    memory,
    overload,
    plan_for,
    saturated,
    served,
)
from benchmarks.service_table import as_markdown, missed
from models.checkpoint.hub import DEFAULT

__all__ = ["ROUNDS", "as_markdown", "measure", "missed"]

CONFIG = Path(__file__).parents[1] / "deploy" / "serve.yaml"
ROUNDS = 5
LENGTHS = Lengths()


def measure(
    rounds: int = ROUNDS,
    lengths: Lengths = LENGTHS,
    config: Path = CONFIG,
    model: Path = DEFAULT,
    base: Path | None = None,
    start: Start = served,
) -> dict[str, Any]:
    """Run all measurements of `model`, and saturation with the shape of BERT-base too.

    rounds: turns of each measurement that is compared with another. config: what the server is started with.
    base: checkpoint of BERT-base's shape; None makes one with random weights.
    start: starts each server.
    """
    with tempfile.TemporaryDirectory() as scratch, start(config, Path(scratch), model) as server:
        plan = plan_for(server, lengths)
        result: dict[str, Any] = {"machine": machine(), "rounds": rounds, "start_s": server.start_s}
        alone = ModelAlone(TITLES, model)
        try:
            result["saturated"] = saturated(plan, alone, rounds, lengths)
            result["idle"] = idle(plan, alone, rounds, lengths)
            peak = result["saturated"]["requests_per_second"]
            result["overload"] = overload(plan, server, peak, lengths)
            result["crowd"] = crowd(plan, rounds, lengths, Requests(MANY_TITLES))
            result["memory"] = memory(plan, server, lengths)
            result["path"] = request_path.measure(TITLES, model)
        finally:
            alone.close()
    result["long_crowd"] = long_crowd(model, rounds, lengths, config, start)
    result["base"] = saturated_with(base or checkpoints.checkpoint("base"), rounds, lengths, config, start)
    return result


def saturated_with(model: Path, rounds: int, lengths: Lengths, config: Path, start: Start) -> dict[str, Any]:
    """Measure `saturated` on a new server with another model."""
    alone = ModelAlone(TITLES, model)
    try:
        with tempfile.TemporaryDirectory() as scratch, start(config, Path(scratch), model) as server:
            return saturated(plan_for(server, lengths), alone, rounds, lengths)
    finally:
        alone.close()


def long_crowd(model: Path, rounds: int, lengths: Lengths, config: Path, start: Start) -> dict[str, Any]:
    """Measure `crowd` with titles longer than the model's window, on one replica that all requests share."""
    with tempfile.TemporaryDirectory() as scratch, start(config, Path(scratch), model, replicas=1) as server:
        return crowd(plan_for(server, lengths), rounds, lengths, Requests(MANY_TITLES, LONG_WORDS))

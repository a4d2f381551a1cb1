"""Our server under an hour of mixed traffic: its memory every five minutes, what failed, how quick it was.

The traffic is of every kind that leaves something in a cache: titles of many lengths, pruned variants, more
masks than are kept, compares, attention. Less than it can do, so that nothing has to be refused.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.crowd import server_memory
from benchmarks.measure import machine
from benchmarks.service import CONFIG
from benchmarks.service_runs import served
from loadtest import running
from loadtest.plan import Plan

ROUNDS = 12
PERIOD_S = 300.0
RATE = 20.0
MASKS = 60
LARGEST_GROWTH = 1.02

_RANDOM = {f"random:0.2@{seed}": 1 for seed in range(MASKS)}
_COMPARED = dict.fromkeys(("none", *list(_RANDOM)[:3]), 1)
"""A compare asks for all of its masks at once. Of all sixty that would be 305 pairs, which wait behind all
requests for less."""

_VARIANTS = {"full": 1, "pruned20": 1, "pruned60": 1}
TRAFFIC = [
    {"name": "score", "weight": 6, "titles": "1-50", "masks": {"none": MASKS, **_RANDOM}},
    {"name": "variants", "weight": 2, "titles": "1-50", "variants": _VARIANTS},
    {"name": "compare", "weight": 1, "endpoint": "compare", "titles": 5, "masks": _COMPARED},
    {"name": "attention", "weight": 1, "endpoint": "attention", "titles": 1},
]


def measure(rounds: int, period_s: float = PERIOD_S, config: Path = CONFIG) -> dict[str, Any]:
    """Memory of all replicas after each of so many periods, and how its requests fared."""
    with tempfile.TemporaryDirectory() as scratch, served(config, Path(scratch)) as server:
        plan = Plan(url=server.url, rate=RATE, duration=period_s, warmup=0.0, max_lag=0.05, traffic=TRAFFIC)
        periods = []
        for turn in range(rounds):
            outcome = running.run(plan.changed(seed=turn + 1))
            recorder = outcome.recorder
            periods.append(
                {
                    "bytes": server_memory(server.pid),
                    "ok": recorder.ok,
                    "errors": dict(recorder.errors),
                    "p50_ms": recorder.latency().percentile_ms(50),
                    "p99_ms": recorder.latency().percentile_ms(99),
                }
            )
            print(f"hour: {(turn + 1) * period_s / 60:g} minutes: {periods[-1]}", file=sys.stderr, flush=True)
    return {
        "machine": machine(),
        "period_s": period_s,
        "periods": periods,
        "growth": periods[-1]["bytes"] / periods[_half(periods)]["bytes"],
    }


def _half(periods: list[dict[str, Any]]) -> int:
    """The period from whose end on growth counts. Each sends 10,500 new texts, and a replica keeps the tokens
    of 65,536: until half an hour is over, that cache fills."""
    return (len(periods) - 1) // 2


def as_markdown(result: dict[str, Any]) -> str:
    """A line for each period."""
    periods, minutes = result["periods"], result["period_s"] / 60
    answered = sum(period["ok"] for period in periods)
    failed = sum(sum(period["errors"].values()) for period in periods)
    gained = periods[-1]["bytes"] / periods[0]["bytes"]
    slow = statistics.median(period["p99_ms"] for period in periods)
    lines = [
        f"{result['machine']}; {RATE:g} requests/s for {len(periods) * minutes:g} minutes: "
        f"{answered} answered, {failed} not. Memory of all replicas × {result['growth']:.3f} from "
        f"{(_half(periods) + 1) * minutes:g} minutes to the end, × {gained:.3f} from the first line; "
        f"p99 {slow:.0f} ms by the median of the lines.",
        "",
        "| after | memory | p50 | p99 | not answered |",
        "|---|---|---|---|---|",
    ]
    for number, period in enumerate(periods, start=1):
        lines.append(
            f"| {number * minutes:g} min | {period['bytes'] / 2**20:.0f} MiB | {period['p50_ms']:.0f} ms "
            f"| {period['p99_ms']:.0f} ms | {sum(period['errors'].values())} |"
        )
    return "\n".join(lines)


def missed(result: dict[str, Any]) -> list[str]:
    """The targets that this run does not reach, in words."""
    failed = sum(sum(period["errors"].values()) for period in result["periods"])
    return [
        *([f"hour: memory grew × {result['growth']:.3f}"] if result["growth"] > LARGEST_GROWTH else []),
        *([f"hour: {failed} requests were not answered"] if failed else []),
    ]

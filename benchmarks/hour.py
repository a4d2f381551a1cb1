"""Measures our server under an hour of mixed traffic: memory, failures and latency every five minutes.

The traffic has every kind of request that fills a cache: titles of many lengths, pruned variants, more masks
than are kept, compares, attention. The rate is below the server's capacity, so it should refuse nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.crowd import server_memory
from benchmarks.load_runs import LoadRuns, invalid_notes, invalid_runs
from benchmarks.measure import machine
from benchmarks.service import CONFIG
from benchmarks.service_runs import Start, served
from loadtest.histogram import Histogram
from loadtest.plan import Plan

ROUNDS = 12
PERIOD_S = 300.0
RATE = 20.0
MASKS = 60
LARGEST_GROWTH = 1.02

_RANDOM = {f"random:0.2@{seed}": 1 for seed in range(MASKS)}
_COMPARED = dict.fromkeys(("none", *list(_RANDOM)[:3]), 1)
"""A compare uses all of its masks at once. With all sixty it would be 305 pairs, which wait behind all
smaller requests."""

_VARIANTS = {"full": 1, "pruned20": 1, "pruned60": 1}
TRAFFIC = [
    {"name": "score", "weight": 6, "titles": "1-50", "masks": {"none": MASKS, **_RANDOM}},
    {"name": "variants", "weight": 2, "titles": "1-50", "variants": _VARIANTS},
    {"name": "compare", "weight": 1, "endpoint": "compare", "titles": 5, "masks": _COMPARED},
    {"name": "attention", "weight": 1, "endpoint": "attention", "titles": 1},
]


def measure(
    rounds: int, period_s: float = PERIOD_S, config: Path = CONFIG, start: Start = served
) -> dict[str, Any]:
    """Return the memory of all replicas, and latency and failures, for each of `rounds` periods."""
    with tempfile.TemporaryDirectory() as scratch, start(config, Path(scratch)) as server:
        plan = Plan(url=server.url, rate=RATE, duration=period_s, warmup=0.0, max_lag=0.05, traffic=TRAFFIC)
        periods: list[dict[str, Any]] = []
        latency, runs = Histogram(), LoadRuns()
        for turn in range(rounds):
            recorder = runs.run(plan.changed(seed=turn + 1), f"period {turn + 1}").recorder
            latency.add(recorder.latency())
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
        "p99_ms": latency.percentile_ms(99),
        "invalid": runs.invalid,
        "growth": periods[-1]["bytes"] / periods[_half(periods)]["bytes"],
    }


def _half(periods: list[dict[str, Any]]) -> int:
    """Return the period after which growth counts.

    A period sends 10,500 new texts, and a replica caches the tokens of 65,536, so the cache grows for half an
    hour.
    """
    return (len(periods) - 1) // 2


def as_markdown(result: dict[str, Any]) -> str:
    """Return a table with one line per period."""
    periods, minutes = result["periods"], result["period_s"] / 60
    answered = sum(period["ok"] for period in periods)
    failed = sum(sum(period["errors"].values()) for period in periods)
    gained = periods[-1]["bytes"] / periods[0]["bytes"]
    lines = [
        f"{result['machine']}; {RATE:g} requests/s for {len(periods) * minutes:g} minutes: "
        f"{answered} answered, {failed} not. Memory of all replicas × {result['growth']:.3f} from "
        f"{(_half(periods) + 1) * minutes:g} minutes to the end, × {gained:.3f} from the first line; "
        f"p99 {result['p99_ms']:.0f} ms of all requests.",
        "",
        "| after | memory | p50 | p99 | not answered |",
        "|---|---|---|---|---|",
    ]
    for number, period in enumerate(periods, start=1):
        lines.append(
            f"| {number * minutes:g} min | {period['bytes'] / 2**20:.0f} MiB | {period['p50_ms']:.0f} ms "
            f"| {period['p99_ms']:.0f} ms | {sum(period['errors'].values())} |"
        )
    return "\n".join(lines + invalid_notes(result))


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that this run misses."""
    failed = sum(sum(period["errors"].values()) for period in result["periods"])
    return [
        *([f"hour: memory grew × {result['growth']:.3f}"] if result["growth"] > LARGEST_GROWTH else []),
        *([f"hour: {failed} requests were not answered"] if failed else []),
        *(f"hour: invalid run: {line}" for line in invalid_runs(result)),
    ]

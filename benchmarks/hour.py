"""Measures our server under an hour of mixed traffic: memory, failures and latency every five minutes.

The traffic has every kind of request that fills a cache: titles of many lengths, pruned variants, more masks
than are kept, compares, attention. The rate is below the server's capacity, so it should refuse nothing.
"""

from __future__ import annotations

import sys

from benchmarks.load import LoadRuns, milliseconds, plan_for
from benchmarks.report import Report, Row, at_most
from benchmarks.serving import Start, headroom, memory_of
from loadtest.histogram import Histogram

ROUNDS = 12
PERIOD_S = 300.0
RATE = 20.0
MASKS = 60

_RANDOM = {f"random:0.2@{seed}": 1 for seed in range(MASKS)}
_COMPARED = dict.fromkeys(("none", *list(_RANDOM)[:3]), 1)
"""A compare uses all of its masks at once. With all sixty it would be 305 pairs, which wait behind all
smaller requests."""
_VARIANTS = {"full": 1, "pruned20": 1, "pruned30": 1}

TRAFFIC = [
    {"name": "score", "weight": 6, "titles": "1-50", "masks": {"none": MASKS, **_RANDOM}},
    {"name": "variants", "weight": 2, "titles": "1-50", "variants": _VARIANTS},
    {"name": "compare", "weight": 1, "endpoint": "compare", "titles": 5, "masks": _COMPARED},
    {"name": "attention", "weight": 1, "endpoint": "attention", "titles": 1},
]


def measure(rounds: int, period_s: float = PERIOD_S, start: Start = headroom) -> Report:
    """Measure the memory of all replicas, and latency and failures, for each of `rounds` periods.

    Growth counts from the middle on: a period sends 10,500 new texts, and a replica caches the tokens of
    65,536, so the cache grows for half an hour.
    """
    memory, failed, latency, runs = [], 0, Histogram(), LoadRuns()
    report, lines = Report(""), []
    with start() as server:
        plan = plan_for(server.url).changed(
            rate=RATE, duration=period_s, warmup=0.0, slo=None, traffic=TRAFFIC
        )
        for turn in range(rounds):
            recorder = runs.run(plan.changed(seed=turn + 1), f"period {turn + 1}").recorder
            latency.add(recorder.latency())
            memory.append(memory_of(server))
            failed += sum(recorder.errors.values())
            p50, p99 = (milliseconds(recorder.latency(), percent) for percent in (50, 99))
            line = {
                "after": f"{(turn + 1) * period_s / 60:g} min",
                "memory": f"{memory[-1] / 2**20:.0f} MiB",
                "p50": f"{p50:.0f} ms",
                "p99": f"{p99:.0f} ms",
                "not answered": str(sum(recorder.errors.values())),
            }
            lines.append(line)
            print(f"hour: {', '.join(line.values())}", file=sys.stderr, flush=True)
    report.about = f"{RATE:g} requests/s for {rounds * period_s / 60:g} minutes."
    report.rows += [
        growth(memory),
        Row("not answered", str(failed), "0", failed == 0),
        Row("p99 of all requests", f"{milliseconds(latency, 99):.0f} ms"),
    ]
    report.tables["Periods"] = lines
    report.add_invalid(runs.invalid)
    return report


def growth(memory: list[int]) -> Row:
    """Return how much memory grew in the second half of the periods."""
    second_half = memory[-1] / memory[(len(memory) - 1) // 2]
    more = f" (× {memory[-1] / memory[0]:.3f} since the first period)"
    return at_most("memory's growth in the second half", second_half, 1.02, ".3f", more=more)

"""Each of the scheduler's policies, switched off in turn, under simulated traffic (`benchmarks.simulation`).

A policy earns its place if some figure of some workload is clearly worse without it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from math import inf
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.simulation import BATCH_TOKENS, LIMITS, RUN_S, Client, Run, Workload
from service.batching import sizing
from service.batching.sharing import ProcessorSharing, Share

ROUNDS = 2
"""Runs of each workload, each with random arrivals of its own; their latencies are pooled."""
NOTICEABLE = 0.1
"""A figure differs if it changes by more than a tenth."""
ALL_ON = "none"


def _singles(load: float = 0.01) -> Client:
    return Client("small", (1, 1), load)


def _twenties(load: float | None, deadline_s: float | None = None) -> Client:
    return Client("small", (20, 20), load, deadline_s=deadline_s)


WORKLOADS: dict[str, Workload] = {
    "20 titles, one request after the other": Workload([_twenties(None)]),
    "20 titles, 80 % load": Workload([_twenties(0.8)]),
    "20 titles, 200 % load, deadline 2 s": Workload([_twenties(2.0, 2.0)]),
    "1 title beside 1,000": Workload([_singles(), Client("large", (1000, 1000), None)]),
    "1 title beside 1,000 of 128 tokens": Workload([_singles(), Client("large", (1000, 1000), None, 128)]),
    "1 to 20 beside 100 to 1,000, 70 % load": Workload(
        [Client("small", (1, 20), 0.3), Client("large", (100, 1000), 0.4)]
    ),
    "20 titles, 110 % load, beside 1,000": Workload([_twenties(1.1), Client("large", (1000, 1000), None)]),
    "the same, 1,000 for another model": Workload(
        [_twenties(1.1), Client("large", (1000, 1000), None, lane="pruned")]
    ),
    "20 titles, 60 % load, memory for 600 tokens": Workload([_twenties(0.6)], memory_tokens=600),
    "20 titles, 90 % load, memory for 100 tokens, then for all": Workload(
        [_twenties(0.9)], memory_tokens=100, memory_until=2.0
    ),
}


class _FirstCome(ProcessorSharing):
    """First come, first served: each request waits for all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.active = 10**9

    def enter(self, tokens: int) -> Share:  # noqa: ARG002
        self._entries += 1
        return Share(0.0, float(self._entries))

    def shorten(self, share: Share, tokens: int) -> None:
        pass

    def advance(self, tokens: int) -> None:
        pass

    def clear(self) -> None:
        pass


class _WholeBatches(sizing.Sizing):
    """Does not split what waits: each slot takes up to the budget."""

    def _share_tokens(self, waiting_tokens: int, busy_slots: int) -> int:  # noqa: ARG002
        return self._budget.tokens


class _FilledSlices(sizing.Sizing):
    """Fills slices up with part of a long request."""

    def next_batch(self, waiting_tokens: int, busy_slots: int, now: float) -> sizing.BatchSize:
        return super().next_batch(waiting_tokens, busy_slots, now)._replace(fill=True)


POLICIES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "sharing": lambda: patch("service.batching.fair_queue.ProcessorSharing", _FirstCome),
    "ageing": lambda: patch.dict(LIMITS, max_age_s=inf),
    "slicing": lambda: patch.object(sizing, "SLICE_S", 1e6),
    "slicing: not filling up": lambda: patch("service.batching.scheduler.Sizing", _FilledSlices),
    "splitting": lambda: patch("service.batching.scheduler.Sizing", _WholeBatches),
    "budget": lambda: patch.dict(LIMITS, max_batch_tokens=16 * BATCH_TOKENS),
    "budget: halving": lambda: patch.object(sizing.TokenBudget, "halve"),
    "budget: growing back": lambda: patch.object(sizing.TokenBudget, "record_success"),
}
"""How each policy is switched off."""


def play(workload: Workload, rounds: int, policy_off: str | None = None) -> dict[str, float]:
    """Return a workload's figures over all rounds: milliseconds, titles per second, and counts.

    A request that is still open counts if it has waited longer than every answered one: it starves.
    """
    runs = [Run(workload, seed) for seed in range(rounds)]
    with ExitStack() as off:
        if policy_off is not None:
            off.enter_context(POLICIES[policy_off]())
        for run in runs:
            run.play()
    figures: dict[str, float] = {}
    for size in ("small", "large"):
        latencies = [seconds for run in runs for seconds in run.latencies[size]]
        longest = max(latencies, default=0.0)
        latencies += [age for run in runs for age in run.open_ages[size] if age > longest]
        if latencies:
            figures[f"{size}_p50_ms"] = round(1000 * float(np.percentile(latencies, 50)), 1)
            figures[f"{size}_p99_ms"] = round(1000 * float(np.percentile(latencies, 99)), 1)
    figures["titles_per_second"] = round(sum(run.answered_titles for run in runs) / (rounds * RUN_S), 1)
    figures["refused"] = sum(run.refused for run in runs)
    figures["late"] = sum(run.late for run in runs)
    return figures


def measure(rounds: int) -> dict[str, Any]:
    """Return each workload's figures with all policies on, and those that differ with one of them off."""
    workloads = {}
    for name, workload in WORKLOADS.items():
        base = play(workload, rounds)
        workloads[name] = {ALL_ON: base}
        for policy in POLICIES:
            figures = play(workload, rounds, policy)
            if any(_worse(base, figures).values()) or any(_worse(figures, base).values()):
                workloads[name][policy] = figures
    return {"rounds": rounds, "run_s": RUN_S, "workloads": workloads}


def as_markdown(result: dict[str, Any]) -> str:
    """Return one table: a line per workload with all policies on, and per policy that matters to it."""
    lines = [
        f"{result['rounds']} runs of {result['run_s']:g} s of virtual time each. A policy has a line where a "
        "figure changes by more than a tenth without it; figures in bold are worse by more than that.",
        "",
        "| traffic | policy off | small p50, p99 | large p50, p99 | titles/s | refused | late |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, sides in result["workloads"].items():
        for policy, figures in sides.items():
            worse = _worse(sides[ALL_ON], figures)
            cells = {
                key: f"**{value:,.0f}**" if worse[key] else f"{value:,.0f}" for key, value in figures.items()
            }
            small, large = (
                f"{cells[f'{size}_p50_ms']}, {cells[f'{size}_p99_ms']} ms"
                if f"{size}_p50_ms" in cells
                else "–"
                for size in ("small", "large")
            )
            lines.append(
                f"| {name if policy == ALL_ON else ''} | {policy} | {small} | {large} "
                f"| {cells['titles_per_second']} | {cells['refused']} | {cells['late']} |"
            )
    return "\n".join(lines)


def missed(result: dict[str, Any]) -> list[str]:
    """Name each policy without which no figure of any workload is worse."""
    return [
        f"{policy}: no workload is worse without this policy"
        for policy in POLICIES
        if not any(
            policy in sides and any(_worse(sides[ALL_ON], sides[policy]).values())
            for sides in result["workloads"].values()
        )
    ]


def _worse(base: dict[str, float], figures: dict[str, float]) -> dict[str, bool]:
    """Return, for each figure, whether it is worse than the base's by more than a tenth."""
    worse = {}
    for key, value in figures.items():
        low, high = (value, base[key]) if key == "titles_per_second" else (base[key], value)
        worse[key] = high > low * (1 + NOTICEABLE) and high - low > 1
    return worse

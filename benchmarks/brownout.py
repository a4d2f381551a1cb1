"""Overload with and without brownout, in virtual time: `python -m benchmarks.brownout`.

The scheduler and its admission are the real ones, on the simulated device of `benchmarks.simulation`.
Requests of 20 titles come at random, at a multiple of what the device does with the full model.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks.simulation import RUN_S, Client, Run, Workload
from service.batching.scheduler import Batch

LOADS = (0.8, 1.1, 1.3, 2.0)
TITLES = 20
GOOD_S = 2.0
"""An answer is good within this time."""
SPEED = 1.3
"""How many times as fast as the full model the variant is that stands in: `pruned60` on a CPU."""
LIMITS = (inf, 20_000, 5_000)
"""Queued tokens above which it does."""


@dataclass
class BrownoutRun(Run):
    """A run in which a faster variant stands in while the queue is long. switches: from one to the other."""

    above_tokens: float = inf
    sent: int = 0
    degraded: int = 0
    switches: int = 0
    is_degraded: bool = False

    def _send(self, client: Client, luck: random.Random) -> asyncio.Task[None] | None:
        is_degraded = self._scheduler.queued_tokens > self.above_tokens
        lane = "stand-in" if is_degraded else "full"
        task = super()._send(Client(client.size, client.titles, client.load, lane=lane), luck)
        self.sent += 1
        self.degraded += is_degraded and task is not None
        self.switches += is_degraded != self.is_degraded
        self.is_degraded = is_degraded
        return task

    async def _forward(self, batch: Batch[None]) -> Sequence[None]:
        if batch.lane == "stand-in":
            tokens = int(batch.tokens / SPEED)
            batch = Batch(batch.lane, batch.items, tokens, batch.alone)
        return await super()._forward(batch)


def play(load: float, above_tokens: float) -> BrownoutRun:
    """Play one run."""
    workload = Workload([Client("small", (TITLES, TITLES), load)])
    run = BrownoutRun(workload, 0, above_tokens=above_tokens)
    run.play()
    return run


def main() -> None:
    """Print the table."""
    print("| load | stands in above | good answers/s | refused | degraded | p50, p99 | switches/s |")
    print("|---|---|---|---|---|---|---|")
    for load in LOADS:
        for limit in LIMITS:
            run = play(load, limit)
            latencies = np.array(run.latencies["small"])
            good = np.count_nonzero(latencies <= GOOD_S) / RUN_S
            p50, p99 = 1000 * np.percentile(latencies, [50, 99])
            where = "never" if limit == inf else f"{limit:,.0f} tokens"
            print(
                f"| {load:.0%} | {where} | {good:.0f} | {run.refused / run.sent:.0%} "
                f"| {run.degraded / run.sent:.0%} | {p50:.0f}, {p99:.0f} ms | {run.switches / RUN_S:.1f} |"
            )


if __name__ == "__main__":
    main()

"""Measures the memory of each replica of a real server, after a mix of requests.

The proportional set size (PSS) shares a page among the processes that map it; the unique set size (USS)
leaves shared pages out. Linux has both in /proc/PID/smaps_rollup.
"""

import random
import sys
import time

import psutil

from benchmarks.load import texts
from benchmarks.report import Report, at_most
from benchmarks.serving import ask, headroom, replicas

REPLICAS = 2
REQUESTS = 2000
MAX_TITLES = 20
AFTER_START_S = 2.0
"""By then a replica has given back what loading and warming up left free."""

FREE_MEMORY_S = 65.0
"""Within this time, a replica gives free pages back (`service/engine/free_memory.py`)."""

MAX_PSS_MB = 700.0


def measure(rounds: int, count: int = REQUESTS, wait_s: float = FREE_MEMORY_S) -> Report:
    """Measure with `count` requests. rounds: there are none. wait_s: before the second look."""
    del rounds
    report = Report(
        f"`headroom serve` with the shipped model, `deploy/serve.yaml` and {REPLICAS} replicas, after "
        f"{count:,} requests of 1 to {MAX_TITLES} titles. PSS and USS of the replica that has most, from "
        "/proc/PID/smaps_rollup."
    )
    with headroom(replicas=REPLICAS) as server:
        time.sleep(AFTER_START_S)
        after_start = largest(replicas(server))
        rng = random.Random(0)
        for number in range(count):
            ask(server.url, texts(rng.randint(1, MAX_TITLES), 1, seed=number)[0])
        busy = largest(replicas(server))
        time.sleep(wait_s)
        at_rest = largest(replicas(server))
    for when, (pss, uss) in (("start", after_start), ("the requests", busy), ("a minute of rest", at_rest)):
        more = f" (USS {uss:.0f} MB)"
        name = f"a replica's PSS after {when}"
        report.rows.append(at_most(name, pss, MAX_PSS_MB, ".0f", " MB", more))
        print(f"memory: {name}: {pss:.0f} MB{more}", file=sys.stderr, flush=True)
    return report


def largest(processes: list[psutil.Process]) -> tuple[float, float]:
    """Return PSS and USS in MB of the process with the largest PSS."""
    sizes = [process.memory_full_info() for process in processes]
    size = max(sizes, key=lambda one: one.pss)
    return size.pss / 1e6, size.uss / 1e6

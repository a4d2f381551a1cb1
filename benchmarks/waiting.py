"""Compares how long OpenMP's threads spin while they wait, on an idle machine and beside other programs.

The network scores in three processes, in turns: with the spins that `import headroom` sets, with GNU's
default, and with threads that sleep at once. "Beside other programs" is one process per core that counts.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import checkpoints
from benchmarks.engines import BF16, FP32
from benchmarks.environments import Worker
from benchmarks.measure import ratio, turns
from benchmarks.report import Report, Row
from benchmarks.workload import query_title_lengths
from headroom import OPENMP_SPINS
from headroom.models.cores import cores

ROUNDS = 30

OURS = f"{OPENMP_SPINS:,} spins (headroom)"
GNU = "300,000 spins (GNU)"
PASSIVE = "no spins"
SETTINGS = {
    OURS: {"GOMP_SPINCOUNT": str(OPENMP_SPINS)},
    GNU: {"GOMP_SPINCOUNT": "300000"},
    PASSIVE: {"GOMP_SPINCOUNT": "0"},
}
"""The variables of each setting. GNU's default is said too, because headroom would set its own."""

BATCHES = {"one pair": 1, "20 pairs": 20, "64 pairs": 64}

CALLS = 10
BUSY_CALLS = 1
"""Calls of a turn: beside other programs, one can take seconds."""


def measure(rounds: int, calls: int = CALLS, shape: str = "shipped") -> Report:
    """Measure each batch with each setting, idle and beside other programs. shape: of `SHAPES`."""
    report = Report(
        f"{rounds} turns of {calls} calls, {BUSY_CALLS} beside other programs; bfloat16, or float32 on a "
        "processor without. Times are medians of the turns."
    )
    with TemporaryDirectory() as directory, ExitStack() as stack:
        lengths = query_title_lengths(sum(BATCHES.values()))
        file = checkpoints.write_workload(Path(directory, "workload.json"), shape, lengths, BATCHES.values())
        model = checkpoints.checkpoint(shape)
        workers = {
            name: stack.enter_context(closing(Worker("ours", "ours", model, file, variables)))
            for name, variables in SETTINGS.items()
        }
        add(report, "idle", workers, rounds, calls)
        with other_programs(cores()):
            add(report, "beside other programs", workers, rounds, BUSY_CALLS)
    return report


def add(report: Report, where: str, workers: Mapping[str, Worker], rounds: int, calls: int) -> None:
    """Add a table of all batches and settings, and rows of headroom's setting against GNU's."""
    lines = list[dict[str, str]]()
    for index, batch in enumerate(BATCHES):
        sides = {name: partial(seconds_of_call, worker, index, calls) for name, worker in workers.items()}
        seconds = turns(sides, rounds)
        report.rows.append(
            Row(f"{batch}, {where}: times as fast as with GNU's default", ratio(seconds, OURS, GNU).text())
        )
        milliseconds = {name: f"{statistics.median(taken) * 1000:.1f} ms" for name, taken in seconds.items()}
        lines.append({"batch": batch, **milliseconds})
    report.tables[where] = lines


def seconds_of_call(worker: Worker, batch: int, calls: int, _: int) -> float:
    """Return the mean seconds of a call, after one that wakes the process."""
    engine = BF16 if BF16 in worker.engines else FP32
    seconds, _logits = worker.call(engine, batch, calls + 1)
    return statistics.mean(seconds[1:])


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    """Keep this many processes busy, and end them."""
    with ExitStack() as stack:
        for _ in range(count):
            program = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(program.kill)
        yield

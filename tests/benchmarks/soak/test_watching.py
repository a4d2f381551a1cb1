"""What a soak sees of the server's processes: a leak is told from noise, a falling counter noticed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.soak.watching import Sample, Watch, trend
from headroom.loadtest.plan import make_plan

HOUR = np.arange(0, 3600, 9.0)


def noise(seed: int, likeness: float) -> np.ndarray:
    """Values of which each is like the one before it."""
    drawn = np.random.default_rng(seed).normal(size=len(HOUR))
    for place in range(1, len(drawn)):
        drawn[place] += likeness * drawn[place - 1]
    return drawn


@pytest.mark.parametrize("likeness", [0.0, 0.8])
def test_the_interval_misses_the_true_slope_about_as_seldom_as_it_says(likeness: float) -> None:
    missed = 0
    for seed in range(400):
        found = trend(HOUR, 500 + 3.0 * HOUR / 3600 + noise(seed, likeness))
        assert found is not None
        missed += not found["low"] <= 3.0 <= found["high"]
    assert missed < 0.08 * 400


def flat(_at: float) -> float:
    return 5e8


Memory = Callable[[float], float]


def watch(seconds: float, /, *memory: Memory, **more: Any) -> Watch:
    """A watch that saw these bytes by time, of processes 1, 2, … more: further fields of the plan."""
    plan = make_plan({"url": "http://127.0.0.1:1", "duration": seconds, **more})
    found = Watch(plan, 1)
    found.scrapes = 200
    for at in np.linspace(0, seconds, 200):
        alive = {(n, 0.0): value(at) / 1e6 for n, value in enumerate(memory, start=1) if value(at)}
        found.samples.append(Sample(float(at), alive, dict.fromkeys(alive, 50), 1.0))
    found.names = {(n, 0.0): f"process {n}" for n, _ in enumerate(memory, start=1)}
    return found


def report(**errors: int) -> dict[str, Any]:
    return {
        "requests": {"errors": errors},
        "events": [],
        "objective": None,
        "interrupted": False,
        "series": {"window_seconds": 1.0, "windows": []},
    }


def grows(bytes_per_second: float, of: float = 4e8) -> Memory:
    return lambda at: of + bytes_per_second * at


NOISE = np.random.default_rng(4)
LEAK = "memory_mb grew by 360.0 MB an hour"


def killed(at: float) -> float:
    return (1e8 + 1e6 * at) * (at < 900)


def fills_a_cache(at: float) -> float:
    return 5e8 + 1e6 * min(at, 550)


def replica(_at: float) -> float:
    """It goes up and down by more than a small process leaks; Ray's own processes grow by 3 MB an hour."""
    return 5e8 + 3e7 * NOISE.normal()


@pytest.mark.parametrize(
    ("seconds", "memory", "problems"),
    [
        (1200, [flat, killed], []),
        (1200, [flat, killed, grows(1e5)], [LEAK, "memory_mb of process 3 (3) grew by 360.0 MB an hour"]),
        (1200, [fills_a_cache], []),
        (120, [grows(1e5)], []),  # too short for a slope
        (2400, [replica, grows(3e6 / 3600, of=1e8)], []),
        (2400, [replica, grows(30e6 / 3600, of=1e8)], ["memory_mb of process 2 (2) grew by 30.0 MB"]),
        (1200, [killed], ["memory_mb has no slope", "open_files has no slope"]),
    ],
)
def test_a_process_that_grows_is_a_problem_and_one_that_was_killed_is_not(seconds, memory, problems) -> None:
    found = watch(seconds, *memory).conclusion(report())["problems"]
    assert len(found) == len(problems)
    assert all(told.startswith(problem) for told, problem in zip(found, problems, strict=True))


def test_only_a_killed_process_excuses_a_connection_that_closes() -> None:
    command = "python -m benchmarks.soak.faults KILL x; : $SERVER_PID"
    kill = {"events": [{"at": 1, "name": "kill", "run": command}]}
    errors = {"closed": 3, "http_503": 9, "http_429": 9}
    quiet, faulty = watch(60, flat), watch(60, flat, **kill)
    assert faulty.conclusion(report(**errors))["problems"] == []
    assert quiet.conclusion(report(**errors))["problems"] == ["3 requests were closed without an answer"]
    assert len(faulty.conclusion(report(timeout=1, http_500=2))["problems"]) == 2


def test_a_counter_that_falls_or_disappears_is_told() -> None:
    found = watch(60, flat)
    first, second = ("headroom_a_total", ()), ("headroom_b_total", (("x", "y"),))
    found.compare({first: 3.0, second: 5.0}, {first: 2.0}, 7.0)
    assert found.conclusion(report())["problems"] == [
        "headroom_a_total fell from 3.0 to 2.0 at 7 s",
        'headroom_b_total{x="y"} fell from 5.0 to None at 7 s',
    ]

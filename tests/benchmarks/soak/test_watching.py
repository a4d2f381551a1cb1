"""What a soak sees of the server's processes: a leak is told from noise, a falling counter noticed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soak import faults
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


@pytest.mark.parametrize("length", ["phases", "trace"])
def test_a_leak_is_judged_whatever_gives_the_run_its_length(length: str, tmp_path: Path) -> None:
    trace = tmp_path / "times"
    trace.write_text("0\n1200\n")
    given = {"phases": [{"rate": 1, "for": "20m"}]} if length == "phases" else {"trace": trace, "warmup": 0}
    seen = watch(1200, grows(1e5), duration=30, **given)
    assert seen.conclusion(report())["problems"][0].startswith(LEAK)
    short = watch(60, grows(1e5), duration=3600, phases=[{"rate": 1, "for": 60}])
    assert short.conclusion(report())["problems"] == []


@pytest.mark.parametrize(("mb_a_second", "problems"), [(0.01, 0), (1.0, 1)])
def test_a_disk_that_fills_is_a_problem_and_logs_are_none(mb_a_second: float, problems: int) -> None:
    found = watch(1200, flat)
    found.samples = [replace(sample, disk_mb=sample.at * mb_a_second) for sample in found.samples]
    told = found.conclusion(report())["problems"]
    assert len(told) == problems
    assert all(problem.startswith("disk_mb grew by 3,600.0 MB an hour") for problem in told)


def test_only_a_killed_process_excuses_a_connection_that_closes() -> None:
    command = "python -m benchmarks.soak.faults KILL x; : $SERVER_PID"
    kill = {"events": [{"at": 1, "name": "kill", "run": command}]}
    errors = {"closed": 3, "http_503": 9, "http_429": 9}
    quiet, faulty = watch(60, flat), watch(60, flat, **kill)
    assert faulty.conclusion(report(**errors))["problems"] == []
    assert quiet.conclusion(report(**errors))["problems"] == ["3 requests were closed without an answer"]
    assert len(faulty.conclusion(report(timeout=1, http_500=2))["problems"]) == 2


@pytest.mark.parametrize(
    ("at", "excused"), [(20, False), (27, True), (31, True), (62, True), (63, False), (90, False)]
)
def test_titles_stay_unscored_only_near_a_fault(at: int, excused: bool) -> None:
    """The fault lasts from 32 s to 33 s."""
    kill = {"at": 1, "name": "kill", "run": "python -m benchmarks.soak.faults KILL x"}
    edit = {"at": 1, "name": "edit", "run": "python -m benchmarks.soak.faults EDIT x"}
    seen = watch(100, flat, events=[kill, edit])
    windows = [{"at": float(second), "unreranked": 2 * (second == at)} for second in range(100)]
    made = report() | {"series": {"window_seconds": 1.0, "windows": windows}}
    made["events"] = [
        {"at": 32.0, "seconds": 1.0, "name": "kill", "status": 0},
        {"at": 88.0, "seconds": 9.0, "name": "edit", "status": 0},
    ]
    told = [f"2 answers were not reranked without a fault, the first at {at} s"]
    assert seen.conclusion(made)["problems"] == ([] if excused else told)


def test_a_counter_that_falls_or_disappears_is_told() -> None:
    found = watch(60, flat)
    first, second = ("headroom_a_total", ()), ("headroom_b_total", (("x", "y"),))
    found.compare({first: 3.0, second: 5.0}, {first: 2.0}, 7.0)
    assert found.conclusion(report())["problems"] == [
        "headroom_a_total fell from 3.0 to 2.0 at 7 s",
        'headroom_b_total{x="y"} fell from 5.0 to None at 7 s',
    ]


REFUSED = "95.00% of the requests failed, over 5.00%"


@pytest.mark.parametrize(
    ("changes", "problem", "if_interrupted"),
    [
        (
            {"events": [{"at": 5, "name": "bad", "status": 1, "said": {"wrong": ["a zip bomb: 200"]}}]},
            "bad at 5 s: a zip bomb: 200",
            1,
        ),
        # A soak whose faults never hit, and whose edits never came into force, has tested nothing.
        (
            {"events": [{"at": 5, "name": "edit", "status": 1}, {"at": 9, "name": "kill", "status": 0}]},
            "edit at 5 s had no effect: its command ended with status 1",
            0,
        ),
        # A 503 is a clear answer, but a soak whose traffic gets little else has tested little.
        (
            {"objective": {"met": False, "missed_because": [REFUSED]}},
            f"the objective was missed: {REFUSED}",
            0,
        ),
        ({"scrapes": 99}, "/metrics was read 99 times in 200 samples: too few to watch counters", 0),
    ],
)
def test_what_makes_a_soak_worthless_is_told(
    changes: dict[str, Any], problem: str, if_interrupted: int
) -> None:
    found, made = watch(60, flat), report() | changes
    found.scrapes = made.pop("scrapes", 200)
    assert found.conclusion(made)["problems"] == [problem]
    assert len(found.conclusion(made | {"interrupted": True})["problems"]) == if_interrupted


def test_a_signal_waits_for_a_process_and_says_if_none_got_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PROCESS_S", 0.1)
    monkeypatch.setenv("SERVER_PID", str(os.getpid()))
    assert faults.main(["KILL", "no such program"]) == 1
    word = f"sleeper-{os.getpid()}"
    monkeypatch.setattr(faults, "PROCESS_S", 30.0)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen([sys.executable, "-c", "input()", word], stdin=subprocess.PIPE))

    timer = threading.Timer(0.2, start)
    timer.start()
    assert faults.main(["KILL", word, "--youngest"]) == 0
    timer.join()
    started[0].communicate()
    assert started[0].returncode == -signal.SIGKILL


def test_a_watch_sees_the_memory_the_files_and_the_disk_of_a_server(tmp_path: Any) -> None:
    script = "import sys; f = open(sys.argv[1], 'w'); f.write('x' * 5000); f.flush(); print(); input()"
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        plan = make_plan({"url": "http://127.0.0.1:1", "duration": 60})
        found = Watch(plan, process.pid)
        found.sample(0.0)
        sample = found.sample(1.0)  # the files of the first look count from the second on
        process.communicate(b"\n")
    assert sample.disk_mb == 0.005
    assert next(iter(sample.memory_mb.values())) > 1
    assert next(iter(sample.open_files.values())) >= 4
    assert json.dumps(found.conclusion(report()))

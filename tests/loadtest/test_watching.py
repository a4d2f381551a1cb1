"""What a run sees of the server's processes: a leak is told from noise, a falling counter noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.plan import make_plan
from loadtest.soak import faults
from loadtest.soak.watching import Sample, Watch, conclusion, trend

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


def test_a_leak_is_seen_in_the_noise() -> None:
    found = trend(HOUR, 500 + 6.0 * HOUR / 3600 + noise(1, 0.8))
    assert found is not None
    assert found["low"] > 0
    assert trend(HOUR[:10], HOUR[:10]) is None


def flat(_at: float) -> float:
    return 5e8


def watch(duration: float, rss: dict[tuple[int, float], Any], /, **more: Any) -> Watch:
    """A watch that saw these bytes, by process and time. more: further fields of the plan."""
    plan = make_plan({"url": "http://127.0.0.1:1", "duration": duration, "watch": True, **more})
    found = Watch(plan, 1, scrapes=200)
    for at in np.linspace(0, duration, 200):
        alive = {process: round(value(at)) for process, value in rss.items() if value(at)}
        found.samples.append(Sample(float(at), alive, dict.fromkeys(alive, 50), 1_000_000))
    found._names = {process: f"process {process[0]}" for process in rss}
    return found


def report(**errors: int) -> dict[str, Any]:
    return {"requests": {"errors": errors}, "events": [], "objective": None, "interrupted": False}


def test_a_process_that_grows_is_a_problem_and_one_that_was_killed_is_not() -> None:
    steady = {(1, 0.0): flat, (2, 0.0): lambda at: (1e8 + 1e6 * at) * (at < 900)}
    assert conclusion(watch(1200, steady), report())["problems"] == []
    leaks = steady | {(3, 0.0): lambda at: 4e8 + 1e5 * at}
    whole, process = conclusion(watch(1200, leaks), report())["problems"]
    assert whole.startswith("memory_mb grew by 360.0 MB an hour")
    assert process.startswith("memory_mb of process 3 (3) grew by 360.0 MB an hour")
    early = {(1, 0.0): lambda at: 5e8 + 1e6 * min(at, 550)}  # what fills in the first half is a cache
    assert conclusion(watch(1200, early), report())["problems"] == []
    assert conclusion(watch(120, leaks), report())["problems"] == [], "too short for a slope"


@pytest.mark.parametrize("length", ["phases", "trace"])
def test_a_leak_is_judged_whatever_gives_the_run_its_length(length: str, tmp_path: Path) -> None:
    trace = tmp_path / "times"
    trace.write_text("0\n1200\n")
    given = {"phases": [{"for": "20m", "rate": 1}]} if length == "phases" else {"trace": trace, "warmup": 0}
    seen = watch(1200, {(1, 0.0): lambda at: 4e8 + 1e5 * at}, duration=30, **given)
    assert conclusion(seen, report())["problems"][0].startswith("memory_mb grew by 360.0 MB an hour")
    short = watch(60, {(1, 0.0): lambda at: 4e8 + 1e5 * at}, duration=3600, phases=[{"for": 60, "rate": 1}])
    assert conclusion(short, report())["problems"] == []


@pytest.mark.parametrize(("mb_an_hour", "problems"), [(3.0, 0), (30.0, 1)])
def test_the_noise_of_one_process_does_not_hide_the_leak_of_another(mb_an_hour: float, problems: int) -> None:
    """A replica's memory goes up and down by more than a small process leaks; Ray's own grow by 3."""
    draws = np.random.default_rng(4)
    replica = {(1, 0.0): lambda _at: 5e8 + 3e7 * draws.normal()}
    seen = watch(2400, replica | {(2, 0.0): lambda at: 1e8 + mb_an_hour * 1e6 * at / 3600})
    found = conclusion(seen, report())["problems"]
    assert len(found) == problems
    assert all(told.startswith("memory_mb of process 2 (2) grew by 30.0 MB an hour") for told in found)


def test_a_disk_that_fills_is_a_problem_and_logs_are_none() -> None:
    for mb_a_second, problems in ((0.01, 0), (1.0, 1)):
        found = watch(1200, {(1, 0.0): flat})
        found.samples = [replace(sample, disk=int(sample.at * mb_a_second * 1e6)) for sample in found.samples]
        told = conclusion(found, report())["problems"]
        assert len(told) == problems
        assert all(problem.startswith("disk_mb grew by 3,600.0 MB an hour") for problem in told)


def test_only_a_killed_process_excuses_a_connection_that_closes() -> None:
    command = "python -m loadtest.soak.faults KILL x; : $SERVER_PID"
    kill = {"events": [{"at": 1, "name": "kill", "run": command}]}
    errors = {"closed": 3, "http_503": 9, "http_429": 9}
    assert conclusion(watch(60, {(1, 0.0): flat}, **kill), report(**errors))["problems"] == []
    (problem,) = conclusion(watch(60, {(1, 0.0): flat}), report(**errors))["problems"]
    assert problem == "3 requests were closed without an answer"
    assert (
        len(conclusion(watch(60, {(1, 0.0): flat}, **kill), report(timeout=1, http_500=2))["problems"]) == 2
    )


def test_a_counter_that_falls_or_disappears_is_told() -> None:
    found = watch(60, {(1, 0.0): flat})
    first, second = ("headroom_a_total", ()), ("headroom_b_total", (("x", "y"),))
    found._compare({first: 3.0, second: 5.0}, {first: 2.0}, 7.0)
    assert conclusion(found, report())["problems"] == [
        "headroom_a_total fell from 3.0 to 2.0 at 7 s",
        'headroom_b_total{x="y"} fell from 5.0 to None at 7 s',
    ]


def test_an_attack_that_gets_through_is_told() -> None:
    said = {"answers": {"200": 1}, "wrong": ["a zip bomb: 200"]}
    events = [{"at": 5.0, "name": "malformed", "status": 1, "said": said}]
    problems = conclusion(watch(60, {(1, 0.0): flat}), report() | {"events": events})["problems"]
    assert problems == ["malformed at 5 s: a zip bomb: 200"]


def test_a_fault_that_had_no_effect_is_told() -> None:
    """A soak whose faults never hit, and whose edits never came into force, has tested nothing."""
    events = [{"at": 5.0, "name": "edit", "status": 1}, {"at": 9.0, "name": "kill", "status": 0}]
    found = watch(60, {(1, 0.0): flat})
    problems = conclusion(found, report() | {"events": events})["problems"]
    assert problems == ["edit at 5 s had no effect: its command ended with status 1"]
    stopped = report() | {"events": [{"at": 5.0, "name": "edit", "status": -2}], "interrupted": True}
    assert conclusion(found, stopped)["problems"] == []


def test_a_server_that_refuses_nearly_everything_is_told() -> None:
    """A 503 is a clear answer, but a soak whose traffic gets little else has tested little."""
    missed = {"met": False, "missed_because": ["95.00% of the requests failed, over 5.00%"]}
    refused = report(http_503=950) | {"objective": missed}
    found = watch(60, {(1, 0.0): flat})
    problems = conclusion(found, refused)["problems"]
    assert problems == ["the objective was missed: 95.00% of the requests failed, over 5.00%"]
    assert conclusion(found, refused | {"interrupted": True})["problems"] == []


@pytest.mark.parametrize("scrapes", [0, 1, 99])
def test_counters_that_were_hardly_ever_read_are_told(scrapes: int) -> None:
    found = watch(60, {(1, 0.0): flat})
    found.scrapes = scrapes
    (problem,) = conclusion(found, report())["problems"]
    assert problem == f"/metrics was read {scrapes} times in 200 samples: too few to watch counters"
    assert conclusion(found, report() | {"interrupted": True})["problems"] == []


def test_a_watch_without_a_slope_is_told() -> None:
    ended = watch(1200, {(1, 0.0): lambda at: 5e8 * (at < 900)})
    problems = conclusion(ended, report())["problems"]
    assert [problem.split(":")[0] for problem in problems] == [
        "memory_mb has no slope",
        "open_files has no slope",
    ]


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


def test_a_process_that_is_stopped_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_PID", str(os.getpid()))
    word = f"frozen-{os.getpid()}"
    command = [sys.executable, "-c", "input()", word]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            assert faults.main(["STOP", word, "0.3s"]) == 0
            _, status = os.waitpid(process.pid, os.WCONTINUED | os.WNOHANG)
            assert os.WIFCONTINUED(status)  # only a process that had stopped can
        finally:
            process.kill()


def test_a_watch_sees_the_memory_the_files_and_the_disk_of_a_server(tmp_path: Any) -> None:
    script = "import sys; f = open(sys.argv[1], 'w'); f.write('x' * 5000); f.flush(); print(); input()"
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        plan = make_plan({"url": "http://127.0.0.1:1", "duration": 60, "watch": True})
        found = Watch(plan, process.pid)
        found._sample(0.0)
        sample = found._sample(1.0)  # the files of the first look count from the second on
        process.communicate(b"\n")
    assert sample.disk == 5000
    assert next(iter(sample.rss.values())) > 1_000_000
    assert next(iter(sample.files.values())) >= 4
    assert json.dumps(conclusion(found, report()))

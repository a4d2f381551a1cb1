"""Watches a server during a run: memory, open files and disk of its processes, and whether its counters fall.

A run of minutes shows a leak as a slope. Processes that end meanwhile, such as replicas that a fault kills,
are left out of the slopes of memory and open files: only those that live through the run count. The first
half is left out too, because caches fill in it, those of a replica for a quarter of an hour.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.special import stdtrit
from scipy.stats import linregress

from loadtest import arrivals, server_side
from loadtest.alarm import clock
from loadtest.plan import Plan
from loadtest.report import Report, missed_objective

SAMPLES = 400
BLOCKS = 10
"""The means of this many stretches of a series count as independent."""

MIN_EVERY_S = 1.0
SETTLING = 0.5
"""Share of the run that is left out of the slopes."""

JUDGED_S = 600.0
"""Shortest run in which growth counts as a leak; in a shorter one, caches are still filling."""

MAX_GROWTH = {"memory_mb": 0.0, "open_files": 0.0, "disk_mb": 100.0}
"""How much all processes together may grow in an hour. Logs are bounded, but fill for longer than a run."""

MAX_PROCESS_GROWTH = 10.0
"""MB an hour by which the memory of one process may grow. Ray's own processes grow by up to 3."""

MAX_FALLS = 20
UNCLEAR = {
    "timeout": "got no answer in time",
    "half_answer": "got half an answer",
    "garbage": "got an answer that is not HTTP",
    "bad_answer": "got a 200 without one result for each title",
    "closed": "were closed without an answer",
    "reset": "were reset",
    "http_500": "got 500",
    "http_502": "got 502",
}
"""Errors that a server must not make, even if its processes are killed."""

_SHARED = {Path(name) for name in ("/tmp", "/dev/shm", "/var/tmp", "/")}
"""Directories in which a server's file does not make all others its own."""

Process = tuple[int, float]
"""Process id and start time: an id alone may come again."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one time. rss, files: bytes and open files by process. disk: bytes."""

    at: float
    rss: dict[Process, int]
    files: dict[Process, int]
    disk: int


@dataclass(slots=True)
class Watch:
    """Samples a started server until `end`. server: its process id. seconds: length of the measured part."""

    plan: Plan
    server: int
    seconds: float = field(init=False)
    samples: list[Sample] = field(default_factory=list)
    falls: list[dict[str, Any]] = field(default_factory=list)
    scrapes: int = 0
    _names: dict[Process, str] = field(default_factory=dict)
    _written: set[Path] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.seconds = arrivals.duration(self.plan)

    def begin(self, origin: float) -> None:
        """Start sampling; times count from `origin` on `clock`."""
        every = max(MIN_EVERY_S, self.seconds / SAMPLES)
        self._thread = threading.Thread(target=self._follow, args=(origin, every), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop sampling."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def as_json(self) -> dict[str, Any]:
        """Return what was seen, and the trends."""
        settled = [sample for sample in self.samples if sample.at >= SETTLING * self.seconds]
        lasting = set.intersection(*(set(sample.rss) for sample in settled)) if settled else set()
        times = [sample.at for sample in settled]
        memory = {p: [sample.rss[p] / 1e6 for sample in settled] for p in lasting}
        series = {
            "memory_mb": [sum(at_once) for at_once in zip(*memory.values(), strict=True)],
            "open_files": [sum(sample.files[p] for p in lasting) for sample in settled if lasting],
            "disk_mb": [sample.disk / 1e6 for sample in settled],
        }
        return {
            "samples": len(self.samples),
            "scrapes": self.scrapes,
            "counters_fell": self.falls,
            "processes_seen": len(self._names),
            **{name: trend(times, values) for name, values in series.items()},
            "memory_mb_by_process": {
                f"{self._names[p]} ({p[0]})": trend(times, values) for p, values in sorted(memory.items())
            },
            "disk_max_mb": max((sample.disk for sample in self.samples), default=0) / 1e6,
            "series": {"at": times, **series},
        }

    def _follow(self, origin: float, every: float) -> None:
        counters: server_side.Samples = {}
        at = 0.0
        while not self._over.wait(max(0.0, origin + at - clock())):
            self.samples.append(self._sample(clock() - origin))
            found = server_side.metrics(self.plan)
            if found is not None:
                self.scrapes += 1
                self._compare(counters, found, at)
                counters |= found
            while origin + at <= clock():
                at += every

    def _compare(self, before: server_side.Samples, after: server_side.Samples, at: float) -> None:
        for sample, value in after.items():
            if value < before.get(sample, 0.0) and len(self.falls) < MAX_FALLS:
                name = server_side.written(sample[0], dict(sample[1]))
                self.falls.append({"at": at, "counter": name, "from": before[sample], "to": value})
        missing = [sample for sample in before if sample not in after]
        for name, labels in missing[: MAX_FALLS - len(self.falls)]:
            written = server_side.written(name, dict(labels))
            self.falls.append({"at": at, "counter": written, "from": before[name, labels], "to": None})

    def _sample(self, at: float) -> Sample:
        rss: dict[Process, int] = {}
        files: dict[Process, int] = {}
        for process in _family(self.server):
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    title = process.cmdline()[:1] or [""]  # Ray's workers put what they are there
                    name = title[0].strip() if title[0].startswith("ray::") else process.name()
                    memory, count = process.memory_info().rss, process.num_fds()
                    self._note_files(process)
            except psutil.Error:  # it ended meanwhile
                continue
            if count:
                self._names.setdefault(key, name)
                rss[key], files[key] = memory, count
        return Sample(at, rss, files, _size(self._written))

    def _note_files(self, process: psutil.Process) -> None:
        """Remember the directories in which the process writes, and its files in shared ones."""
        for file in process.open_files():
            if getattr(file, "mode", "r") != "r":
                path = Path(file.path)
                self._written.add(path if path.parent in _SHARED else path.parent)


def trend(seconds: Sequence[float], values: Sequence[float]) -> dict[str, float] | None:
    """Return the growth per hour with its 95 % interval, and the first and last value of the line.

    It is the least-squares line through the means of BLOCKS stretches. Single values depend on those before
    them, so an interval from all of them would promise too much. None if there are fewer than two per block.
    """
    if len(values) < 2 * BLOCKS:
        return None
    hours = np.asarray(seconds) / 3600
    blocks = (np.array_split(each, BLOCKS) for each in (hours, np.asarray(values, dtype=float)))
    x, y = ([block.mean() for block in each] for each in blocks)
    line = linregress(x, y)
    half = float(stdtrit(BLOCKS - 2, 0.975) * line.stderr)
    slope = float(line.slope)
    first, last = (float(line.intercept + slope * hour) for hour in (hours[0], hours[-1]))
    return {"per_hour": slope, "low": slope - half, "high": slope + half, "first": first, "last": last}


def conclusion(watch: Watch, report: Report) -> dict[str, Any]:
    """Return what was seen, with `problems`: what no fault excuses; the list is empty if there is none."""
    watched = watch.as_json()
    errors, events = report["requests"]["errors"], report["events"]
    is_whole = not report["interrupted"]  # Ctrl-C ends events too
    found = []
    # A connection that ends with its replica tells the client to send the request again.
    ends = (
        {"closed", "reset"} if any("KILL" in e.run or "STOP" in e.run for e in watch.plan.events) else set()
    )
    kinds = sorted(UNCLEAR.keys() & errors.keys() - ends)
    found += [f"{errors[kind]:,} requests {UNCLEAR[kind]}" for kind in kinds]
    found += [f"the objective was missed: {reason}" for reason in missed_objective(report)]
    for event in events:
        here = f"{event['name']} at {event['at']:.0f} s"
        wrongs = event.get("said", {}).get("wrong", [])
        found += [f"{here}: {wrong}" for wrong in wrongs]
        if event["status"] is None:
            found.append(f"{here} did not end")
        elif event["status"] and not wrongs and is_whole:
            found.append(f"{here} had no effect: its command ended with status {event['status']}")
    scrapes, samples = watched["scrapes"], watched["samples"]
    if scrapes < max(2, samples / 2) and is_whole:
        found.append(f"/metrics was read {scrapes} times in {samples} samples: too few to watch counters")
    for fall in watched["counters_fell"]:
        here = f"at {fall['at']:.0f} s"
        found += [f"{fall['counter']} fell from {fall['from']} to {fall['to']} {here}"]
    if watch.seconds >= JUDGED_S:
        found += _growth(watched, is_whole=is_whole)
    return {**watched, "problems": found}


def _growth(watched: dict[str, Any], *, is_whole: bool) -> list[str]:
    """Return which slopes lie above their limit with their whole interval; and a whole run's lack of one."""
    slopes = {name: (watched[name], limit) for name, limit in MAX_GROWTH.items()}
    for process, slope in watched["memory_mb_by_process"].items():
        if slope is not None:
            slopes[f"memory_mb of {process}"] = slope, MAX_PROCESS_GROWTH
    found = []
    for name, (slope, limit) in slopes.items():
        if slope is None:
            lacking = "too few samples, or no process that lived through the second half"
            found += [f"{name} has no slope: {lacking}"] if is_whole else []
        elif slope["low"] > limit:
            unit = "" if name == "open_files" else " MB"
            found.append(
                f"{name} grew by {slope['per_hour']:,.1f}{unit} an hour"
                f" (95 %: {slope['low']:,.1f} to {slope['high']:,.1f}; limit {limit:g})"
            )
    return found


def _family(server: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(server)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _size(written: Iterable[Path]) -> int:
    """Return the bytes of these files, and of the files directly in these directories."""
    total = 0
    for path in list(written):
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                with os.scandir(path) as entries:
                    total += sum(
                        entry.stat(follow_symlinks=False).st_size
                        for entry in entries
                        if entry.is_file(follow_symlinks=False)
                    )
            else:
                total += path.stat().st_size
        except OSError:  # removed meanwhile
            continue
    return total

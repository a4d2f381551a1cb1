"""Watches a server during a run: memory, open files and disk of its processes, and whether its counters fall.

A run of minutes shows a leak as a slope. Processes that end meanwhile, such as replicas that a fault kills,
are left out of the slopes of memory and open files: only those that live through the run count. The first
half is left out too, because caches fill in it, those of a replica for a quarter of an hour.
"""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.special import stdtrit
from scipy.stats import linregress

from benchmarks.soak.faults import process_tree
from headroom.loadtest import arrivals
from headroom.loadtest.alarm import clock
from headroom.loadtest.plan import Plan
from headroom.loadtest.report import Report, missed_objective
from headroom.loadtest.server import Samples, in_text_format, metrics

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

BEFORE_S = 5.0
RECOVERY_S = 30.0
"""Titles of requests sent from BEFORE_S before a fault until RECOVERY_S after it may stay unscored: they are
under way, or a replica starts and the others have its work."""

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
"""Shared directories: only the server's own files in them are counted, not the whole directory."""

Process = tuple[int, float]
"""Process id and start time: an id alone may come again."""

Trend = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory, open files and disk of a server at one time. memory_mb, open_files: by process."""

    at: float
    memory_mb: dict[Process, float]
    open_files: dict[Process, int]
    disk_mb: float


class Watch:
    """Samples a started server until `end`. server: its process id."""

    def __init__(self, plan: Plan, server: int) -> None:
        self.plan = plan
        self.seconds = arrivals.duration(plan)
        self.samples: list[Sample] = []
        self.falls: list[str] = []
        self.scrapes = 0
        self.names: dict[Process, str] = {}
        self._server = server
        self._written: set[Path] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

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

    def trends(self) -> dict[str, Trend | None]:
        """Return the trends of all processes together, and that of each process's memory."""
        settled = [sample for sample in self.samples if sample.at >= SETTLING * self.seconds]
        lasting = [
            process
            for process in sorted(self.names)
            if settled and all(process in sample.memory_mb for sample in settled)
        ]
        series: dict[str, list[float]] = {
            "memory_mb": [sum(sample.memory_mb[p] for p in lasting) for sample in settled if lasting],
            "open_files": [sum(sample.open_files[p] for p in lasting) for sample in settled if lasting],
            "disk_mb": [sample.disk_mb for sample in settled],
        }
        for process in lasting:
            name = f"memory_mb of {self.names[process]} ({process[0]})"
            series[name] = [sample.memory_mb[process] for sample in settled]
        times = [sample.at for sample in settled]
        return {name: trend(times, values) for name, values in series.items()}

    def conclusion(self, report: Report) -> dict[str, Any]:
        """Return what was seen. `problems` is a list of what no fault excuses."""
        trends = self.trends()
        samples = len(self.samples)
        is_whole = not report["interrupted"]  # Ctrl-C ends events too
        problems = _unclear_errors(self.plan, report)
        problems += _unreranked_without_fault(self.plan, report)
        problems += [f"the objective was missed: {reason}" for reason in missed_objective(report)]
        problems += _event_problems(report["events"], is_whole)
        if self.scrapes < max(2, samples / 2) and is_whole:
            problems.append(
                f"/metrics was read {self.scrapes} times in {samples} samples: too few to watch counters"
            )
        problems += self.falls
        if self.seconds >= JUDGED_S:
            problems += _growth(trends, is_whole)
        return {
            "samples": samples,
            "scrapes": self.scrapes,
            "counters_fell": self.falls,
            "trends": trends,
            "problems": problems,
        }

    def _follow(self, origin: float, every: float) -> None:
        counters: Samples = {}
        at = 0.0
        while not self._over.wait(max(0.0, origin + at - clock())):
            self.samples.append(self.sample(clock() - origin))
            scraped = metrics(self.plan.url)
            if scraped is not None:
                self.scrapes += 1
                self.compare(counters, scraped, at)
                counters |= scraped
            while origin + at <= clock():
                at += every

    def compare(self, before: Samples, after: Samples, at: float) -> None:
        """Note the counters that fell or disappeared."""
        for (name, labels), value in before.items():
            now = after.get((name, labels))
            if (now is None or now < value) and len(self.falls) < MAX_FALLS:
                counter = in_text_format(name, dict(labels))
                self.falls.append(f"{counter} fell from {value} to {now} at {at:.0f} s")

    def sample(self, at: float) -> Sample:
        """Look at the server's processes, and at the files directly in the directories that they write to."""
        memory_mb: dict[Process, float] = {}
        open_files: dict[Process, int] = {}
        for process in process_tree(self._server):
            # A process may end meanwhile; a zombie has no files.
            with contextlib.suppress(psutil.Error), process.oneshot():
                files = process.num_fds()
                memory = process.memory_info().rss / 1e6
                title = process.cmdline()[:1] or [""]  # Ray's workers put what they are there
                name = title[0].strip() if title[0].startswith("ray::") else process.name()
                for file in process.open_files():
                    if getattr(file, "mode", "r") != "r":
                        path = Path(file.path)
                        self._written.add(path if path.parent in _SHARED else path.parent)
                if files:
                    key = (process.pid, process.create_time())
                    self.names.setdefault(key, name)
                    memory_mb[key] = memory
                    open_files[key] = files
        return Sample(at, memory_mb, open_files, sum(map(_bytes, self._written)) / 1e6)


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Return the growth per hour with its 95 % interval, and the first and last value of the line.

    It is the least-squares line through the means of BLOCKS stretches. Single values depend on those before
    them, so an interval from all of them would promise too much. None if there are fewer than two per block.
    """
    if len(values) < 2 * BLOCKS:
        return None
    hours = np.asarray(seconds) / 3600
    hour_means = [block.mean() for block in np.array_split(hours, BLOCKS)]
    value_means = [block.mean() for block in np.array_split(np.asarray(values, dtype=float), BLOCKS)]
    line = linregress(hour_means, value_means)
    half = float(stdtrit(BLOCKS - 2, 0.975) * line.stderr)
    slope = float(line.slope)
    first = float(line.intercept + slope * hours[0])
    last = float(line.intercept + slope * hours[-1])
    return {"per_hour": slope, "low": slope - half, "high": slope + half, "first": first, "last": last}


def _unclear_errors(plan: Plan, report: Report) -> list[str]:
    """Return the errors of requests that no fault of the plan excuses."""
    errors = report["requests"]["errors"]
    # A connection that ends with its replica tells the client to send the request again.
    has_faults = any(_is_fault(event.run) for event in plan.events)
    excused = {"closed", "reset"} if has_faults else set()
    return [
        f"{errors[kind]:,} requests {UNCLEAR[kind]}" for kind in UNCLEAR if kind in errors.keys() - excused
    ]


def _unreranked_without_fault(plan: Plan, report: Report) -> list[str]:
    """Return one line if titles stayed unscored although no fault is near."""
    faults = {event.name for event in plan.events if _is_fault(event.run)}
    spans = [
        (event["at"] - BEFORE_S, event["at"] + event["seconds"] + RECOVERY_S)
        for event in report["events"]
        if event["name"] in faults
    ]
    series = report["series"]
    width = series["window_seconds"]
    quiet = [
        window
        for window in series["windows"]
        if window["unreranked"]
        and not any(begin < window["at"] + width and window["at"] < end for begin, end in spans)
    ]
    if not quiet:
        return []
    count = sum(window["unreranked"] for window in quiet)
    return [f"{count:,} answers were not reranked without a fault, the first at {quiet[0]['at']:.0f} s"]


def _is_fault(command: str) -> bool:
    return "KILL" in command or "STOP" in command


def _event_problems(events: list[dict[str, Any]], is_whole: bool) -> list[str]:
    problems = []
    for event in events:
        here = f"{event['name']} at {event['at']:.0f} s"
        wrongs = event.get("said", {}).get("wrong", [])
        problems += [f"{here}: {wrong}" for wrong in wrongs]
        if event["status"] is None:
            problems.append(f"{here} did not end")
        elif event["status"] and not wrongs and is_whole:
            problems.append(f"{here} had no effect: its command ended with status {event['status']}")
    return problems


def _growth(trends: dict[str, Trend | None], is_whole: bool) -> list[str]:
    """Return the series that grow by more than their limits, and those that could not be judged."""
    problems = []
    for name, slope in trends.items():
        limit = MAX_GROWTH.get(name, MAX_PROCESS_GROWTH)
        if slope is not None and slope["low"] > limit:
            unit = "" if name == "open_files" else " MB"
            interval = f"95 %: {slope['low']:,.1f} to {slope['high']:,.1f}; limit {limit:g}"
            problems.append(f"{name} grew by {slope['per_hour']:,.1f}{unit} an hour ({interval})")
        elif slope is None and name in MAX_GROWTH and is_whole:
            problems.append(
                f"{name} has no slope: too few samples, or no process lived through the second half"
            )
    return problems


def _bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files directly in a directory; 0 if it was removed."""
    try:
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
        return sum(file.stat(follow_symlinks=False).st_size for file in files)
    except OSError:
        return 0

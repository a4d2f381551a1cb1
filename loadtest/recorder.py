"""Records what one process measures, in constant memory: histograms, counts and a time line.

There are three kinds of time, all in seconds. *Latency* goes from the intended send time to the answer's last
byte. *Service* goes from the write to the answer's last byte. *Send lag* goes from the intended time to the
moment when the client handles the request; it is the client's own delay, and part of the latency. Between
send lag and service lies the wait for a free connection.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadtest.histogram import Histogram
from loadtest.wire import Answer
from loadtest.workload import Request

MAX_WINDOWS = 256
"""Maximum of windows of the time line; if more are needed, neighbours are joined."""

MAX_GROUPS = 200
"""Maximum of different (traffic, endpoint, variant, mask, arm); further ones are counted as `other`."""

Key = tuple[str, str, str, str, str]
OTHER: Key = ("other",) * 5


@dataclass
class Window:
    """A window of the time line, by intended send time."""

    latency: Histogram = field(default_factory=Histogram)
    scheduled: int = 0
    ok: int = 0
    errors: int = 0
    sent: int = 0
    answered: int = 0
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, other: Window) -> None:
        """Add the counts of another process."""
        self.latency.add(other.latency)
        for name in ("scheduled", "ok", "errors", "sent", "answered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for stage, total in other.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + total


@dataclass
class Group:
    """The results of one kind of request."""

    latency: Histogram = field(default_factory=Histogram)
    ok: int = 0
    errors: int = 0
    titles: int = 0
    degraded: int = 0

    def add(self, other: Group) -> None:
        """Add the counts of another process."""
        self.latency.add(other.latency)
        for name in ("ok", "errors", "titles", "degraded"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Recorder:
    """Records every measured request and ignores the warm-up.

    Args:
        origin: seconds from the run's start to its measured part.
        window: initial length in seconds of the time line's windows.
    """

    def __init__(self, origin: float, window: float = 1.0) -> None:
        self.origin = origin
        self.window = window
        self.windows: list[Window] = []
        self.groups: dict[Key, Group] = {}
        self.service = Histogram()
        self.send_lag = Histogram()
        self.connection_wait = Histogram()
        self.error_latency = Histogram()
        self.stages: dict[str, Histogram] = defaultdict(Histogram)
        self.errors: dict[str, int] = defaultdict(int)
        self.scheduled = 0
        self.sent = 0
        self.ok = 0
        self.titles_scheduled = 0
        self.titles_failed = 0

    def dispatched(self, request: Request) -> None:
        """Record that the client handles a request."""
        if request.measured:
            self.scheduled += 1
            self.titles_scheduled += _titles(request)
            self.send_lag.record(request.dispatched - request.intended)
            self._window(request.intended).scheduled += 1

    def answered(self, request: Request, answer: Answer) -> None:
        """Record a whole HTTP answer."""
        if not request.measured:
            return
        self._note_sent(request)
        self._window(answer.at).answered += 1
        self.service.record(answer.at - request.sent)
        document, complaint = _read(request, answer)
        if complaint is not None:
            self._failure(request, complaint, answer.at, document)
            return
        latency = answer.at - request.intended
        self.ok += 1
        window = self._window(request.intended)
        window.ok += 1
        window.latency.record(latency)
        group = self._group(request, document)
        group.ok += 1
        group.titles += request.titles
        group.degraded += document.get("degraded") is True
        group.latency.record(latency)
        if answer.server_timing:
            for stage, seconds in server_timing(answer.server_timing):
                self.stages[stage].record(seconds)
                window.stages[stage] = window.stages.get(stage, 0.0) + seconds

    def failed(self, request: Request, kind: str, at: float) -> None:
        """Record that no whole HTTP answer came. `kind` says why."""
        if request.measured:
            if request.written:
                self._note_sent(request)
            self._failure(request, kind, at, {})

    def _note_sent(self, request: Request) -> None:
        self.sent += 1
        self.connection_wait.record(request.sent - request.dispatched)
        self._window(request.intended).sent += 1

    def _failure(self, request: Request, kind: str, at: float, document: dict[str, Any]) -> None:
        self.errors[kind] += 1
        self.titles_failed += _titles(request)
        latency = at - request.intended
        window, group = self._window(request.intended), self._group(request, document)
        window.errors += 1
        group.errors += 1
        self.error_latency.record(latency)
        if kind in ("timeout", "connect_timeout", "connection_wait_timeout"):
            # The answer would have taken at least this long. Without it, the percentiles would be too low.
            window.latency.record(latency)
            group.latency.record(latency)

    def _group(self, request: Request, document: dict[str, Any]) -> Group:
        variant, assignment = document.get("variant"), document.get("assignment")
        arm = assignment.get("arm") if isinstance(assignment, dict) else None
        key = (
            request.traffic,
            request.endpoint,
            variant if isinstance(variant, str) else request.variant,
            request.mask or "none",
            arm if isinstance(arm, str) else "",
        )
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                key = OTHER
            group = self.groups.setdefault(key, Group())
        return group

    def _window(self, at: float) -> Window:
        place = int((at - self.origin) / self.window)
        while place >= MAX_WINDOWS:
            self.coarsen()
            place = int((at - self.origin) / self.window)
        while place >= len(self.windows):
            self.windows.append(Window())
        return self.windows[place]

    def answering_seconds(self, seconds: float) -> float:
        """Return the time in which answers came, in a run that sent for `seconds`.

        A slow server still answers after the last send.
        """
        with_answers = [place for place, window in enumerate(self.windows) if window.answered]
        return max(seconds, with_answers[-1] * self.window if with_answers else 0.0)

    def coarsen(self) -> None:
        """Make the time line's windows twice as long."""
        for first, second in zip(self.windows[::2], self.windows[1::2], strict=False):
            first.add(second)
        self.windows = self.windows[::2]
        self.window *= 2

    def not_sent(self, count: int) -> None:
        """Record requests that the client did not handle before the run's time was over."""
        self.scheduled += count
        if count:
            self.errors["not_sent"] += count

    def latency(self) -> Histogram:
        """Return the latencies of all answers, and the waiting times of timeouts."""
        return Histogram.merged(group.latency for group in self.groups.values())

    def add(self, other: Recorder) -> None:
        """Add the measurements of another process."""
        while self.window < other.window:
            self.coarsen()
        while other.window < self.window:
            other.coarsen()
        for place, window in enumerate(other.windows):
            if place == len(self.windows):
                self.windows.append(Window())
            self.windows[place].add(window)
        for key, group in other.groups.items():
            known = key in self.groups or len(self.groups) < MAX_GROUPS
            self.groups.setdefault(key if known else OTHER, Group()).add(group)
        for name in ("service", "send_lag", "connection_wait", "error_latency"):
            getattr(self, name).add(getattr(other, name))
        for stage, histogram in other.stages.items():
            self.stages[stage].add(histogram)
        for kind, count in other.errors.items():
            self.errors[kind] += count
        self.scheduled += other.scheduled
        self.sent += other.sent
        self.ok += other.ok
        self.titles_scheduled += other.titles_scheduled
        self.titles_failed += other.titles_failed


def server_timing(header: bytes) -> list[tuple[str, float]]:
    """Return the stages and their seconds of a `Server-Timing` header, without unreadable entries."""
    stages = []
    for metric in header.decode("latin-1").split(","):
        name, *parameters = metric.split(";")
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "dur":
                try:
                    stages.append((name.strip()[:40], float(value) / 1000))
                except ValueError:
                    continue
    return stages[:16]


def _titles(request: Request) -> int:
    """Return the number of a request's titles; a request without titles counts as one."""
    return max(1, request.titles)


def _read(request: Request, answer: Answer) -> tuple[dict[str, Any], str | None]:
    """Return the answer's JSON object, and the name of its error or None."""
    document: Any = {}
    if answer.is_json:
        try:
            document = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return {}, "bad_answer" if answer.status < 400 else f"http_{answer.status}"
    elif request.expects is not None and answer.status < 300:
        return {}, "bad_answer"
    fields = document if isinstance(document, dict) else {}
    if not 200 <= answer.status < 300:
        return fields, f"http_{answer.status}"
    if request.expects is not None:
        rows = document if request.expects == "" else fields.get(request.expects)
        if not isinstance(rows, list) or len(rows) != request.titles:
            return fields, "bad_answer"
    return fields, None

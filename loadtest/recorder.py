"""Records what the client measures, in constant memory: histograms, counts and a time line.

There are three kinds of time, all in seconds. *Latency* goes from the intended send time to the answer's last
byte. *Service* goes from the write to the answer's last byte. *Send lag* goes from the intended time to the
moment when the client handles the request; it is the client's own delay, and part of the latency. Between
send lag and service lies the wait for a free connection.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import orjson

from headroom.loadtest.histogram import Histogram
from headroom.loadtest.wire import Answer
from headroom.loadtest.workload import Request

MAX_GROUPS = 200
"""Maximum of different (traffic, endpoint, variant, mask, arm); further ones are counted as `other`."""

Key = tuple[str, str, str, str, str]
OTHER: Key = ("other",) * 5


COUNTS = ("scheduled", "sent", "ok", "errors", "answered", "titles", "degraded", "unreranked")


@dataclass(slots=True)
class Tally:
    """Counts of some requests: those of one kind, or those of one window of the time line.

    A window counts by intended send time, but `answered` and `titles` by the time of the answer. titles: of
    good answers, in a window without those that are not reranked.
    unreranked: good answers whose titles could not be scored.
    """

    latency: Histogram = field(default_factory=Histogram)
    scheduled: int = 0
    sent: int = 0
    ok: int = 0
    errors: int = 0
    answered: int = 0
    titles: int = 0
    degraded: int = 0
    unreranked: int = 0

    def add(self, other: Tally) -> None:
        """Add other requests."""
        self.latency.add(other.latency)
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Recorder:
    """Records every measured request and ignores the warm-up.

    Args:
        origin: seconds from the run's start to its measured part.
        window: length in seconds of the time line's windows.
    """

    def __init__(self, origin: float, window: float = 1.0) -> None:
        self.origin = origin
        self.window = window
        self.windows: list[Tally] = []
        self.groups: dict[Key, Tally] = {}
        self.service = Histogram()
        self.send_lag = Histogram()
        self.connection_wait = Histogram()
        self.error_latency = Histogram()
        self.stages: dict[str, Histogram] = defaultdict(Histogram)
        self.errors: Counter[str] = Counter()
        self.scheduled = 0
        self.sent = 0
        self.ok = 0
        self.titles = 0

    def dispatched(self, request: Request) -> None:
        """Record that the client handles a request."""
        if request.measured:
            self.scheduled += 1
            self.titles += max(1, request.titles)
            self.send_lag.record(request.dispatched - request.intended)
            self._window(request.intended).scheduled += 1

    def answered(self, request: Request, answer: Answer) -> None:
        """Record a whole HTTP answer."""
        if not request.measured:
            return
        self._sent(request)
        at_answer = self._window(answer.at)
        at_answer.answered += 1
        self.service.record(answer.at - request.sent)
        document, complaint = _read(request, answer)
        if complaint is not None:
            self._failure(request, complaint, answer.at, document)
            return
        latency = answer.at - request.intended
        self.ok += 1
        is_unreranked = answer.reranked == "false"
        if not is_unreranked:
            at_answer.titles += max(1, request.titles)
        window = self._window(request.intended)
        window.ok += 1
        window.latency.record(latency)
        group = self._group(request, document)
        group.ok += 1
        group.titles += request.titles
        group.degraded += document.get("degraded") is True
        for tally in (window, group):
            tally.unreranked += is_unreranked
        group.latency.record(latency)
        if answer.server_timing:
            for stage, seconds in server_timing(answer.server_timing):
                self.stages[stage].record(seconds)

    def failed(self, request: Request, kind: str, at: float) -> None:
        """Record that no whole HTTP answer came. `kind` says why."""
        if request.measured:
            if request.written:
                self._sent(request)
            self._failure(request, kind, at, {})

    def _sent(self, request: Request) -> None:
        self.sent += 1
        self.connection_wait.record(request.sent - request.dispatched)
        self._window(request.intended).sent += 1

    def _failure(self, request: Request, kind: str, at: float, document: dict[str, Any]) -> None:
        self.errors[kind] += 1
        latency = at - request.intended
        window = self._window(request.intended)
        group = self._group(request, document)
        window.errors += 1
        group.errors += 1
        self.error_latency.record(latency)
        if kind in ("timeout", "connect_timeout", "connection_wait_timeout"):
            # The answer would have taken at least this long. Without it, the percentiles would be too low.
            window.latency.record(latency)
            group.latency.record(latency)

    def _group(self, request: Request, document: dict[str, Any]) -> Tally:
        variant = document.get("variant")
        assignment = document.get("assignment")
        arm = assignment.get("arm") if isinstance(assignment, dict) else None
        key = (
            request.kind.traffic.name,
            request.kind.traffic.endpoint,
            variant if isinstance(variant, str) else request.kind.variant,
            request.kind.mask or "none",
            arm if isinstance(arm, str) else "",
        )
        is_known = key in self.groups or len(self.groups) < MAX_GROUPS
        return self.groups.setdefault(key if is_known else OTHER, Tally())

    def _window(self, at: float) -> Tally:
        index = int((at - self.origin) / self.window)
        while index >= len(self.windows):
            self.windows.append(Tally())
        return self.windows[index]

    def answering_seconds(self, seconds: float) -> float:
        """Return the time in which answers came, in a run that sent for `seconds`.

        A slow server still answers after the last send.
        """
        with_answers = [index for index, window in enumerate(self.windows) if window.answered]
        return max(seconds, with_answers[-1] * self.window if with_answers else 0.0)

    def not_sent(self, count: int) -> None:
        """Record requests that the client did not handle before the run's time was over."""
        self.scheduled += count
        if count:
            self.errors["not_sent"] += count

    @property
    def unreranked(self) -> int:
        """The number of good answers whose titles could not be scored."""
        return sum(window.unreranked for window in self.windows)

    def latency(self) -> Histogram:
        """Return the latencies of all answers, and the waiting times of timeouts."""
        return Histogram.merged(group.latency for group in self.groups.values())


def server_timing(header: bytes) -> list[tuple[str, float]]:
    """Return the stages and their seconds of a `Server-Timing` header, without unreadable entries."""
    stages = re.findall(rb"([\w-]{1,40})[^,]*?;\s*dur=(\d+\.?\d*)", header)
    return [(name.decode(), float(milliseconds) / 1000) for name, milliseconds in stages[:16]]


def _read(request: Request, answer: Answer) -> tuple[dict[str, Any], str | None]:
    """Return the answer's JSON object, and the name of its error or None. Of GET, only the status counts."""
    error = None if 200 <= answer.status < 300 else f"http_{answer.status}"
    if not request.kind.field:
        return {}, error
    document: Any = None
    if answer.is_json:
        try:
            document = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return {}, error or "bad_answer"
    fields = document if isinstance(document, dict) else {}
    if error is None and not _is_whole(request, document):
        error = "bad_answer"
    return fields, error


def _is_whole(request: Request, document: Any) -> bool:
    """Whether a good answer has one result per title, or is an object if its endpoint has no such list."""
    expects = request.kind.expects
    if expects != "" and not isinstance(document, dict):
        return False
    if expects is None:
        return True
    rows = document if expects == "" else document.get(expects)
    return isinstance(rows, list) and len(rows) == request.titles

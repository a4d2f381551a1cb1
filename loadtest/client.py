"""The open-loop client, which sends every request at its intended time even if others are unanswered.

A request without a free connection waits in a queue, and its latency still counts from its intended time. The
client retries and drops nothing: every request ends in exactly one call of the recorder.
"""

import asyncio
import errno
import ssl
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlsplit

from headroom.loadtest.alarm import Alarm, clock
from headroom.loadtest.plan import Plan
from headroom.loadtest.recorder import Recorder
from headroom.loadtest.wire import Answer, Connection
from headroom.loadtest.workload import Request

Address = tuple[str, int]
"""An IP address and a port."""

AHEAD = 256
"""Number of requests that are built in advance."""

BURST = 32
"""Number of late requests that are sent before answers are read again."""

SWEEP_S = 0.01
"""Seconds between two searches for requests that timed out."""

GRACE_S = 2.0
"""Seconds to wait for answers after an interrupt."""


class Client:
    """Runs a plan. Create and use it inside a running loop.

    Args:
        requests: in the order of their intended times.
        address: at which the plan's URL answers.
        start, end: the run's start and last intended time on `clock`; one timeout later it ends in any case.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Iterator[Request],
        recorder: Recorder,
        *,
        address: Address,
        start: float,
        end: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = plan.timeout
        self._recorder = recorder
        self._start = start
        self._end = end + plan.timeout
        self._address = address
        url = urlsplit(plan.url)
        is_secure = url.scheme == "https"
        self._tls = ssl.create_default_context() if is_secure else None
        self._name = url.hostname if is_secure else None
        self._max_open = plan.connections
        self._requests = requests
        self._ahead = deque(islice(requests, AHEAD))
        self._outstanding: deque[Request] = deque()  # by intended time, which is the order of their timeouts
        self._waiting: deque[Request] = deque()
        self._idle: list[Connection] = []
        self._busy: dict[Request, Connection] = {}
        self._open: set[Connection] = set()
        self._connecting: dict[asyncio.Task[Connection], float] = {}  # when each began, the oldest first
        self._connected_at = start  # when the last connection was made
        self._alarm = Alarm(self._send_due)
        self._over = asyncio.Event()
        self._stopped_at: float | None = None
        self.ran_out = False
        """Whether the run's time was over before all its requests were sent."""

    async def run(self) -> None:
        """Send all requests; return when each has been answered, has failed or has timed out."""
        self._send_due()
        self._sweep()
        try:
            await self._over.wait()
        finally:
            self._alarm.close()
            for task in self._connecting:
                task.cancel()
            for connection in list(self._open):
                connection.drop()
            await asyncio.sleep(0)

    @property
    def in_flight(self) -> int:
        """Return the number of requests that wait for an answer."""
        return len(self._busy)

    def stop(self) -> None:
        """Send no further request, and wait a short time for the answers of those in flight."""
        if self._stopped_at is None:
            self._stopped_at = clock()
            self._ahead.clear()
            self._requests = iter(())

    def _send_due(self) -> None:
        ahead = self._ahead
        start = self._start
        sent = 0
        while ahead and sent < BURST:
            now = clock()
            request = ahead[0]
            if start + request.intended > now:
                break
            ahead.popleft()
            request.dispatched = now - start
            self._recorder.dispatched(request)
            self._outstanding.append(request)
            self._waiting.append(request)
            sent += 1
        if sent:
            self._serve_waiting()
            ahead.extend(islice(self._requests, sent))
        if ahead:
            # If the client is late, the alarm goes off at once, but after other events that are ready.
            self._alarm.set(start + ahead[0].intended)

    def _serve_waiting(self) -> None:
        waiting = self._waiting
        idle = self._idle
        while waiting and idle:
            connection = idle.pop()
            if connection.usable:
                request = waiting.popleft()
                if request.done:  # timed out in the queue
                    idle.append(connection)
                    continue
                self._busy[request] = connection
                request.written = True
                request.sent = clock() - self._start
                connection.send(request)
        room = self._max_open - len(self._open) - len(self._connecting)
        for _ in range(min(room, len(waiting) - len(self._connecting))):
            task = self._loop.create_task(self._connect())
            self._connecting[task] = clock()
            task.add_done_callback(self._connected)

    async def _connect(self) -> Connection:
        _, connection = await self._loop.create_connection(
            lambda: Connection(self), *self._address, ssl=self._tls, server_hostname=self._name
        )
        return connection

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        del self._connecting[task]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._refuse(_connect_failure(error))
        elif (connection := task.result()).usable:
            self._open.add(connection)
            self._connected_at = clock()
            self._idle.append(connection)
            self._serve_waiting()

    def _refuse(self, kind: str) -> None:
        """Fail the first waiting request, because no connection could be made for it."""
        while self._waiting:
            request = self._waiting.popleft()
            if not request.done:
                self._finish(request)
                self._recorder.failed(request, kind, clock() - self._start)
                break
        self._serve_waiting()

    def answered(self, connection: Connection, request: Request, answer: Answer) -> None:
        """From the connection."""
        self._busy.pop(request, None)
        self._finish(request)
        if connection.usable:
            self._idle.append(connection)
            if self._waiting:
                self._serve_waiting()
        answer.at -= self._start
        self._recorder.answered(request, answer)

    def failed(self, request: Request, kind: str, at: float) -> None:
        """From the connection."""
        self._busy.pop(request, None)
        self._finish(request)
        self._recorder.failed(request, kind, at - self._start)

    def ended(self, connection: Connection) -> None:
        """From the connection."""
        self._open.discard(connection)
        if self._waiting:
            self._serve_waiting()

    def _finish(self, request: Request) -> None:
        request.done = True
        request.payload = b""

    def _sweep(self) -> None:
        """Fail the requests that timed out, and end the run after the last request."""
        now = clock()
        outstanding = self._outstanding
        while outstanding and (
            outstanding[0].done or self._start + outstanding[0].intended + self._timeout <= now
        ):
            request = outstanding.popleft()
            if not request.done:
                self._give_up(request, self._why_late(request), now)
        while self._waiting and self._waiting[0].done:
            self._waiting.popleft()
        if now > self._end and self._ahead:
            self.ran_out = True
            self.stop()
        if self._stopped_at is not None and now > self._stopped_at + min(GRACE_S, self._timeout):
            for request in outstanding:
                if not request.done:
                    self._give_up(request, "unfinished", now)
            outstanding.clear()
        if not self._ahead and not outstanding:
            self._over.set()
        else:
            self._loop.call_later(SWEEP_S, self._sweep)

    def _why_late(self, request: Request) -> str:
        if request.written:
            return "timeout"
        since = self._start + request.dispatched
        if not self._open and self._connected_at <= since:
            return "connect_timeout"
        # A connection that was begun before, and is still not made, is one that the server does not accept.
        being_made = len(self._connecting) - bisect_right([*self._connecting.values()], since)
        is_full = len(self._open) + being_made >= self._max_open
        return "connection_wait_timeout" if is_full else "connect_timeout"

    def _give_up(self, request: Request, kind: str, now: float) -> None:
        self._finish(request)
        connection = self._busy.pop(request, None)
        if connection is not None:
            connection.drop()
        self._recorder.failed(request, kind, now - self._start)


def _connect_failure(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError):
        return "reset"
    if isinstance(error, ssl.SSLError):
        return "connect_tls"
    names = {
        errno.EMFILE: "out_of_files",
        errno.ENFILE: "out_of_files",
        errno.EADDRNOTAVAIL: "out_of_ports",
    }
    return names.get(getattr(error, "errno", 0), "connect_failed")

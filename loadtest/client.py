"""The open-loop client: sends every request at its intended time, whether or not earlier ones came back.

A request that finds no free connection waits in line, and its latency counts from its intended time all the
same. Nothing is retried and nothing is dropped: every request ends in exactly one call of the recorder.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Iterator
from itertools import islice
from urllib.parse import urlsplit

from loadtest.alarm import Alarm, clock
from loadtest.plan import Plan
from loadtest.recorder import Recorder
from loadtest.wire import Answer, Connection
from loadtest.workload import Request

AHEAD = 256
"""Requests that are built before they are due."""

BURST = 32
"""Requests sent in a row when behind, before answers are read again."""

SWEEP_S = 0.01
"""How often requests that ran out of time are looked for."""

GRACE_S = 2.0
"""After an interrupt, answers are awaited this long."""


class Client:
    """Runs one process's share of a plan. Made and used inside a running loop.

    Args:
        requests: in the order of their intended times.
        address: where the plan's URL was found to answer.
        start: the run's zero on `clock`.
        seconds: from there to the last intended time; a timeout later the run is over, come what may.
        connections: the most to have open at once.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Iterator[Request],
        recorder: Recorder,
        *,
        address: str,
        start: float,
        seconds: float,
        connections: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = plan.timeout
        self._recorder = recorder
        self._start = start
        url = urlsplit(plan.url)
        self._address = address
        self._name = url.hostname if url.scheme == "https" else None
        self._end = start + seconds + plan.timeout
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._most = connections
        self._requests = requests
        self._ahead = deque(islice(requests, AHEAD))
        self._outstanding: deque[Request] = deque()  # by intended time, which is the order of their timeouts
        self._waiting: deque[Request] = deque()
        self._idle: list[Connection] = []
        self._busy: dict[Request, Connection] = {}
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._alarm = Alarm(self._send_due)
        self._over = asyncio.Event()
        self._stopped_at: float | None = None
        self.ran_out = False
        """Whether requests were left that it had no time to send."""

    async def run(self) -> None:
        """Returns when every request that was due has been answered, has failed or ran out of time."""
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
        """Requests that wait for an answer."""
        return len(self._busy)

    def stop(self) -> None:
        """Sends nothing more; what is under way gets a short grace."""
        if self._stopped_at is None:
            self._stopped_at = clock()
            self._ahead.clear()
            self._requests = iter(())

    def _send_due(self) -> None:
        ahead, start = self._ahead, self._start
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
            # When behind, the alarm goes off at once, but after whatever else is ready.
            self._alarm.set(start + ahead[0].intended)

    def _serve_waiting(self) -> None:
        waiting, idle = self._waiting, self._idle
        while waiting and idle:
            connection = idle.pop()
            if connection.usable:
                request = waiting.popleft()
                if request.done:  # ran out of time in line
                    idle.append(connection)
                    continue
                self._busy[request] = connection
                request.written = True
                request.sent = clock() - self._start
                connection.send(request)
        room = self._most - len(self._open) - len(self._connecting)
        for _ in range(min(room, len(waiting) - len(self._connecting))):
            task = self._loop.create_task(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self) -> None:
        try:
            _, connection = await self._loop.create_connection(
                self._new_connection, self._address, self._port, ssl=self._tls, server_hostname=self._name
            )
        except (OSError, ssl.SSLError) as error:
            self._connecting.discard(_current_task())
            self._refuse(_connect_failure(error))
            return
        self._connecting.discard(_current_task())
        if connection.usable:
            self._idle.append(connection)
            self._serve_waiting()

    def _new_connection(self) -> Connection:
        connection = Connection(self)
        self._open.add(connection)
        return connection

    def _refuse(self, kind: str) -> None:
        """A connection could not be made: the request at the head of the line was to have it."""
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
        """Ends what ran out of time, and the run when nothing is left."""
        now, outstanding = clock(), self._outstanding
        while outstanding and (
            outstanding[0].done or self._start + outstanding[0].intended + self._timeout <= now
        ):
            request = outstanding.popleft()
            if not request.done:
                self._give_up(request, "timeout" if request.written else "connection_wait_timeout", now)
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

    def _give_up(self, request: Request, kind: str, now: float) -> None:
        self._finish(request)
        connection = self._busy.pop(request, None)
        if connection is not None:
            connection.drop()
        self._recorder.failed(request, kind, now - self._start)


def _current_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _connect_failure(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError):
        return "reset"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "out_of_files"
    return "connect_tls" if isinstance(error, ssl.SSLError) else "connect_failed"

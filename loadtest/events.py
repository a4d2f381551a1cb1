"""The events of a load test, such as faults: shell commands that run at their times during the traffic."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from headroom.loadtest.alarm import clock
from headroom.loadtest.plan import Event, Plan, PlanError

TIMEOUT_S = 120.0
"""Time limit of an event's command."""


class Events:
    """Runs the events of a plan at their times, and records which ran.

    Args:
        server: process id for $SERVER_PID; if None, events that use it are refused.
        directory: $OUT.
    """

    def __init__(self, plan: Plan, server: int | None, directory: Path) -> None:
        for event in plan.events:
            if server is None and "SERVER_PID" in event.run:
                raise PlanError(
                    f"event {event.name!r} acts on the server's processes: let the run --start it"
                )
        self._events = plan.events
        self._environment = os.environ | {
            "SERVER_PID": str(server or ""),
            "URL": plan.url,
            "OUT": str(directory),
            "PYTHON": sys.executable,
        }
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.ran: list[dict[str, Any]] = []

    def begin(self, origin: float) -> None:
        """Start the events; their times count from `origin` on `clock`."""
        self._threads = [
            threading.Thread(target=self._follow, args=(event, origin), daemon=True) for event in self._events
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop: wait for the running event and start no further one."""
        self._over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _follow(self, event: Event, origin: float) -> None:
        at = event.at
        while not self._over.wait(max(0.0, origin + at - clock())):
            began = clock()
            result = self._run(event)
            seconds = clock() - began
            self.ran.append({"at": began - origin, "seconds": seconds, "name": event.name, **result})
            if event.every is None:
                return
            at += event.every

    def _run(self, event: Event) -> dict[str, Any]:
        """Return the command's status, None if it did not end, and as `said` the JSON object it printed."""
        try:
            ended = subprocess.run(
                event.run,
                shell=True,
                check=False,
                env=self._environment,
                timeout=TIMEOUT_S,
                stdout=subprocess.PIPE,
            )
        except subprocess.TimeoutExpired:
            return {"status": None}
        with contextlib.suppress(ValueError):
            if isinstance(said := json.loads(ended.stdout), dict):
                return {"status": ended.returncode, "said": said}
        sys.stderr.write(ended.stdout.decode(errors="replace"))
        return {"status": ended.returncode}

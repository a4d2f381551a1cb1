"""Shows a replica's warnings and tracebacks on the standard error of `headroom serve`.

Ray keeps a replica's log in a file, which is gone with a container. So that a replica in trouble cannot flood
the operator's log, it writes a limited number of records a minute there, and then says how many are missing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from service.ray.environment import tell

LOGGERS = ("headroom", "models", "service", "ray.serve")

MAX_RECORDS = 20
WINDOW_S = 60.0
"""At most MAX_RECORDS records are shown in each window of WINDOW_S seconds."""

MAX_LINES = 60


class OperatorHandler(logging.Handler):
    """Hands log records from WARNING on to `tell`, Serve's from ERROR on.

    write: takes one line. clock: seconds that never go backwards.
    """

    def __init__(
        self, write: Callable[[str], None] = tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: record.levelno >= logging.ERROR or not record.name.startswith("ray."))
        self.setFormatter(logging.Formatter(f"replica {os.getpid()}: %(levelname)s %(name)s: %(message)s"))
        self._write = write
        self._clock = clock
        self._began = -WINDOW_S
        self._shown = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record and its traceback, or count it if there were too many. Raises nothing."""
        try:
            if self._is_shown():
                for line in self.format(record).splitlines()[:MAX_LINES]:
                    self._write(line)
        except Exception:
            self.handleError(record)

    def _is_shown(self) -> bool:
        now = self._clock()
        if now - self._began >= WINDOW_S:
            if self._shown > MAX_RECORDS:
                self._write(f"replica {os.getpid()}: {self._shown - MAX_RECORDS} more records are in its log")
            self._began, self._shown = now, 0
        self._shown += 1
        return self._shown <= MAX_RECORDS


def show_to_operator() -> None:
    """Show this process's log to the operator from now on. Once per process."""
    handler = OperatorHandler()
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)

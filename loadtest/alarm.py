"""A timer for an event loop that is accurate to microseconds.

Event loops wait in whole milliseconds (uvloop's timers as well as epoll), which is too coarse for sending on
time. On Linux, the kernel's timerfd wakes the loop as a readable file. Elsewhere, the loop's own timer does.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

clock = time.monotonic
"""The clock of a run: CLOCK_MONOTONIC, which is the same in all processes of a machine."""

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


class Alarm:
    """Calls `callback` once after the latest `set`. Create and use it inside a running loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._file = -1
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._file = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            self._settime = libc.timerfd_settime
            self._spec = (ctypes.c_long * 4)()  # interval and time, each in seconds and nanoseconds
            self._loop.add_reader(self._file, self._ring)

    def set(self, when: float) -> None:
        """Set the alarm to the time `when` on `clock`; if that is past, it goes off at once."""
        if self._file < 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, when - clock()), self._callback)
            return
        self._spec[2] = whole = int(when)
        self._spec[3] = max(1, int((when - whole) * 1e9))  # zero would disarm the timer
        self._settime(self._file, _TFD_TIMER_ABSTIME, self._spec, None)

    def close(self) -> None:
        """Disarm the alarm for good."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _ring(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set again after it went off
            return
        self._callback()

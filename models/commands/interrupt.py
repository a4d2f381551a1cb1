"""End a long command at once on Ctrl-C, even while native code or other processes do its work."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

EXIT_STATUS = 130
"""The exit status that shells report for a program that SIGINT ended."""

SHOW_CURSOR = b"\x1b[?25h"

GRACE_SECONDS = 3
"""How long temporary files and a local Ray may take to close after Ctrl-C."""


@contextlib.contextmanager
def ends_at_once(message: str | Callable[[], str]) -> Iterator[None]:
    """End the process with EXIT_STATUS and one line on standard error when SIGINT comes; main thread only.

    message: the line, or a function that another thread calls when SIGINT comes, and that returns it.
    The body gets KeyboardInterrupt and GRACE_SECONDS to close what it opened; a second SIGINT ends it at
    once. Python delivers a signal to the main thread only between two instructions, and one native call can
    take minutes. Therefore the signal handler writes to a pipe, and a separate thread reads from it.
    """
    # A shell makes its background jobs ignore SIGINT; a SIGINT that is sent to one anyway should count.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    is_told = threading.Event()
    watch = threading.Thread(target=_watch, args=(reading, message, is_told), daemon=True, name="interrupt")
    watch.start()
    try:
        yield
    except KeyboardInterrupt:
        is_told.wait(GRACE_SECONDS)
        _end()
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.close(writing)
        watch.join()
        os.close(reading)


def _watch(reading: int, message: str | Callable[[], str], is_told: threading.Event) -> None:
    """Wait for SIGINT; return when the other end of the pipe is closed."""
    while number := os.read(reading, 1):
        if number[0] != signal.SIGINT:
            continue
        line = message if isinstance(message, str) else message()
        print(f"\n{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
        is_told.set()
        select.select([reading], [], [], GRACE_SECONDS)
        _end()


def _end() -> NoReturn:
    """End the process, with the cursor visible, which a progress bar hides."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR)
    os._exit(EXIT_STATUS)

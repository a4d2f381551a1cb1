"""End a long command at once on Ctrl-C, even while native code or other processes do its work."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

EXIT_STATUS = 130
"""The exit status that shells report for a program that SIGINT ended."""

SHOW_CURSOR = b"\x1b[?25h"

GRACE_SECONDS = 3
"""How long temporary files and a local Ray may take to close after Ctrl-C."""


@contextlib.contextmanager
def ends_at_once(message: str) -> Iterator[None]:
    """End the process with EXIT_STATUS and one line on standard error when SIGINT comes; main thread only.

    The body gets KeyboardInterrupt and GRACE_SECONDS to close what it opened; a second SIGINT ends it at
    once. Python delivers a signal to the main thread only between two instructions, and one native call can
    take minutes. Therefore the signal handler writes to a pipe, and a separate thread reads from it.
    """
    # A shell makes its background jobs ignore SIGINT; a SIGINT that is sent to one anyway should count.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    said = threading.Event()
    watch = threading.Thread(target=_watch, args=(reading, message, said), daemon=True, name="interrupt")
    watch.start()
    try:
        yield
    except KeyboardInterrupt:
        said.wait(GRACE_SECONDS)
        _end()
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.close(writing)
        watch.join()
        os.close(reading)


def _watch(reading: int, message: str, said: threading.Event) -> None:
    """Wait for SIGINT; return when the other end of the pipe is closed."""
    while number := os.read(reading, 1):
        if number[0] != signal.SIGINT:
            continue
        print(f"\n{message}" if sys.stderr.isatty() else message, file=sys.stderr, flush=True)
        said.set()
        select.select([reading], [], [], GRACE_SECONDS)
        _end()


def _end() -> NoReturn:
    """End the process, with the cursor visible, which a progress bar hides."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR)
    os._exit(EXIT_STATUS)

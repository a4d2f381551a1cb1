"""Ctrl-C that ends a long command at once, also while its work is in native code or in other processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator

EXIT_STATUS = 130
"""What a shell gives a program that SIGINT ended."""

GRACE_SECONDS = 3
"""How long what is open may take to close after Ctrl-C: temporary files, a Ray of our own."""


@contextlib.contextmanager
def ends_at_once(message: str) -> Iterator[None]:
    """Ends the process with EXIT_STATUS and one line on standard error when SIGINT comes; main thread only.

    The body gets KeyboardInterrupt and GRACE_SECONDS to close what it opened; a second SIGINT ends it there
    and then. Python tells the main thread of a signal only between two of its instructions, and one native
    call can take longer than anybody waits; so a thread of its own reads of the signal from a pipe that the
    handler writes to.
    """
    # A shell that starts a job in the background lets it ignore SIGINT; who sends it one still means it.
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
        os._exit(EXIT_STATUS)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.close(writing)
        watch.join()
        os.close(reading)


def _watch(reading: int, message: str, said: threading.Event) -> None:
    """Waits for SIGINT; returns when the other end of the pipe is closed."""
    while number := os.read(reading, 1):
        if number[0] != signal.SIGINT:
            continue
        print(f"\n{message}" if sys.stderr.isatty() else message, file=sys.stderr, flush=True)
        said.set()
        select.select([reading], [], [], GRACE_SECONDS)
        os._exit(EXIT_STATUS)

"""Ends a long command on Ctrl-C with one line that says what is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

EXIT_STATUS = 130
"""The exit status that shells report for a program that SIGINT ended."""


@contextlib.contextmanager
def ends_at_once(message: str | Callable[[], str]) -> Iterator[None]:
    """End the process with EXIT_STATUS and one line on standard error when SIGINT comes; main thread only.

    message: the line, or a function that returns it. The body gets KeyboardInterrupt to close what it opened;
    threads and exit handlers are not waited for.
    """
    # A shell makes its background jobs ignore SIGINT; a SIGINT that is sent to one anyway should count.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        line = message if isinstance(message, str) else message()
        print(f"\n{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
        os._exit(EXIT_STATUS)
    finally:
        signal.signal(signal.SIGINT, handler)

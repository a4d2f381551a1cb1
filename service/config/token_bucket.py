"""A rate limit with bursts, which processes may share by a file."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_STATE = struct.Struct("dd")
ROUNDING = 1e-9
TRIES = 1000
"""How often the lock is tried, about a millisecond in all. Its holder needs it for microseconds; one that was
stopped just then must not stop the others, who go on without the lock."""


class TokenBucket:
    """A bucket that holds `capacity` and fills by `rate` per second; it begins full.

    Who takes more than it can ever hold gets it from a full bucket, which then owes the rest. So a rate holds
    on average for requests of any size.

    Args:
        clock: seconds that never go back, the same for all processes of the machine.
        file: the state, shared with every process that opens the same file; None: this bucket has its own.

    Raises OSError if the file cannot be opened or the disk is full.
    """

    def __init__(
        self, rate: float, capacity: float, clock: Callable[[], float], file: Path | None = None
    ) -> None:
        self._rate = rate
        self._capacity = capacity
        self._clock = clock
        self._lock: int | None = None
        # What is missing until the bucket is full, and the time at which that was so. Zeros: it is full.
        self._state: bytearray | mmap.mmap = bytearray(_STATE.size)
        if file is not None:
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.truncate(self._lock, _STATE.size)
            if sys.platform.startswith("linux"):  # a write into a hole ends the process if the disk is full
                os.posix_fallocate(self._lock, 0, _STATE.size)
            self._state = mmap.mmap(self._lock, _STATE.size)

    def take(self, amount: float) -> float:
        """Take an amount. Returns 0, or the seconds until it may be taken; then nothing was."""
        with self._locked():
            missing, now = self._read()
            excess = missing + min(amount, self._capacity) - self._capacity
            if excess > ROUNDING:
                return excess / self._rate
            self._write(missing + amount, now)
            return 0.0

    def add(self, amount: float) -> None:
        """Put an amount back; a negative one is taken, even if the bucket then owes it."""
        with self._locked():
            missing, now = self._read()
            self._write(max(0.0, missing - amount), now)

    def _read(self) -> tuple[float, float]:
        """Return what is missing now, and the time."""
        missing, at = _STATE.unpack_from(self._state)
        now = self._clock()
        if at > now:  # the file is older than the machine's start, where the clock began anew
            return 0.0, now
        return max(0.0, missing - (now - at) * self._rate), now

    def _write(self, missing: float, now: float) -> None:
        _STATE.pack_into(self._state, 0, missing, now)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        held = False
        for _ in range(TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            held = True
            break
        try:
            yield
        finally:
            if held:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

"""The file of `api_keys_file`: read at the start, and again every few seconds.

A Secret that Kubernetes mounts changes in running pods, so that keys are exchanged without a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.files import read_text
from headroom.service.config.keys import ApiKey, KeyRing, parse_api_keys
from headroom.service.config.settings import InvalidConfig, Settings

if TYPE_CHECKING:
    from headroom.service.observe.metrics import Metrics

logger = logging.getLogger("headroom.keys")

READ_SECONDS = 5.0
"""How long after a change the file is read at the latest."""

SETTLE_SECONDS = 1.0
"""A change counts once the file reads the same this long after: half of a file, as some editors and copies
write it, ends with a part of a key, which is a valid key."""

MAX_BYTES = 1 << 20

_Found = tuple[ApiKey, ...] | str
"""The keys of the file, or why it cannot be used."""


def key_ring(settings: Settings) -> KeyRing | None:
    """Return the keys that callers need; None if they need none. Reads the file: raises InvalidConfig."""
    if settings.api_keys_file is not None:
        return KeyRing(read_api_keys(settings.api_keys_file))
    return KeyRing(settings.api_keys) if settings.api_keys else None


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file: entries as in `HEADROOM_API_KEYS`, separated by commas or line breaks.

    A line that begins with # is a comment; the file may begin with a byte order mark.
    Raises InvalidConfig; the message names the file and repeats no key.
    """
    try:
        lines = read_text(path, MAX_BYTES).removeprefix("\ufeff").splitlines()
        entries = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        return parse_api_keys(",".join(entries))
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    raise InvalidConfig(f"api_keys_file: {path}: {reason}")


def background(
    settings: Settings, keys: KeyRing | None, metrics: Metrics
) -> tuple[Callable[[], Coroutine[object, object, None]], ...]:
    """Return the work that keeps a ring from `key_ring` up to date: none without a file."""
    if keys is None or settings.api_keys_file is None:
        return ()
    return (partial(follow, settings.api_keys_file, keys, metrics),)


async def follow(path: Path, keys: KeyRing, metrics: Metrics) -> None:
    """Read the file every READ_SECONDS, on a thread, and accept its keys.

    While it cannot be read or holds a wrong entry, the keys before stay; the log and a metric say so.
    """
    refused = ""
    found: _Found = ()
    while True:
        found = await _settled(path, found)
        reason = found if isinstance(found, str) else ""
        if not isinstance(found, str):
            keys.replace(found)
        if reason != refused:
            if reason:
                logger.error("%s; the keys before stay in force", reason)
            else:
                logger.warning("%s is in order again; its keys are in force", path)
        refused = reason
        metrics.set_gauge("api_keys_refused", bool(reason))
        await asyncio.sleep(READ_SECONDS)


async def _settled(path: Path, before: _Found) -> _Found:
    """Return what the file holds, if not what it held before then once two looks in a row agree."""
    found = await asyncio.to_thread(_look, path)
    while found != before:
        before = found
        await asyncio.sleep(SETTLE_SECONDS)
        found = await asyncio.to_thread(_look, path)
    return found


def _look(path: Path) -> _Found:
    try:
        return read_api_keys(path)
    except InvalidConfig as error:
        return str(error)

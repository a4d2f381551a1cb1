"""Parses request bodies as strict JSON (RFC 8259).

orjson already refuses text that is not UTF-8, lone surrogates, NaN, numbers beyond a double and more than
1024 levels. This module adds a depth limit, a limit on arrays, objects and keys, and an error for duplicate
keys, of which orjson keeps the last.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

import numpy as np
import orjson

from service.errors import InvalidJSON

MAX_DEPTH = 32
"""The deepest nesting of a request's JSON."""

_KEY_SHOWN = 64  # how many characters of a caller's key a message repeats

_PIECE_BYTES = 65_536
_PARTS = (b"[", b"{", b":")  # each array, object and key has one of these


class _DuplicateKeyError(Exception):
    """An object has the same key twice. Carries the key out of the decoder."""


def loads(body: bytes, *, max_parts: int, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value of a JSON document.

    Args:
        body: the whole document, UTF-8; it may begin with a byte order mark.
        max_depth: the deepest nesting of arrays and objects; `[]` has depth 1.
        max_parts: the most arrays, objects and keys together.

    Raises:
        InvalidJSON: empty, not UTF-8, not JSON, lone surrogates, NaN or infinities (also as 1e999), an object
            with the same key twice, nested deeper than `max_depth`, or more than `max_parts` parts.
    """
    body = body.removeprefix(codecs.BOM_UTF8)  # a parser may ignore it (RFC 8259, section 8.1)
    if not body or body.isspace():
        raise InvalidJSON("The body is empty; send a JSON object.")
    arrays, objects, colons = (body.count(sign) for sign in _PARTS)
    if arrays + objects + colons > max_parts and _has_more_parts(body, max_parts):
        raise InvalidJSON(
            f"The body holds more than {max_parts} arrays, objects and keys; send fewer items, or items with "
            "fewer fields."
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJSON(_sentence(error, max_depth)) from None
    # A body has at most as many levels as brackets, and at most as many keys as colons. So most bodies need
    # neither of these checks.
    if arrays + objects > max_depth and _deeper_than(value, max_depth):
        raise InvalidJSON(_too_deep(max_depth))
    keys = len(value) if isinstance(value, dict) else 0
    if colons > keys and (twice := duplicate_key(body)) is not None:
        raise InvalidJSON(f'The key "{twice}" appears twice in the same object.')
    return value


def _has_more_parts(body: bytes, max_parts: int) -> bool:
    """Count the parts outside strings, a piece of the body at a time, without a loop over the strings.

    A body may hold a million strings, and the others wait meanwhile. Pieces keep the memory of a bomb small.
    """
    count = start = is_inside = 0
    while start < len(body):
        piece = body[start : start + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # it ends within an escape
            piece = body[start : start + _PIECE_BYTES + 1]
        start += len(piece)
        text = np.frombuffer(piece.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
        quotes = np.bitwise_xor.accumulate((text == ord('"')).view(np.uint8))  # 1 after an odd number of them
        is_part = np.logical_or.reduce([text == ord(sign) for sign in _PARTS])
        count += int(np.count_nonzero(is_part & (quotes == is_inside)))
        if count > max_parts:
            return True
        if len(quotes):
            is_inside ^= int(quotes[-1])
    return False


def _too_deep(max_depth: int) -> str:
    return f"The body is nested more than {max_depth} levels deep."


def _sentence(error: orjson.JSONDecodeError, max_depth: int) -> str:
    if "depth" in error.msg or "recursion" in error.msg:
        return _too_deep(max_depth)
    reason = error.msg
    if "surrogate in string" in reason:
        reason = "a \\u escape is half of a surrogate pair"
    elif "UTF-8:" in reason:
        reason = "it is not UTF-8"
    return f"The body is not valid JSON: {reason} (line {error.lineno}, column {error.colno})."


def _deeper_than(value: Any, max_depth: int) -> bool:
    """Return whether containers nest deeper than `max_depth`. No stack can overflow."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        deeper: list[Any] = []
        for container in level:
            children = container.values() if isinstance(container, dict) else container
            deeper += [child for child in children if isinstance(child, dict | list)]
        if not deeper:
            return False
        level = deeper
    return bool(level)


def duplicate_key(body: bytes) -> str | None:
    """Return a key, perhaps cut short, that an object of a valid JSON document has twice; None if none is."""
    try:
        _KEYS.decode(body.decode())
    except _DuplicateKeyError as duplicate:
        key = str(duplicate)
        return key if len(key) <= _KEY_SHOWN else f"{key[:_KEY_SHOWN]}…"
    return None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)


# Only its keys are used. Numbers stay text, so that a number of a million digits costs nothing.
_KEYS = json.JSONDecoder(object_pairs_hook=_unique, parse_int=str, parse_float=str)

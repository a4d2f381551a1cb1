"""The one grammar that names head masks: specs such as `2.3,4.*`, and the JSON forms."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from itertools import groupby

import numpy as np
import numpy.typing as npt

from models.errors import InvalidMask

Heads = npt.NDArray[np.bool_]
"""(layers, heads), True for the heads that are named."""

Weights = npt.NDArray[np.float32]
"""(layers, heads), 1 keeps a head and 0 switches it off."""

_MAX_LENGTH = 32_768
"""Far above what the heads of any model need, and short enough to parse while a request waits."""

_SPACES = " \t\r\n"
_ITEM = re.compile(r"(\*|[0-9]+(?:-[0-9]+)?)\.(\*|[0-9]+(?:-[0-9]+)?)")
_RANDOM = re.compile(r"([^@/]*)@([^/]*)(?:/(.*))?", re.DOTALL)
_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FORMS = "off, keep and weights"


def _off(heads: Heads) -> Weights:
    return np.where(heads, np.float32(0), np.float32(1))


def stored_name(spec: str) -> str | None:
    """Return NAME of the spec `@NAME`; None for any other spec."""
    _check_length(spec, "the spec", "characters")
    spec = spec.strip(_SPACES)
    return spec[1:] if spec.startswith("@") else None


def weights_of(value: object, shape: tuple[int, int]) -> Weights:
    """Return the weights, (layers, heads) float32, of a spec such as `2.3,4.*` or of a JSON form.

    shape: (layers, heads) of the model. Raises InvalidMask: one sentence that says what is wrong, where, and
    the valid range.
    """
    if isinstance(value, str):
        return _from_spec(value, shape)
    if isinstance(value, Mapping):
        return _from_json(value, shape)
    raise InvalidMask(f"a mask is a spec (2.3,4.*) or an object with one of {_FORMS}, not {shown(value)}")


def _from_spec(spec: str, shape: tuple[int, int]) -> Weights:
    _check_length(spec, "the spec", "characters")
    spec = spec.strip(_SPACES)
    if not spec:
        raise InvalidMask("the spec is empty; 'none' keeps every head")
    if spec == "none":
        return np.ones(shape, dtype=np.float32)
    if spec.startswith("keep:"):
        return _off(~_listed(spec.removeprefix("keep:"), shape))
    if spec.startswith("random:"):
        return _off(_random(spec.removeprefix("random:"), shape))
    if spec.startswith("weights:"):
        raise InvalidMask(f"{shown(spec)} only names a matrix; send the matrix as the JSON form 'weights'")
    return _off(_listed(spec, shape))


def _listed(text: str, shape: tuple[int, int]) -> Heads:
    """Return the heads of a list such as `2.3,4.0-5,7.*`."""
    heads = np.zeros(shape, dtype=np.bool_)
    items = [item.strip(_SPACES) for item in text.split(",")]
    for number, item in enumerate(items, start=1):
        match = _ITEM.fullmatch(item)
        if not match:
            wrong = shown(item) if item else f"item {number}, which is empty,"
            raise InvalidMask(
                f"{wrong} is not layer.head (such as 2.3, 6-11.* or *.0); this model has "
                f"{_range('layer', shape)} and {_range('head', shape)}"
            )
        where = f" (item {number}, {shown(item)})" if len(items) > 1 else ""
        heads[_span(match[1], "layer", shape, where), _span(match[2], "head", shape, where)] = True
    return heads


def _span(text: str, axis: str, shape: tuple[int, int], where: str) -> slice:
    """Return `*`, `a` or `a-b` as a slice of layers or heads."""
    if text == "*":
        return slice(None)
    first, _, last = text.partition("-")
    start = _index(first, axis, shape, where)
    stop = _index(last, axis, shape, where) if last else start
    if start > stop:
        raise InvalidMask(f"the {axis} range {start}-{stop} runs backwards; write {stop}-{start}{where}")
    return slice(start, stop + 1)


def _index(number: str | int, axis: str, shape: tuple[int, int], where: str) -> int:
    """Return a layer or head of the model, given as decimal digits or as an int."""
    try:
        index = int(number)
    except ValueError:  # int() refuses so many digits; no model has so many layers or heads
        index = -1
    if not 0 <= index < shape[axis == "head"]:
        quoted = _shortened(number) if isinstance(number, str) else shown(number)
        raise InvalidMask(f"{axis} {quoted} does not exist; this model has {_range(axis, shape)}{where}")
    return index


def _range(axis: str, shape: tuple[int, int]) -> str:
    """Return the valid range of an axis in words, such as `layers 0 to 11`."""
    size = shape[axis == "head"]
    return f"{axis}s 0 to {size - 1}" if size > 1 else f"only {axis} 0"


def _random(text: str, shape: tuple[int, int]) -> Heads:
    """Return the heads that `fraction@seed` or `fraction@seed/list` draws, in any language the same ones."""
    match = _RANDOM.fullmatch(text)
    if not match:
        raise InvalidMask(f"{shown('random:' + text)} has no seed; write random:fraction@seed (random:0.2@7)")
    fraction, seed, candidates = match.groups()
    if not _DECIMAL.fullmatch(fraction) or Decimal(fraction) > 1:
        raise InvalidMask(f"the fraction {shown(fraction)} of 'random' is not a decimal from 0 to 1 (0.2)")
    if not (seed.isascii() and seed.isdigit()):
        raise InvalidMask(f"the seed {shown(seed)} of 'random' is not a decimal integer from 0 up (7)")
    heads = np.ones(shape, dtype=np.bool_) if candidates is None else _listed(candidates, shape)
    listed = [(int(layer), int(head)) for layer, head in np.argwhere(heads)]
    # Decimal, because 0.145 of 100 heads is 14.5 and rounds up; in binary it is less and rounds down.
    exact = Context(prec=len(fraction) + 20)
    count = int(exact.fma(Decimal(fraction), Decimal(len(listed)), Decimal("0.5")))

    seeded = hashlib.sha256(f"{seed.lstrip('0') or '0'}:".encode())

    def digest(head: tuple[int, int]) -> bytes:
        hashed = seeded.copy()
        hashed.update(f"{head[0]}.{head[1]}".encode())
        return hashed.digest()

    off = np.zeros(shape, dtype=np.bool_)
    for drawn in sorted(listed, key=digest)[:count]:
        off[drawn] = True
    return off


def _from_json(form: Mapping[str, object], shape: tuple[int, int]) -> Weights:
    if len(form) != 1 or (key := next(iter(form))) not in ("off", "keep", "weights"):
        keys = ", ".join(shown(key) for key in list(form)[:4]) or "no key"
        raise InvalidMask(f"an object has exactly one of the keys {_FORMS}, not {keys}")
    value = form[key]
    if not isinstance(value, list | tuple):
        raise InvalidMask(f"{key!r} is a list, not {shown(value)}")
    if key == "weights":
        return _weights(value, shape)
    heads = _pairs(key, value, shape)
    return _off(heads if key == "off" else ~heads)


def _pairs(key: str, pairs: Sequence[object], shape: tuple[int, int]) -> Heads:
    """Return the heads of a list of [layer, head] pairs."""
    _check_length(pairs, repr(key), "pairs")
    heads = np.zeros(shape, dtype=np.bool_)
    for number, pair in enumerate(pairs):
        match pair:
            case [int(layer), int(head)] if not isinstance(layer, bool) and not isinstance(head, bool):
                where = f" ({key}[{number}])"
                heads[_index(layer, "layer", shape, where), _index(head, "head", shape, where)] = True
            case _:
                raise InvalidMask(f"{key}[{number}] is {shown(pair)}, not a pair of integers [layer, head]")
    return heads


def _weights(rows: Sequence[object], shape: tuple[int, int]) -> Weights:
    """Return the weights of a dense layers × heads matrix."""
    layers, heads = shape
    if len(rows) != layers:
        raise InvalidMask(f"'weights' has {len(rows)} rows; this model has {layers} layers, one row each")
    for layer, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != heads:
            raise InvalidMask(
                f"weights[{layer}] is {shown(row)}; a row is a list of {heads} numbers, one per head"
            )
        for head, weight in enumerate(row):
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
                raise InvalidMask(f"weights[{layer}][{head}] is {shown(weight)}, not a number from 0 to 1")
    return np.array(rows, dtype=np.float32)


def canonical(off: Heads) -> str:
    """Return the canonical spec of the heads that are off."""
    items: list[str] = []
    for is_whole, group in groupby(range(len(off)), key=lambda layer: bool(off[layer].all())):
        if is_whole:
            items += [f"{run}.*" for run in _runs(group)]
        else:
            items += [f"{layer}.{run}" for layer in group for run in _runs(np.flatnonzero(off[layer]))]
    return ",".join(items) or "none"


def _runs(numbers: Iterable[int]) -> list[str]:
    """Return ascending numbers as `a`, and runs of consecutive ones as `a-b`."""
    # Within a run of consecutive numbers, number minus position does not change.
    groups = groupby(enumerate(numbers), key=lambda pair: int(pair[1]) - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


def _check_length(value: Sequence[object], name: str, unit: str) -> None:
    if len(value) > _MAX_LENGTH:
        raise InvalidMask(f"{name} has {len(value):,} {unit}; the limit is {_MAX_LENGTH:,}")


def shown(value: object) -> str:
    """Return the value as an error quotes it, in at most about 40 characters."""
    if isinstance(value, str):
        return repr(_shortened(value))
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 128:
        return "(a number of more than 38 digits)"
    if value is None or isinstance(value, int | float):
        return str(value)
    return f"of type {type(value).__name__}"


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"

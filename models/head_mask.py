"""Head masks: a weight in [0, 1] for each attention head, and the one grammar that names them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from models.errors import InvalidMask

# Far above what the heads of any model need, and short enough to read while a request waits.
_MAX_LENGTH = 32_768
_SPACES = " \t\r\n"
_ITEM = re.compile(r"(\*|[0-9]+(?:-[0-9]+)?)\.(\*|[0-9]+(?:-[0-9]+)?)")
_RANDOM = re.compile(r"([^@/]*)@([^/]*)(?:/(.*))?", re.DOTALL)
_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FORMS = "off, keep and weights"
_NO_MASKS: Mapping[str, HeadMask] = MappingProxyType({})

_Heads = npt.NDArray[np.bool_]  # (layers, heads), True for the heads that are meant


@dataclass(frozen=True, eq=False, repr=False)
class HeadMask:
    """A weight for each head: 1 keeps it, 0 switches it off.

    matrix: float32 (layers, heads), finite numbers in [0, 1], read-only. Masks are equal when their matrices
    are. Raises InvalidMask for anything else.
    """

    matrix: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        try:
            weights = np.array(self.matrix, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InvalidMask("the weights are not a matrix of numbers, one row per layer") from None
        if weights.ndim != 2 or weights.size == 0:
            raise InvalidMask(f"the weights have shape {weights.shape}; the valid shape is (layers, heads)")
        if not ((weights >= 0) & (weights <= 1)).all():
            raise InvalidMask("a weight is outside the valid range, finite numbers from 0 to 1")
        # Adding 0 turns -0.0 into 0.0: equal masks must have equal bytes, for they are identified by them.
        matrix = weights.astype(np.float32) + np.float32(0)
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)

    @classmethod
    def parse(
        cls,
        value: str | Mapping[str, object],
        *,
        layers: int,
        heads: int,
        stored: Mapping[str, HeadMask] = _NO_MASKS,
    ) -> HeadMask:
        """The mask that a spec such as `2.3,4.*` or a JSON form such as `{"off": [[2, 3]]}` stands for.

        layers, heads: the model's shape. stored: the model's masks by name, for `@name`.
        Raises InvalidMask: one sentence with what was wrong, where, and the valid range.
        """
        shape = (layers, heads)
        if isinstance(value, str):
            return _from_spec(value, shape, stored)
        if isinstance(value, Mapping):
            return _from_json(value, shape)
        raise InvalidMask(
            f"a mask is a spec (2.3,4.*) or an object with one of {_FORMS}, not {_shown(value)}"
        )

    @classmethod
    def none(cls, layers: int, heads: int) -> HeadMask:
        """The mask that keeps every head."""
        return cls(np.ones((layers, heads), dtype=np.float32))

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike) -> HeadMask:
        """The mask with these weights, (layers, heads). Raises InvalidMask as the class does."""
        return cls(matrix)  # type: ignore[arg-type]  # the class makes an array of it

    @property
    def layers(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def heads(self) -> int:
        """Heads per layer."""
        return int(self.matrix.shape[1])

    @property
    def heads_on(self) -> int:
        """How many heads have a weight above 0."""
        return int(np.count_nonzero(self.matrix))

    @property
    def is_none(self) -> bool:
        """Whether every head is kept as it is."""
        return bool((self.matrix == 1).all())

    @cached_property
    def off(self) -> tuple[tuple[int, int], ...]:
        """The (layer, head) pairs that are switched off, ascending."""
        return tuple((int(layer), int(head)) for layer, head in np.argwhere(self.matrix == 0))

    @cached_property
    def id(self) -> str:
        """The first 12 hex digits of SHA-256 of the float32 little-endian layer-major matrix."""
        return hashlib.sha256(self.matrix.astype("<f4").tobytes()).hexdigest()[:12]

    @cached_property
    def spec(self) -> str:
        """The canonical spec; it parses back to this mask unless a weight lies strictly between 0 and 1."""
        return _canonical(self.matrix == 0) if self._is_binary else f"weights:{self.id}"

    def to_json(self) -> dict[str, Any]:
        """The JSON form that parses back to this mask: `off` where that says it all, else `weights`."""
        if self._is_binary:
            return {"off": [list(head) for head in self.off]}
        return {"weights": self.matrix.tolist()}

    @property
    def _is_binary(self) -> bool:
        return bool(((self.matrix == 0) | (self.matrix == 1)).all())

    def __mul__(self, other: HeadMask) -> HeadMask:
        """Both masks at once: the product of the weights. Raises InvalidMask if the shapes differ."""
        if self.matrix.shape != other.matrix.shape:
            raise InvalidMask(f"a mask of shape {other.matrix.shape} does not fit one of {self.matrix.shape}")
        return HeadMask(self.matrix * other.matrix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeadMask) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"HeadMask({self.spec!r}, layers={self.layers}, heads={self.heads})"


def _off(heads: _Heads) -> HeadMask:
    return HeadMask(np.where(heads, np.float32(0), np.float32(1)))


def _from_spec(spec: str, shape: tuple[int, int], stored: Mapping[str, HeadMask]) -> HeadMask:
    _check_length(spec, "the spec", "characters")
    spec = spec.strip(_SPACES)
    if not spec:
        raise InvalidMask("the spec is empty; 'none' keeps every head")
    if spec == "none":
        return HeadMask.none(*shape)
    if spec.startswith("@"):
        return _stored(spec[1:], stored)
    if spec.startswith("keep:"):
        return _off(~_listed(spec.removeprefix("keep:"), shape))
    if spec.startswith("random:"):
        return _off(_random(spec.removeprefix("random:"), shape))
    if spec.startswith("weights:"):
        raise InvalidMask(f"{_shown(spec)} only names a matrix; send the matrix as the JSON form 'weights'")
    return _off(_listed(spec, shape))


def _stored(name: str, stored: Mapping[str, HeadMask]) -> HeadMask:
    if name not in stored:
        names = ", ".join(sorted(stored)[:20]) or "none"
        raise InvalidMask(f"no mask is stored as {_shown(name)}; this model's stored masks: {names}")
    return stored[name]


def _listed(text: str, shape: tuple[int, int]) -> _Heads:
    """The heads of a list such as `2.3,4.0-5,7.*`."""
    heads = np.zeros(shape, dtype=np.bool_)
    items = [item.strip(_SPACES) for item in text.split(",")]
    for number, item in enumerate(items, start=1):
        match = _ITEM.fullmatch(item)
        if not match:
            wrong = _shown(item) if item else f"item {number}, which is empty,"
            raise InvalidMask(
                f"{wrong} is not layer.head (such as 2.3, 6-11.* or *.0); this model has "
                f"{_range('layer', shape)} and {_range('head', shape)}"
            )
        where = f" (item {number}, {_shown(item)})" if len(items) > 1 else ""
        heads[_span(match[1], "layer", shape, where), _span(match[2], "head", shape, where)] = True
    return heads


def _span(text: str, axis: str, shape: tuple[int, int], where: str) -> slice:
    """`*`, `a` or `a-b` as a slice of layers or heads."""
    if text == "*":
        return slice(None)
    first, _, last = text.partition("-")
    start = _index(first, axis, shape, where)
    stop = _index(last, axis, shape, where) if last else start
    if start > stop:
        raise InvalidMask(f"the {axis} range {start}-{stop} runs backwards; write {stop}-{start}{where}")
    return slice(start, stop + 1)


def _index(number: str | int, axis: str, shape: tuple[int, int], where: str) -> int:
    """A layer or head of the model, given as decimal digits or as an int."""
    try:
        index = int(number)
    except ValueError:  # more digits than int() takes, so more than any model has
        index = -1
    if not 0 <= index < shape[axis == "head"]:
        shown = _shortened(number) if isinstance(number, str) else _shown(number)
        raise InvalidMask(f"{axis} {shown} does not exist; this model has {_range(axis, shape)}{where}")
    return index


def _range(axis: str, shape: tuple[int, int]) -> str:
    """The valid range of an axis, as in `layers 0 to 11`."""
    size = shape[axis == "head"]
    return f"{axis}s 0 to {size - 1}" if size > 1 else f"only {axis} 0"


def _random(text: str, shape: tuple[int, int]) -> _Heads:
    """The heads drawn by `fraction@seed` or `fraction@seed/list`, the same in every language."""
    match = _RANDOM.fullmatch(text)
    if not match:
        raise InvalidMask(
            f"{_shown('random:' + text)} has no seed; write random:fraction@seed (random:0.2@7)"
        )
    fraction, seed, candidates = match.groups()
    if not _DECIMAL.fullmatch(fraction) or Decimal(fraction) > 1:
        raise InvalidMask(f"the fraction {_shown(fraction)} of 'random' is not a decimal from 0 to 1 (0.2)")
    if not (seed.isascii() and seed.isdigit()):
        raise InvalidMask(f"the seed {_shown(seed)} of 'random' is not a decimal integer from 0 up (7)")
    heads = np.ones(shape, dtype=np.bool_) if candidates is None else _listed(candidates, shape)
    among = [(int(layer), int(head)) for layer, head in np.argwhere(heads)]
    # Exact: 0.145 of 100 heads is 14.5 and rounds up, which the nearest binary fraction would not.
    exact = Context(prec=len(fraction) + 20)
    count = int(exact.fma(Decimal(fraction), Decimal(len(among)), Decimal("0.5")))

    seeded = hashlib.sha256(f"{seed.lstrip('0') or '0'}:".encode())

    def digest(head: tuple[int, int]) -> bytes:
        hashed = seeded.copy()
        hashed.update(f"{head[0]}.{head[1]}".encode())
        return hashed.digest()

    off = np.zeros(shape, dtype=np.bool_)
    for drawn in sorted(among, key=digest)[:count]:
        off[drawn] = True
    return off


def _from_json(form: Mapping[str, object], shape: tuple[int, int]) -> HeadMask:
    if len(form) != 1 or (key := next(iter(form))) not in ("off", "keep", "weights"):
        keys = ", ".join(_shown(key) for key in list(form)[:4]) or "no key"
        raise InvalidMask(f"an object has exactly one of the keys {_FORMS}, not {keys}")
    value = form[key]
    if not isinstance(value, list | tuple):
        raise InvalidMask(f"{key!r} is a list, not {_shown(value)}")
    if key == "weights":
        return _weights(value, shape)
    heads = _pairs(key, value, shape)
    return _off(heads if key == "off" else ~heads)


def _pairs(key: str, pairs: Sequence[object], shape: tuple[int, int]) -> _Heads:
    """The heads of a list of [layer, head] pairs."""
    _check_length(pairs, repr(key), "pairs")
    heads = np.zeros(shape, dtype=np.bool_)
    for number, pair in enumerate(pairs):
        match pair:
            case [int(layer), int(head)] if not isinstance(layer, bool) and not isinstance(head, bool):
                where = f" ({key}[{number}])"
                heads[_index(layer, "layer", shape, where), _index(head, "head", shape, where)] = True
            case _:
                raise InvalidMask(f"{key}[{number}] is {_shown(pair)}, not a pair of integers [layer, head]")
    return heads


def _weights(rows: Sequence[object], shape: tuple[int, int]) -> HeadMask:
    """The mask of a dense layers x heads matrix."""
    layers, heads = shape
    if len(rows) != layers:
        raise InvalidMask(f"'weights' has {len(rows)} rows; this model has {layers} layers, one row each")
    for layer, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != heads:
            raise InvalidMask(
                f"weights[{layer}] is {_shown(row)}; a row is a list of {heads} numbers, one a head"
            )
        for head, weight in enumerate(row):
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
                raise InvalidMask(f"weights[{layer}][{head}] is {_shown(weight)}, not a number from 0 to 1")
    return HeadMask.from_matrix(rows)  # type: ignore[arg-type]  # rows of numbers, as just checked


def _canonical(off: _Heads) -> str:
    """The canonical spec of the heads that are off."""
    items: list[str] = []
    for is_whole, group in groupby(range(len(off)), key=lambda layer: bool(off[layer].all())):
        if is_whole:
            items += [f"{run}.*" for run in _runs(group)]
        else:
            items += [f"{layer}.{run}" for layer in group for run in _runs(np.flatnonzero(off[layer]))]
    return ",".join(items) or "none"


def _runs(numbers: Iterable[int]) -> list[str]:
    """Ascending numbers as `a` and `a-b`, runs joined."""
    # Within a run of consecutive numbers, number minus position does not change.
    groups = groupby(enumerate(numbers), key=lambda pair: int(pair[1]) - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


def _check_length(value: Sequence[object], name: str, unit: str) -> None:
    if len(value) > _MAX_LENGTH:
        raise InvalidMask(f"{name} has {len(value):,} {unit}; the limit is {_MAX_LENGTH:,}")


def _shown(value: object) -> str:
    """The value as an error quotes it: at most about 40 characters, whatever was sent."""
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

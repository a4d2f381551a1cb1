"""The one grammar that names masks: specs such as `2.3,4.*,skip:6-11`, and the JSON forms `off`, `keep` and
`weights`, beside which `skip` and, if the mask is stored, `units` may stand."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from decimal import Context, Decimal
from itertools import chain, groupby
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, Field, Strict, StrictInt, ValidationError

from headroom.models.arrays import Bools, Floats32
from headroom.models.errors import InvalidMask

Heads = Bools
"""(layers, heads) or (layers, units), True for those that are named."""

Weights = Floats32
"""(layers, heads), 1 keeps a head and 0 switches it off."""

Shape = tuple[int, int]
"""(layers, heads) of a model, or (layers, units)."""

_MAX_LENGTH = 32_768
"""Far above what the heads of any model need, and short enough to parse while a request waits. The units of
a stored mask, which may be ten times as long, are parsed while none does."""

_SPACES = " \t\r\n"
_SPAN = r"(\*|[0-9]+(?:-[0-9]+)?)"
_ITEM = re.compile(rf"{_SPAN}\.{_SPAN}")
_SKIP = re.compile(rf"skip:{_SPAN}")
GENERATOR_PARTS = ("decoder", "cross")
"""The attentions of a query generator: masked self-attention, and encoder–decoder attention."""

_NAMES = {
    "weights": "a matrix; send the matrix as the JSON form 'weights'",
    "units": "a set of units; name the stored mask (@name) that holds it",
}
_RANDOM = re.compile(r"([^@/]*)@([^/]*)(?:/(.*))?", re.DOTALL)
_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")


MaskParts = tuple[Weights, set[int], Heads | None]
"""The content of a mask: weights of its heads; the layers that it skips; and the units that it switches off,
None if it says nothing about units."""

HOLDS = {  # the keys of a JSON form
    "off": "pairs of integers [layer, head]",
    "keep": "pairs of integers [layer, head]",
    "weights": "a list for each layer, of a number from 0 to 1 for each head",
    "skip": "the numbers of layers",
    "units": "the units that are off, such as '0.0-15,3.*'",
}
_HEADS = ("off", "keep", "weights")


_T = TypeVar("_T")
_Listed = Annotated[list[_T], Field(fail_fast=True)]  # thousands of errors would cost seconds


class _Form(BaseModel):
    """A JSON form whose numbers may be wrong for the model."""

    off: _Listed[tuple[StrictInt, StrictInt]] = []
    keep: _Listed[tuple[StrictInt, StrictInt]] = []
    weights: _Listed[_Listed[Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]]] = []
    skip: _Listed[StrictInt] = []
    units: str = ""


def generator_part(text: str) -> str | None:
    """Return the attention of a query generator whose heads a part of a spec lists; None: the encoder's."""
    name, colon, _ = text.partition(":")
    return name.strip(_SPACES) if colon and name.strip(_SPACES) in GENERATOR_PARTS else None


def stored_name(form: object) -> str | None:
    """Return NAME of the spec `@NAME`; None for any other form of a mask."""
    spec = form.strip(_SPACES) if isinstance(form, str) else ""
    return spec[1:] if spec.startswith("@") else None


def is_file(content: Mapping[str, object]) -> bool:
    """Return whether this is the content of a mask's file, as a study writes it: a spec or a JSON form stands
    under `mask`, and beside it what is known of it."""
    return "mask" in content and not content.keys() & HOLDS.keys()


def parts_of(value: object, shape: Shape, units: int | None = None) -> MaskParts:
    """Return what a spec such as `2.3,4.*` or a JSON form says.

    shape: (layers, heads) of the model. units: how many units each layer's feed-forward network has, for a
    stored mask, which may switch some off; None: the mask may not. Raises InvalidMask: one sentence that says
    what is wrong, where, and the valid range.
    """
    if isinstance(value, str):
        return _from_spec(value, shape)
    if not isinstance(value, Mapping):
        raise InvalidMask(
            f"a mask is a spec (2.3,4.*) or an object with one of {', '.join(_HEADS)}, not {shown(value)}"
        )
    form = _read(value, is_stored=units is not None)
    heads = [key for key in value if key in _HEADS]
    skipped = {index_of(layer, "layer", shape, f" (skip[{i}])") for i, layer in enumerate(form.skip)}
    weights = _weights(heads[0], form, shape) if heads else np.ones(shape, dtype=np.float32)
    if "units" not in value:
        return weights, skipped, None
    if units is None:
        raise InvalidMask("'units' is allowed in stored masks only; name one as @name")
    try:
        return weights, skipped, _listed(_items(form.units), (shape[0], units), "unit")
    except InvalidMask as error:
        raise InvalidMask(f"units: {error}") from None


def _read(value: Mapping[str, object], *, is_stored: bool) -> _Form:
    if not value or sum(key in _HEADS for key in value) > 1 or not value.keys() <= HOLDS.keys():
        keys = ", ".join(shown(key) for key in list(value)[:4]) or "no key"
        raise InvalidMask(
            f"an object has at most one of the keys off, keep and weights, and skip beside it, not {keys}"
        )
    for key, part in value.items():
        if isinstance(part, Sized) and not (is_stored and key == "units"):
            check_length(part, repr(key), "entries")
    try:
        return _Form.model_validate(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name, *indices = map(str, wrong["loc"])
        where = "".join([name, *(f"[{index}]" for index in indices)])
        raise InvalidMask(f"{where} is {shown(wrong['input'])}; {name!r} holds {HOLDS[name]}") from None


def _weights(key: str, form: _Form, shape: Shape) -> Weights:
    """Return the heads' weights, (layers, heads), that one of the keys gives."""
    if key == "weights":
        sizes: Sequence[int] = [len(row) for row in form.weights]
        if sizes != [shape[1]] * shape[0]:
            raise InvalidMask(
                f"'weights' holds {HOLDS[key]}: this model has {shape[0]} layers of {shape[1]} heads, not "
                f"{len(sizes)} of {' or '.join(map(str, sorted(set(sizes))[:3])) or 'none'}"
            )
        return np.array(form.weights, dtype=np.float32)
    heads = np.zeros(shape, dtype=np.bool_)
    for number, (layer, head) in enumerate(form.off or form.keep):
        where = f" ({key}[{number}])"
        heads[index_of(layer, "layer", shape, where), index_of(head, "head", shape, where)] = True
    return (heads if key == "keep" else ~heads).astype(np.float32)


def _from_spec(spec: str, shape: Shape) -> MaskParts:
    """Return what a spec such as `2.3,4.*,skip:6-11` says."""
    spec = spec.strip(_SPACES)
    if not spec:
        raise InvalidMask("the spec is empty; 'none' keeps every head")
    if any(map(generator_part, spec.split(";"))):
        raise InvalidMask(
            "decoder: and cross: name heads of a query generator, which act on generated queries alone "
            "(condense with the method generate)"
        )
    off = np.zeros(shape, dtype=np.bool_)
    skipped = set[int]()
    if spec != "none":
        for item in _items(spec):
            if item.text.startswith("skip:"):
                match = _SKIP.fullmatch(item.text)
                if not match:
                    raise InvalidMask(
                        f"{shown(item.text)} is not skip:layers (such as skip:3 or skip:6-11); this model "
                        f"has {_range('layer', shape)}"
                    )
                skipped.update(range(shape[0])[_span(match[1], "layer", shape, item.where)])
        rest = (item for item in _items(spec) if not item.text.startswith("skip:"))
        if first := next(rest, None):
            if first.text.startswith("random:"):
                off = _random(first, rest, shape)
            else:
                names_kept = first.text.startswith("keep:")
                first = first._replace(text=first.text.removeprefix("keep:").strip(_SPACES))
                off = _listed(chain([first], rest), shape) != names_kept
    return (~off).astype(np.float32), skipped, None


class _Item(NamedTuple):
    """One item of a comma-separated list, and its number, from 1. is_only: whether the list has no other."""

    text: str
    number: int
    is_only: bool

    @property
    def where(self) -> str:
        """Return how an error points to the item."""
        return "" if self.is_only else f" (item {self.number}, {shown(self.text)})"


def _items(text: str) -> Iterator[_Item]:
    """Yield the items of a list one by one.

    Thousands kept at once would make Python search the whole process for garbage while a request waits.
    """
    texts = text.split(",")
    for number, item in enumerate(texts, start=1):
        yield _Item(item.strip(_SPACES), number, len(texts) == 1)


def _listed(items: Iterable[_Item], shape: Shape, axis: str = "head") -> Heads:
    """Return what a list such as `2.3,4.0-5,7.*` names, (layers, heads) or (layers, units) bool.

    shape: (layers, heads or units). axis: head or unit. Raises InvalidMask for a wrong item.
    """
    heads = np.zeros(shape, dtype=np.bool_)
    for item in items:
        match = _ITEM.fullmatch(item.text)
        if not match:
            kind, colon, _ = item.text.partition(":")
            if colon and kind in _NAMES:
                raise InvalidMask(f"{shown(item.text)} only names {_NAMES[kind]}")
            wrong = shown(item.text) if item.text else f"item {item.number}, which is empty,"
            raise InvalidMask(
                f"{wrong} is not layer.{axis} (such as 2.3, 6-11.* or *.0); this model has "
                f"{_range('layer', shape)} and {_range(axis, shape)}"
            )
        heads[_span(match[1], "layer", shape, item.where), _span(match[2], axis, shape, item.where)] = True
    return heads


def _span(text: str, axis: str, shape: Shape, where: str) -> slice:
    """Return `*`, `a` or `a-b` as a slice of layers, heads or units."""
    if text == "*":
        return slice(None)
    first, _, last = text.partition("-")
    start = index_of(first, axis, shape, where)
    stop = index_of(last, axis, shape, where) if last else start
    if start > stop:
        raise InvalidMask(f"the {axis} range {start}-{stop} runs backwards; write {stop}-{start}{where}")
    return slice(start, stop + 1)


def index_of(number: str | int, axis: str, shape: Shape, where: str) -> int:
    """Return a layer, head or unit of the model, given as decimal digits or as an int."""
    try:
        index = int(number)
    except ValueError:  # int() refuses so many digits; no model has so many
        index = -1
    if not 0 <= index < shape[axis != "layer"]:
        quoted = _shortened(number) if isinstance(number, str) else shown(number)
        raise InvalidMask(f"{axis} {quoted} does not exist; this model has {_range(axis, shape)}{where}")
    return index


def _range(axis: str, shape: Shape) -> str:
    """Return the valid range of an axis in words, such as `layers 0 to 11`."""
    size = shape[axis != "layer"]
    return f"{axis}s 0 to {size - 1}" if size > 1 else f"only {axis} 0"


def _random(first: _Item, others: Iterator[_Item], shape: Shape) -> Heads:
    """Return the heads that `random:fraction@seed` or `random:fraction@seed/list` draws; every
    implementation draws the same ones. others: the items that follow."""
    match = _RANDOM.fullmatch(first.text.removeprefix("random:"))
    if not match:
        raise InvalidMask(f"{shown(first.text)} has no seed; write random:fraction@seed (random:0.2@7)")
    fraction, seed, candidates = match.groups()
    if not _DECIMAL.fullmatch(fraction) or Decimal(fraction) > 1:
        raise InvalidMask(f"the fraction {shown(fraction)} of 'random' is not a decimal from 0 to 1 (0.2)")
    if not (seed.isascii() and seed.isdigit()):
        raise InvalidMask(f"the seed {shown(seed)} of 'random' is not a decimal integer from 0 up (7)")
    if candidates is None:
        if extra := next(others, None):
            raise InvalidMask(
                f"{shown(extra.text)} follows 'random', which takes a list of heads only after a slash "
                "(random:0.2@7/0-5.*)"
            )
        heads = np.ones(shape, dtype=np.bool_)
    else:
        heads = _listed(chain([first._replace(text=candidates.strip(_SPACES))], others), shape)
    pairs = [(int(layer), int(head)) for layer, head in np.argwhere(heads)]
    # Decimal, because 0.145 of 100 heads is 14.5 and rounds up; in binary it is less and rounds down.
    exact = Context(prec=len(fraction) + 20)
    count = int(exact.fma(Decimal(fraction), Decimal(len(pairs)), Decimal("0.5")))

    seeded = hashlib.sha256(f"{seed.lstrip('0') or '0'}:".encode())

    def digest(head: tuple[int, int]) -> bytes:
        hashed = seeded.copy()
        hashed.update(f"{head[0]}.{head[1]}".encode())
        return hashed.digest()

    off = np.zeros(shape, dtype=np.bool_)
    for drawn in sorted(pairs, key=digest)[:count]:
        off[drawn] = True
    return off


def canonical(off: Heads) -> str:
    """Return the canonical list of the heads (or units) that are off: `none` if there are none."""
    items: list[str] = []
    for is_whole, group in groupby(range(len(off)), key=lambda layer: bool(off[layer].all())):
        if is_whole:
            items += [f"{run}.*" for run in runs(group)]
        else:
            items += [f"{layer}.{run}" for layer in group for run in runs(np.flatnonzero(off[layer]))]
    return ",".join(items) or "none"


def runs(numbers: Iterable[int]) -> list[str]:
    """Return ascending numbers as `a`, and runs of consecutive ones as `a-b`."""
    # Within a run of consecutive numbers, number minus position does not change.
    groups = groupby(enumerate(numbers), key=lambda pair: int(pair[1]) - pair[0])
    members = [[number for _, number in group] for _, group in groups]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in members]


def check_length(value: Sized, name: str, unit: str) -> None:
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

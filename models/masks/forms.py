"""The JSON forms of masks: `off`, `keep` or `weights`, and beside it `skip` and, if stored, `units`."""

from collections.abc import Mapping, Sequence

import numpy as np

from models.errors import InvalidMask
from models.masks.grammar import (
    Heads,
    Parts,
    Weights,
    check_length,
    from_spec,
    index_of,
    named,
    off_weights,
    shown,
)

_HEADS = ("off", "keep", "weights")
KEYS = (*_HEADS, "skip", "units")
"""The keys of a JSON form."""


def parts_of(value: object, shape: tuple[int, int], units: int | None = None) -> Parts:
    """Return what a spec such as `2.3,4.*` or a JSON form says.

    shape: (layers, heads) of the model. units: how many units each layer's feed-forward network has, for a
    stored mask, which may switch some off; None: the mask may not. Raises InvalidMask: one sentence that says
    what is wrong, where, and the valid range.
    """
    if isinstance(value, str):
        return from_spec(value, shape)
    if isinstance(value, Mapping):
        return _from_json(value, shape, units)
    raise InvalidMask(
        f"a mask is a spec (2.3,4.*) or an object with one of {', '.join(_HEADS)}, not {shown(value)}"
    )


def _from_json(form: Mapping[str, object], shape: tuple[int, int], units: int | None) -> Parts:
    heads = [key for key in form if key in _HEADS]
    if not form or len(heads) > 1 or not all(key in KEYS for key in form):
        keys = ", ".join(shown(key) for key in list(form)[:4]) or "no key"
        raise InvalidMask(
            f"an object has at most one of the keys off, keep and weights, and skip beside it, not {keys}"
        )
    for key in form:
        if key != "units" and not isinstance(form[key], list | tuple):
            raise InvalidMask(f"{key!r} is a list, not {shown(form[key])}")
    return Parts(
        _weights_of(heads[0], form[heads[0]], shape) if heads else np.ones(shape, dtype=np.float32),
        _skip(form.get("skip", ()), shape),
        _units(form["units"], shape[0], units) if "units" in form else None,
    )


def _weights_of(key: str, value: object, shape: tuple[int, int]) -> Weights:
    assert isinstance(value, list | tuple)
    if key == "weights":
        return _weights(value, shape)
    heads = _pairs(key, value, shape)
    return off_weights(heads if key == "off" else ~heads)


def _skip(layers: object, shape: tuple[int, int]) -> Heads:
    """Return the layers of a list of layer numbers, (layers,) bool."""
    assert isinstance(layers, list | tuple)
    check_length(layers, "'skip'", "layers")
    skipped = np.zeros(shape[0], dtype=np.bool_)
    for number, layer in enumerate(layers):
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise InvalidMask(f"skip[{number}] is {shown(layer)}, not the number of a layer")
        skipped[index_of(layer, "layer", shape, f" (skip[{number}])")] = True
    return skipped


def _units(value: object, layers: int, units: int | None) -> Heads:
    """Return the units that a list such as `0.0-15,3.*` switches off, (layers, units) bool."""
    if units is None:
        raise InvalidMask("'units' is allowed in stored masks only; name one as @name")
    if not isinstance(value, str):
        raise InvalidMask(
            f"'units' is a list of units that are off, such as '0.0-15,3.*', not {shown(value)}"
        )
    try:
        return named(value, (layers, units), "unit")
    except InvalidMask as error:
        raise InvalidMask(f"units: {error}") from None


def _pairs(key: str, pairs: Sequence[object], shape: tuple[int, int]) -> Heads:
    """Return the heads of a list of [layer, head] pairs."""
    check_length(pairs, repr(key), "pairs")
    heads = np.zeros(shape, dtype=np.bool_)
    for number, pair in enumerate(pairs):
        match pair:
            case [int(layer), int(head)] if not isinstance(layer, bool) and not isinstance(head, bool):
                where = f" ({key}[{number}])"
                heads[index_of(layer, "layer", shape, where), index_of(head, "head", shape, where)] = True
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

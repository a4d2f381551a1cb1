"""The JSON forms of masks: `off`, `keep` or `weights`, and beside it `skip` and, if stored, `units`."""

from collections.abc import Mapping, Sequence, Sized
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, Strict, StrictInt, ValidationError

from models.errors import InvalidMask
from models.masks.grammar import (
    Parts,
    Weights,
    check_length,
    from_spec,
    index_of,
    items,
    listed,
    off_weights,
    shown,
)

HOLDS = {
    "off": "pairs of integers [layer, head]",
    "keep": "pairs of integers [layer, head]",
    "weights": "a list for each layer, of a number from 0 to 1 for each head",
    "skip": "the numbers of layers",
    "units": "the units that are off, such as '0.0-15,3.*'",
}
_HEADS = ("off", "keep", "weights")
KEYS = tuple(HOLDS)
"""The keys of a JSON form."""


class _Form(BaseModel):
    """A JSON form whose numbers may be wrong for the model."""

    model_config = ConfigDict(extra="forbid")

    off: list[tuple[StrictInt, StrictInt]] = []
    keep: list[tuple[StrictInt, StrictInt]] = []
    weights: list[list[Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]]] = []
    skip: list[StrictInt] = []
    units: str = ""


def parts_of(value: object, shape: tuple[int, int], units: int | None = None) -> Parts:
    """Return what a spec such as `2.3,4.*` or a JSON form says.

    shape: (layers, heads) of the model. units: how many units each layer's feed-forward network has, for a
    stored mask, which may switch some off; None: the mask may not. Raises InvalidMask: one sentence that says
    what is wrong, where, and the valid range.
    """
    if isinstance(value, str):
        return from_spec(value, shape)
    if not isinstance(value, Mapping):
        raise InvalidMask(
            f"a mask is a spec (2.3,4.*) or an object with one of {', '.join(_HEADS)}, not {shown(value)}"
        )
    form, heads = _read(value), [key for key in value if key in _HEADS]
    skipped = np.zeros(shape[0], dtype=np.bool_)
    for number, layer in enumerate(form.skip):
        skipped[index_of(layer, "layer", shape, f" (skip[{number}])")] = True
    weights = _weights(heads[0], form, shape) if heads else np.ones(shape, dtype=np.float32)
    if "units" not in value:
        return Parts(weights, skipped)
    if units is None:
        raise InvalidMask("'units' is allowed in stored masks only; name one as @name")
    try:
        return Parts(weights, skipped, listed(items(form.units), (shape[0], units), "unit"))
    except InvalidMask as error:
        raise InvalidMask(f"units: {error}") from None


def _read(value: Mapping[str, object]) -> _Form:
    if not value or sum(key in _HEADS for key in value) > 1 or not all(key in KEYS for key in value):
        keys = ", ".join(shown(key) for key in list(value)[:4]) or "no key"
        raise InvalidMask(
            f"an object has at most one of the keys off, keep and weights, and skip beside it, not {keys}"
        )
    for key, part in value.items():
        if isinstance(part, Sized):
            check_length(part, repr(key), "entries")
    try:
        return _Form.model_validate(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name, *indices = map(str, wrong["loc"])
        where = "".join([name, *(f"[{index}]" for index in indices)])
        raise InvalidMask(f"{where} is {shown(wrong['input'])}; {name!r} holds {HOLDS[name]}") from None


def _weights(key: str, form: _Form, shape: tuple[int, int]) -> Weights:
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
    return off_weights(heads if key == "off" else ~heads)

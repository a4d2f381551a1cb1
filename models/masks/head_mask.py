"""Head masks: a weight in [0, 1] for each attention head, layers to skip, and units to switch off; and the
masks of a batch's rows, as arrays that the network reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from headroom.models.arrays import Bools, Floats32
from headroom.models.errors import InvalidMask
from headroom.models.files import Json
from headroom.models.masks.grammar import (
    Shape,
    canonical,
    check_length,
    is_file,
    parts_of,
    runs,
    shown,
    stored_name,
)


@dataclass(frozen=True, eq=False, repr=False)
class HeadMask:
    """A weight for each head, 1 keeps it and 0 switches it off; and what else of the network is off.

    matrix: float32 (layers, heads), finite numbers in [0, 1], read-only; 0 for the heads of skipped layers.
    skipped: the layers, ascending, that pass their input on unchanged: no attention, no feed-forward network.
    units_off: bool (layers, units), read-only, True for each unit of a feed-forward network whose activation
        becomes 0; False in skipped layers. None if no unit is off.
    Masks are equal if all three are. Raises InvalidMask for anything else.
    """

    matrix: Floats32
    skipped: tuple[int, ...] = ()
    units_off: Bools | None = None

    def __post_init__(self) -> None:
        try:
            weights = np.array(self.matrix, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InvalidMask("the weights are not a matrix of numbers, one row per layer") from None
        if weights.ndim != 2 or weights.size == 0:
            raise InvalidMask(f"the weights have shape {weights.shape}; the valid shape is (layers, heads)")
        if not ((weights >= 0) & (weights <= 1)).all():
            raise InvalidMask("a weight is outside the valid range, finite numbers from 0 to 1")
        # Adding 0 turns -0.0 into 0.0: the id is a hash of the bytes, so equal masks need equal bytes.
        matrix = weights.astype(np.float32) + np.float32(0)
        skipped = tuple(sorted({int(layer) for layer in self.skipped}))
        if skipped and not 0 <= skipped[0] <= skipped[-1] < len(matrix):
            raise InvalidMask(f"the skipped layers {skipped} are not all among layers 0 to {len(matrix) - 1}")
        matrix[list(skipped)] = 0
        matrix.flags.writeable = False
        units = None if self.units_off is None else np.array(self.units_off)
        if units is not None:
            if units.dtype != np.bool_ or units.ndim != 2 or len(units) != len(matrix):
                raise InvalidMask(
                    f"units_off has dtype {units.dtype} and shape {units.shape}; it is bool and has the "
                    f"shape ({len(matrix)}, units)"
                )
            units[list(skipped)] = False
            units.flags.writeable = False
            units = units if units.any() else None
        for name, value in (("matrix", matrix), ("skipped", skipped), ("units_off", units)):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(
        cls,
        value: str | Mapping[str, object],
        *,
        layers: int,
        heads: int,
        units: int | None = None,
        stored: Mapping[str, HeadMask] = MappingProxyType({}),
    ) -> HeadMask:
        """Return the mask of a spec such as `2.3,skip:6-11` or of a JSON form such as `{"off": [[2, 3]]}`.

        layers, heads: the model's shape. units: of each layer's feed-forward network, if the mask is a stored
        one, which may switch units off: `{"units": "0.0-15,3.*"}`. It may also be the content of a file, with
        the spec or form under `mask`; an `id` in it must be the mask's, which differs for another shape.
        stored: the model's masks by name, for `@name`.
        Raises InvalidMask: one sentence that says what is wrong, where, and the valid range.
        """
        if units is not None and isinstance(value, Mapping) and is_file(value):
            mask = cls._parsed(value["mask"], (layers, heads), units, stored)  # type: ignore[arg-type]
            if value.get("id", mask.id) != mask.id:
                raise InvalidMask(
                    f"the mask was made for another shape: its id is {shown(value['id'])}, and for the "
                    f"{layers} layers of {heads} heads and {units} units of this model it would be {mask.id}"
                )
            return mask
        return cls._parsed(value, (layers, heads), units, stored)

    @classmethod
    def _parsed(
        cls,
        value: str | Mapping[str, object],
        shape: Shape,
        units: int | None,
        stored: Mapping[str, HeadMask],
    ) -> HeadMask:
        """Return the mask of a spec or a JSON form. shape: (layers, heads). stored: masks by name."""
        if isinstance(value, str):
            check_length(value, "the spec", "characters")
        if (name := stored_name(value)) is not None:
            if name not in stored:
                names = ", ".join(sorted(stored)[:20]) or "none"
                raise InvalidMask(f"no mask is stored as {shown(name)}; this model's stored masks: {names}")
            return stored[name]
        weights, skipped, units_off = parts_of(value, shape, units)
        return cls(weights, tuple(skipped), units_off)

    @classmethod
    def none(cls, layers: int, heads: int) -> HeadMask:
        """Return the mask that keeps every head."""
        return cls(np.ones((layers, heads), dtype=np.float32))

    @property
    def layers(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def heads(self) -> int:
        """Return the number of heads per layer."""
        return int(self.matrix.shape[1])

    @cached_property
    def heads_on(self) -> int:
        """Return how many heads have a weight above 0."""
        return int(np.count_nonzero(self.matrix))

    @property
    def layers_kept(self) -> tuple[int, ...]:
        """Return the layers that are computed, ascending."""
        return tuple(layer for layer in range(self.layers) if layer not in self.skipped)

    def units_on(self, units: int | Sequence[int]) -> int:
        """Return how many feed-forward units are on. units: how many each layer has, or one for all."""
        widths = np.broadcast_to(units, self.layers).copy()
        widths[list(self.skipped)] = 0
        if self.units_off is not None:  # none of a skipped layer
            widths -= [int(off[:width].sum()) for off, width in zip(self.units_off, widths, strict=True)]
        return int(widths.sum())

    @cached_property
    def is_none(self) -> bool:
        """Return whether the mask changes nothing."""
        return self.units_off is None and bool((self.matrix == 1).all())

    @cached_property
    def structure(self) -> bytes:
        """Return a digest of all that is off but heads; empty if nothing is. Rows of one batch share it."""
        if not self.skipped and self.units_off is None:
            return b""
        units = b"" if self.units_off is None else self.units_off.tobytes()
        return hashlib.sha256(repr(self.skipped).encode() + units).digest()

    @cached_property
    def off(self) -> tuple[tuple[int, int], ...]:
        """Return the (layer, head) pairs that are off, ascending; all of a skipped layer are."""
        return tuple((int(layer), int(head)) for layer, head in np.argwhere(self.matrix == 0))

    @cached_property
    def id(self) -> str:
        """Return the first 12 hex digits of SHA-256 of the matrix (little-endian float32, layer by layer).

        If layers are skipped or units are off, one byte for each layer follows the matrix: 0 if it is
        skipped, else 1. If units are off, one byte for each unit follows, layer by layer: 0 if it is off,
        else 1; in skipped layers all are 1.
        """
        content = self.matrix.astype("<f4").tobytes()
        if self.structure:
            content += bytes(layer not in self.skipped for layer in range(self.layers))
        if self.units_off is not None:
            content += (~self.units_off).tobytes()
        return hashlib.sha256(content).hexdigest()[:12]

    @cached_property
    def spec(self) -> str:
        """Return the canonical spec: what is off, and `none` if nothing is.

        Heads come first, then skipped layers, whose heads are not listed again. If no unit is off and every
        weight is 0 or 1, it parses back to this mask; else `units:` or `weights:` and the id name the rest.
        """
        heads = canonical(self._heads_off) if self._is_binary else f"weights:{self.id}"
        items = [] if heads == "none" else [heads]
        items += [f"skip:{run}" for run in runs(self.skipped)]
        if self.units_off is not None:
            items.append(f"units:{self.id}")
        return ",".join(items) or "none"

    def to_json(self) -> Json:
        """Return the JSON form that parses back to this mask: `off` if it is binary, else `weights`; and
        `skip` and `units` if it has any."""
        form: Json = (
            {"off": np.argwhere(self._heads_off).tolist()}
            if self._is_binary
            else {"weights": self.matrix.tolist()}
        )
        if self.skipped:
            form["skip"] = list(self.skipped)
        if self.units_off is not None:
            form["units"] = canonical(self.units_off)
        return form

    @property
    def _is_binary(self) -> bool:
        return bool(((self.matrix == 0) | (self.matrix == 1)).all())

    @property
    def _heads_off(self) -> Bools:
        """Return the heads that are off in layers that are computed, (layers, heads) bool."""
        off: Bools = self.matrix == 0
        off[list(self.skipped)] = False
        return off

    def __mul__(self, other: HeadMask) -> HeadMask:
        """Return both masks combined: the product of the weights, and off is what either switches off.

        Raises InvalidMask if the shapes differ.
        """
        units_off = other.units_off if self.units_off is None else self.units_off
        check_fits(other, self.layers, self.heads, 0 if units_off is None else units_off.shape[1])
        if self.units_off is not None and other.units_off is not None:
            units_off = self.units_off | other.units_off
        return HeadMask(self.matrix * other.matrix, self.skipped + other.skipped, units_off)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HeadMask)
            and self.skipped == other.skipped
            and np.array_equal(self.matrix, other.matrix)
            and np.array_equal(self.units_off, other.units_off)  # type: ignore[arg-type]
        )

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"HeadMask({self.spec!r}, layers={self.layers}, heads={self.heads})"


def check_fits(mask: HeadMask, layers: int, heads: int, units: int) -> None:
    """Raise InvalidMask unless a mask is for a model of this shape. units: of its widest layer."""
    for name, ours, theirs in (("heads", mask.matrix, heads), ("units", mask.units_off, units)):
        if ours is not None and ours.shape != (layers, theirs):
            raise InvalidMask(
                f"the mask is for {ours.shape[0]} layers of {ours.shape[1]} {name}; this model has "
                f"{layers} of {theirs}"
            )


def heads_of(spec: str, layers: int, heads: int) -> tuple[tuple[int, int], ...]:
    """Return the heads of a list such as `2.3,4.*` as (layer, head), ascending: a mask of this spec switches
    them off.

    layers, heads: the model's shape. Raises InvalidMask if it is no such list, or empty.
    """
    if stored_name(spec) is not None:
        raise InvalidMask("names a stored mask; list heads, such as 2.3,4.*")
    mask = HeadMask.parse(spec, layers=layers, heads=heads)
    if mask.skipped:
        raise InvalidMask("names layers with skip:; list heads, such as 2.3,4.*")
    if not mask.off:
        raise InvalidMask("names no head; list some, such as 2.3,4.*")
    return mask.off

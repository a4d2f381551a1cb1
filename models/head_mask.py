"""Head masks: a weight in [0, 1] for each attention head."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from models.errors import InvalidMask
from models.mask_grammar import canonical, shown, stored_name, weights_of

_NO_MASKS: Mapping[str, HeadMask] = MappingProxyType({})


@dataclass(frozen=True, eq=False, repr=False)
class HeadMask:
    """A weight for each head: 1 keeps it, 0 switches it off.

    matrix: float32 (layers, heads), finite numbers in [0, 1], read-only. Masks are equal if their matrices
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
        # Adding 0 turns -0.0 into 0.0: the id is a hash of the bytes, so equal masks need equal bytes.
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
        """Return the mask of a spec such as `2.3,4.*` or of a JSON form such as `{"off": [[2, 3]]}`.

        layers, heads: the model's shape. stored: the model's masks by name, for `@name`.
        Raises InvalidMask: one sentence that says what is wrong, where, and the valid range.
        """
        if isinstance(value, str) and (name := stored_name(value)) is not None:
            if name not in stored:
                names = ", ".join(sorted(stored)[:20]) or "none"
                raise InvalidMask(f"no mask is stored as {shown(name)}; this model's stored masks: {names}")
            return stored[name]
        return cls(weights_of(value, (layers, heads)))

    @classmethod
    def none(cls, layers: int, heads: int) -> HeadMask:
        """Return the mask that keeps every head."""
        return cls(np.ones((layers, heads), dtype=np.float32))

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike) -> HeadMask:
        """Return the mask with these weights, (layers, heads). Raises InvalidMask as the class does."""
        return cls(matrix)  # type: ignore[arg-type]  # the class converts it to an array

    @property
    def layers(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def heads(self) -> int:
        """Return the number of heads per layer."""
        return int(self.matrix.shape[1])

    @property
    def heads_on(self) -> int:
        """Return how many heads have a weight above 0."""
        return int(np.count_nonzero(self.matrix))

    @property
    def is_none(self) -> bool:
        """Return whether every weight is 1."""
        return bool((self.matrix == 1).all())

    @cached_property
    def off(self) -> tuple[tuple[int, int], ...]:
        """Return the (layer, head) pairs that are switched off, ascending."""
        return tuple((int(layer), int(head)) for layer, head in np.argwhere(self.matrix == 0))

    @cached_property
    def id(self) -> str:
        """Return the first 12 hex digits of SHA-256 of the matrix (little-endian float32, layer by layer)."""
        return hashlib.sha256(self.matrix.astype("<f4").tobytes()).hexdigest()[:12]

    @cached_property
    def spec(self) -> str:
        """Return the canonical spec. It parses back to this mask if every weight is 0 or 1."""
        return canonical(self.matrix == 0) if self._is_binary else f"weights:{self.id}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that parses back to this mask: `off` if it is binary, else `weights`."""
        if self._is_binary:
            return {"off": [list(head) for head in self.off]}
        return {"weights": self.matrix.tolist()}

    @property
    def _is_binary(self) -> bool:
        return bool(((self.matrix == 0) | (self.matrix == 1)).all())

    def __mul__(self, other: HeadMask) -> HeadMask:
        """Return both masks combined: the product of the weights. Raises InvalidMask if the shapes differ."""
        if self.matrix.shape != other.matrix.shape:
            raise InvalidMask(f"a mask of shape {other.matrix.shape} does not fit one of {self.matrix.shape}")
        return HeadMask(self.matrix * other.matrix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeadMask) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"HeadMask({self.spec!r}, layers={self.layers}, heads={self.heads})"

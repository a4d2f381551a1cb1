"""Scores of how far apart two tokens are: DeBERTa's disentangled attention, and ALiBi's slopes.

    score(i, j) = (q_i·k_j + q_i·K[t] + k_j·Q[t]) / √(d·terms) − slope·|i − j|,   t = order[j − i]

Row t of K and Q stands for a distance, or for a bucket of distances that are far (He et al. 2021,
https://arxiv.org/abs/2006.03654; Press et al. 2022, https://arxiv.org/abs/2108.12409). Our attention kernel
reads the tables in another form (`native/relative.h`).
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS, _SPARE = 16, 32
"""The rows of a kernel's table are filled up to a multiple of the first, and so many more zeros follow."""


@dataclass(frozen=True, eq=False)
class Relative:
    """Additions of one layer's h heads to their scores.

    keys: (h, W, d), K of queries (content to position); queries: (h, W, d), Q of keys (position to content).
    order: (2·reach + 1,) int32, the row for each distance j − i from −reach to reach, ascending.
    straight: up to this distance, neighbouring distances have neighbouring rows.
    terms: how many kinds of scores are summed up.
    slopes: (h,) float32. laid_out: what the function of this name made, with and without tiles.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    order: Tensor | None = None
    straight: int = 0
    terms: int = 1
    slopes: Tensor | None = None
    laid_out: dict[bool, Any] = field(init=False, repr=False, default_factory=dict)

    def only(self, heads: Sequence[int]) -> Self:
        """Return what some heads add. heads: their positions."""
        index = torch.tensor(heads, dtype=torch.int64)
        keys, queries, slopes = (
            None if part is None else part[index.to(part.device)]
            for part in (self.keys, self.queries, self.slopes)
        )
        return replace(self, keys=keys, queries=queries, slopes=slopes)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tables."""
        tables = [table for table in (self.keys, self.queries) if table is not None]
        return sum(table.numel() * table.element_size() for table in tables)

    def bias(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return what is added to q·kᵀ/√(d·terms), (…, h, n, n); None: nothing. query, key: (…, h, n, d)."""
        position = torch.arange(key.shape[-2], device=key.device)
        distance = position - position[:, None]
        found: Tensor | None = None
        if self.order is not None:
            row = self.order[distance + len(self.order) // 2].long()  # (n, n)
            scale = (query.shape[-1] * self.terms) ** -0.5
            if self.keys is not None:
                to_position = query @ self.keys.to(query.dtype).mT  # (…, h, n, W)
                found = to_position.gather(-1, row.expand(*query.shape[:-1], -1)) * scale
            if self.queries is not None:
                to_content = key @ self.queries.to(key.dtype).mT  # (…, h, n, W)
                of_keys = to_content.gather(-1, row.mT.expand(*key.shape[:-1], -1)).mT * scale
                found = of_keys if found is None else found + of_keys
        if self.slopes is not None:
            slope = -self.slopes[:, None, None] * distance.abs()
            found = slope.to(query.dtype) if found is None else found + slope
        return found


def log_buckets(span: int, buckets: int, largest: int, reach: int) -> Tensor:
    """Return `Relative.order` for tables of 2·span rows: (2·reach + 1,) int32.

    Without buckets (≤ 0) each distance has a row, and those beyond the span share the last one. With them,
    the nearer half of the rows are single distances; the others grow by a factor, up to `largest`.
    """
    distance = torch.arange(-reach, reach + 1)
    bucket = distance
    if buckets > 0 and largest > 0:
        middle = buckets // 2
        far = distance.abs().clamp(min=middle)
        growth = torch.log(far / middle) / torch.log(torch.tensor((largest - 1) / middle))
        beyond = torch.ceil(growth * (middle - 1)) + middle
        bucket = torch.where(distance.abs() <= middle, distance, (beyond * distance.sign()).long())
    return (bucket + span - 1).clamp(0, 2 * span - 1).int()


def alibi_slopes(heads: int) -> list[float]:
    """Return each head's slope: a geometric series for powers of two, and every other one of the next series
    for the heads beyond."""
    power = 1 << (heads.bit_length() - 1)
    series = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return series if power == heads else series + alibi_slopes(2 * power)[0::2][: heads - power]


class _Relative(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "queries", "order", "slopes")),
        *((name, ctypes.c_int64) for name in ("width", "steps", "reach", "straight", "terms")),
    )


def laid_out(relative: Relative, size: int, dtype: torch.dtype, *, tiles: bool) -> int:
    """Return the address of a layer's distances as the kernel reads them; they live as long as `relative`.

    size, dtype: of the queries' heads, and of the tables. tiles: whether the kernel multiplies bfloat16 on
    tiles.
    """
    if (found := relative.laid_out.get(tiles)) is not None:
        return ctypes.addressof(found[0])
    table = relative.queries if relative.keys is None else relative.keys
    rows, slopes, per_unit = 0 if table is None else table.shape[1], relative.slopes, 4 // dtype.itemsize
    steps = size // per_unit
    steps += -steps % 16 if tiles and per_unit == 2 else 0
    width = rows + -rows % _ROWS + _SPARE
    keys, queries = (_units(table, width, steps * per_unit) for table in (relative.keys, relative.queries))
    keys = None if keys is None else keys.mT.contiguous()
    parts = keys, queries, relative.order, None if slopes is None else slopes.contiguous()
    addresses = (None if part is None else part.data_ptr() for part in parts)
    reach = 0 if relative.order is None else len(relative.order) // 2
    found = _Relative(*addresses, width, steps, reach, relative.straight, relative.terms), parts
    relative.laid_out[tiles] = found
    return ctypes.addressof(found[0])


def _units(table: Tensor | None, width: int, columns: int) -> Tensor | None:
    """Return a table of heads, filled up with zeros, as numbers of 32 bits: (h, width, steps)."""
    if table is None:
        return None
    return (
        F.pad(table, (0, columns - table.shape[2], 0, width - table.shape[1])).contiguous().view(torch.int32)
    )

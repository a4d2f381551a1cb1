"""Scores of how far apart two tokens are: DeBERTa's disentangled attention, and ALiBi's slopes.

    score(i, j) = (q_i·k_j + q_i·K[t] + k_j·Q[t]) / √(d·terms) − slope·|i − j|,   t = order[j − i]

Row t of K and Q stands for a distance, or for a bucket of distances that are far (He et al. 2021,
https://arxiv.org/abs/2006.03654; Press et al. 2022, https://arxiv.org/abs/2108.12409). Our attention kernel
reads the tables in another form (`native/relative.h`).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

_UNIT = 4
"""Bytes of a unit, which holds one float32 or two bfloat16."""

_ROWS = 16
_SPARE = 32
"""The rows of a kernel's table are filled up to a multiple of the first, and so many more zeros follow."""


_ALIGNED = 8
"""A GPU multiplies matrices of a multiple of this many columns faster."""


class TableScores(NamedTuple):
    """Scores of each token and row of the tables: (…, h, n, rows), from `first_row` on.

    to_position: q_i·K[t]; to_content: k_j·Q[t].
    """

    to_position: Tensor
    to_content: Tensor
    first_row: int


@dataclass(frozen=True, eq=False)
class Relative:
    """Additions of one layer's h heads to their scores: those of tables, of slopes, or both.

    tables: K of queries (content to position), (h, W, d); Q of keys (position to content), (h, W, d); and
        order, (2·reach + 1,) int32, the row for each distance j − i from −reach to reach, ascending; W/2 − 1
        for distance 0.
    straight: up to this distance, neighbouring distances have neighbouring rows.
    slopes: (h,) float32. _for_kernel: what `kernel_tables` made, with and without tiles.
    """

    tables: tuple[Tensor, Tensor, Tensor] | None = None
    straight: int = 0
    slopes: Tensor | None = None
    _for_kernel: dict[bool, Any] = field(init=False, repr=False, default_factory=dict)

    def only(self, heads: Sequence[int]) -> Self:
        """Return what some heads add. heads: their indices."""
        slopes = self.slopes
        tables = self.tables
        if slopes is not None:
            slopes = slopes[torch.tensor(heads, device=slopes.device)]
        if tables is not None:
            index = torch.tensor(heads, device=tables[0].device)
            tables = tables[0][index], tables[1][index], tables[2]
        return replace(self, tables=tables, slopes=slopes)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the heads' tables, on a CPU with those of the copies that kernels read."""
        if self.tables is None:
            return 0
        keys, queries, _ = self.tables
        size = keys.nbytes + queries.nbytes
        if keys.device.type == "cpu":
            size += 2 * len(keys) * math.prod(_kernel_sizes(keys, keys.shape[2], tiles=True)) * _UNIT
        return size

    @property
    def terms(self) -> int:
        """Return how many kinds of scores are summed up before they are scaled."""
        return 1 if self.tables is None else 3

    def near(self, query: Tensor, key: Tensor, longest: int) -> TableScores:
        """Return the scores of the rows that sequences of up to `longest` tokens need; there are tables.

        query, key: (…, h, n, d).
        """
        assert self.tables is not None
        keys, queries, _ = self.tables
        rows = self._rows_within(longest - 1)
        return TableScores(
            to_position=query @ keys[:, rows.start : rows.stop].to(query.dtype).mT,
            to_content=key @ queries[:, rows.start : rows.stop].to(key.dtype).mT,
            first_row=rows.start,
        )

    def _rows_within(self, distance: int) -> range:
        """Return the rows of distances up to this one, and further ones up to a multiple of _ALIGNED."""
        assert self.tables is not None
        width = self.tables[0].shape[1]
        if distance > self.straight:
            return range(width)
        needed = 2 * distance + 1
        count = min(needed + -needed % _ALIGNED, width)
        first = min(width // 2 - 1 - distance, width - count)
        return range(first, first + count)

    def bias(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return what is added to q·kᵀ/√(d·terms), (…, h, n, n); None: nothing. query, key: (…, h, n, d).

        It has the dtype of the queries: CUDA's fused attention would read any other as if it had that.
        """
        position = torch.arange(key.shape[-2], device=key.device)
        distance = position - position[:, None]
        added: Tensor | None = None
        if self.tables is not None:
            order = self.tables[2]
            near = self.near(query, key, key.shape[-2])
            row = order[distance + len(order) // 2].long() - near.first_row  # (n, n)
            scale = (query.shape[-1] * self.terms) ** -0.5
            added = near.to_position.gather(-1, row.expand(*query.shape[:-1], -1)) * scale
            added = added + near.to_content.gather(-1, row.mT.expand(*key.shape[:-1], -1)).mT * scale
        if self.slopes is not None:
            slope = (-self.slopes[:, None, None] * distance.abs()).to(query.dtype)
            added = slope if added is None else added + slope
        return added


def log_buckets(buckets: int, largest: int, reach: int) -> Tensor:
    """Return the `order` of tables of 2·buckets rows: (2·reach + 1,) int32.

    The nearer half of the rows are single distances; the others grow by a factor, up to `largest`.
    """
    distance = torch.arange(-reach, reach + 1)
    middle = buckets // 2
    far = distance.abs().clamp(min=middle)
    growth = torch.log(far / middle) / torch.log(torch.tensor((largest - 1) / middle))
    beyond = torch.ceil(growth * (middle - 1)) + middle
    bucket = torch.where(distance.abs() <= middle, distance, (beyond * distance.sign()).long())
    return (bucket + buckets - 1).clamp(0, 2 * buckets - 1).int()


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


def _kernel_sizes(table: Tensor, size: int, *, tiles: bool) -> tuple[int, int]:
    """Return the units of a row of a kernel's table, and its rows, both filled up. size: of the heads."""
    per_unit = _UNIT // table.dtype.itemsize
    steps = size // per_unit
    if tiles and per_unit == 2:
        steps += -steps % _ROWS
    rows = table.shape[1]
    return steps, rows + -rows % _ROWS + _SPARE


def kernel_tables(relative: Relative, size: int, dtype: torch.dtype, *, tiles: bool) -> int:
    """Return the address of a layer's distances as the kernel reads them; they live as long as `relative`.

    size, dtype: of the queries' heads, and of the tables. tiles: whether the kernel multiplies bfloat16 on
    tiles.
    """
    cached = relative._for_kernel.get(tiles)
    if cached is not None:
        return ctypes.addressof(cached[0])
    per_unit = _UNIT // dtype.itemsize
    steps = size // per_unit
    width = 0
    reach = 0
    parts: list[Tensor | None] = [None, None, None]
    if relative.tables is not None:
        *tables, order = relative.tables
        rows = tables[0].shape[1]
        reach = len(order) // 2
        steps, width = _kernel_sizes(tables[0], size, tiles=tiles)
        fill = 0, steps * per_unit - tables[0].shape[2], 0, width - rows
        keys, queries = (F.pad(table, fill).contiguous().view(torch.int32) for table in tables)
        parts = [keys.mT.contiguous(), queries, order]  # (h, steps, width), (h, width, steps)
    parts.append(None if relative.slopes is None else relative.slopes.contiguous())
    addresses = (None if part is None else part.data_ptr() for part in parts)
    made = _Relative(*addresses, width, steps, reach, relative.straight, relative.terms), parts
    # Of threads that make it at once, all read the first one's: another one would be freed while it is read.
    return ctypes.addressof(relative._for_kernel.setdefault(tiles, made)[0])

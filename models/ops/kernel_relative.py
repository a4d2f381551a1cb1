"""Lays out the tables of `models.ops.relative` as our attention kernel reads them (`native/relative.h`)."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.relative import Relative

_ROWS, _SPARE = 16, 32
"""The rows of a table are filled up to a multiple of the first, and so many more zeros follow."""


class _Relative(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "queries", "order", "slopes")),
        *((name, ctypes.c_int64) for name in ("width", "steps", "reach", "straight", "terms")),
    )


def laid_out(relative: Relative, heads: int, size: int, dtype: torch.dtype, *, tiles: bool) -> int:
    """Return the address of a layer's distances as the kernel reads them; they live as long as `relative`.

    heads, size, dtype: of the queries. tiles: whether the kernel multiplies bfloat16 on tiles.
    Raises ValueError for tables of another form.
    """
    form = heads, size, dtype, tiles
    if (found := relative.laid_out.get(form)) is not None:
        return ctypes.addressof(found[0])
    tables = [table for table in (relative.keys, relative.queries) if table is not None]
    slopes = relative.slopes
    rows = tables[0].shape[1] if tables else 0
    if (
        any(table.shape != (heads, rows, size) or table.dtype is not dtype for table in tables)
        or (tables and (relative.order is None or int(relative.order.max()) >= rows))
        or (slopes is not None and (slopes.numel() != heads or slopes.dtype is not torch.float32))
    ):
        raise ValueError(f"tables of distances that are not of {heads} heads of {size} in {dtype}")
    per_unit = 4 // dtype.itemsize
    steps = size // per_unit
    steps += -steps % 16 if tiles and per_unit == 2 else 0
    width = rows + -rows % _ROWS + _SPARE
    keys, queries = (_units(table, width, steps * per_unit) for table in (relative.keys, relative.queries))
    keys = None if keys is None else keys.mT.contiguous()
    parts = keys, queries, relative.order, None if slopes is None else slopes.contiguous()
    addresses = (None if part is None else part.data_ptr() for part in parts)
    reach = 0 if relative.order is None else len(relative.order) // 2
    found = _Relative(*addresses, width, steps, reach, relative.straight, relative.terms), parts
    relative.laid_out[form] = found
    return ctypes.addressof(found[0])


def _units(table: Tensor | None, width: int, columns: int) -> Tensor | None:
    """Return a table of heads, filled up with zeros, as numbers of 32 bits: (h, width, steps)."""
    if table is None:
        return None
    return (
        F.pad(table, (0, columns - table.shape[2], 0, width - table.shape[1])).contiguous().view(torch.int32)
    )

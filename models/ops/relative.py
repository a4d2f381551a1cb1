"""Scores of how far apart two tokens are: DeBERTa's disentangled attention, and ALiBi's slopes.

    score(i, j) = (q_i·k_j + q_i·K[t] + k_j·Q[t]) / √(d·terms) − slope·|i − j|,   t = order[j − i]

Row t of K and Q stands for a distance, or for a bucket of distances that are far (He et al. 2021,
https://arxiv.org/abs/2006.03654; Press et al. 2022, https://arxiv.org/abs/2108.12409).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Relative:
    """Additions of one layer's h heads to their scores.

    keys: (h, W, d), K of queries (content to position); queries: (h, W, d), Q of keys (position to content).
    order: (2·reach + 1,) int32, the row for each distance j − i from −reach to reach, ascending.
    straight: up to this distance, neighbouring distances have neighbouring rows.
    terms: how many kinds of scores are summed up.
    slopes: (h,) float32. laid_out: the forms of the tables that `models.ops.kernel_relative` made.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    order: Tensor | None = None
    straight: int = 0
    terms: int = 1
    slopes: Tensor | None = None
    laid_out: dict[tuple[Any, ...], Any] = field(init=False, repr=False, default_factory=dict)

    def only(self, heads: Sequence[int]) -> Relative:
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
        """Return what is added to q·kᵀ/√(d·terms), (…, h, n, m); None for nothing.

        query: (…, h, n, d), the first n tokens; key: (…, h, m, d).
        """
        count, keys = query.shape[-2], key.shape[-2]
        distance = torch.arange(keys, device=key.device) - torch.arange(count, device=key.device)[:, None]
        found: Tensor | None = None
        if self.order is not None:
            row = self.order[distance + len(self.order) // 2].long()  # (n, m)
            scale = (query.shape[-1] * self.terms) ** -0.5
            if self.keys is not None:
                to_position = query @ self.keys.to(query.dtype).mT  # (…, h, n, W)
                found = to_position.gather(-1, row.expand(*query.shape[:-1], keys)) * scale
            if self.queries is not None:
                to_content = key @ self.queries.to(key.dtype).mT  # (…, h, m, W)
                of_keys = to_content.gather(-1, row.mT.expand(*key.shape[:-1], count)).mT * scale
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

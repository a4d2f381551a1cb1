"""Measures the network alone against the GEMM limit, with masks and pruned. `engines` has other engines."""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from benchmarks.measure import alternate, ratio
from benchmarks.peers.ours import float_products
from benchmarks.report import Report, Row, at_least
from benchmarks.workload import (
    BERT_SHAPES,
    PAIRS,
    SHAPES,
    Shape,
    document_lengths,
    encoder,
    network,
    pairs,
    query_title_lengths,
    random_masks,
    useful_flops,
)
from headroom.models.batch import pack
from headroom.models.masks.head_mask import HeadMask
from headroom.models.selection import RowMasks

OURS = "ours bf16"
MASKED = "ours bf16, another random mask for every pair (20 % off)"
MEASURED = {name: SHAPES[name] for name in (*BERT_SHAPES, "modernbert")}
WORKLOADS = {"titles": query_title_lengths(PAIRS), "documents": document_lengths(16)}
TARGET = 0.9
"""Minimum share of the GEMM limit, and of the FLOPs that a pruned variant removes and saves as time."""


def measure(rounds: int, shapes: Mapping[str, Shape] = MEASURED) -> Report:
    """Measure every shape on both workloads."""
    report = Report(
        "Titles: batches of 64 query–title pairs, 25 tokens in the mean; documents: of "
        "16 pairs of 96 to 128 tokens. *Saved*: the share of its time that a pruned variant saves, over the "
        "share of the FLOPs that it removes."
    )
    for name, shape in shapes.items():
        for workload, lengths in WORKLOADS.items():
            print(f"encoder: {shape.name}, {workload}", file=sys.stderr, flush=True)
            measure_one(report, name, shape, workload, lengths, rounds)
    return report


def measure_one(
    report: Report, name: str, shape: Shape, workload: str, lengths: np.ndarray, rounds: int
) -> None:
    """Add the rows and the table of one shape on sequences of these lengths."""
    masks = pruned_masks(shape)
    sides = sides_of(shape, lengths, masks)
    gemms, flops = float_products(shape, torch.bfloat16)
    seconds = alternate(sides | gemms, rounds, inner=1 if shape.hidden > 400 else 4, warm_ups=2)
    limit = flops / min(statistics.median(seconds[way]) for way in gemms)
    needed = {side: flops_under(masks.get(side), shape, lengths) for side in sides}
    share = {side: needed[side] / statistics.median(seconds[side]) / limit for side in sides}
    saved = {
        mask: (1 - 1 / ratio(seconds, mask, OURS).median) / (1 - needed[mask] / needed[OURS])
        for mask in masks
    }
    where = f"{shape.name}, {workload}"
    report.tables[where] = [
        {
            "engine": side,
            "pairs/s": f"{len(lengths) / statistics.median(seconds[side]):.0f}",
            "share of the bf16 GEMM limit": f"{share[side]:.0%}",
            f"× {OURS}": ratio(seconds, side, OURS).text(),
            "saved": f"{saved[side]:.0%}" if side in saved else "",
        }
        for side in sides
    ]
    report.rows += targets(where, seconds, share[OURS] if name == "base" else None, saved)


def targets(
    where: str, seconds: dict[str, list[float]], share: float | None, saved: Mapping[str, float]
) -> Iterator[Row]:
    """Yield the rows of a shape. share: of the GEMM limit, if the shape has a target for it."""
    if share is not None:
        yield at_least(f"{where}: share of the limit", share, TARGET, ".0%")
    masked = ratio(seconds, MASKED, OURS)
    yield Row(f"{where}: cost of masks", f"{1 - masked.median:.1%}", "≤ 3 %", masked.median >= 0.97)
    for what, is_of_units in (("heads or whole layers", False), ("half of the units", True)):
        group = [value for mask, value in saved.items() if ("units" in mask) == is_of_units]
        name = f"{where}: time saved for FLOPs removed, {what}"
        yield at_least(name, min(group), TARGET, ".0%", f" to {max(group):.0%}")


def sides_of(
    shape: Shape, lengths: np.ndarray, masks: Mapping[str, HeadMask]
) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name: our network intact, under masks and pruned, and in float32."""
    batch = pairs(lengths, shape.vocabulary)
    model = network(shape)
    ours = {"bf16": encoder(model, torch.bfloat16), "fp32": encoder(model, torch.float32)}

    def run(dtype: str, masks: RowMasks | None = None) -> Callable[[], object]:
        return lambda: ours[dtype].forward(pack(batch, device=ours[dtype].device), masks)

    return {
        OURS: run("bf16"),
        MASKED: run("bf16", random_masks(shape, len(lengths))),
        **{name: run("bf16", RowMasks.of(mask)) for name, mask in masks.items()},
        "ours fp32": run("fp32"),
    }


def flops_under(mask: HeadMask | None, shape: Shape, lengths: np.ndarray) -> float:
    """Return the multiplications and additions that a mask leaves; None: those of the intact network."""
    if mask is None:
        return useful_flops(shape, lengths)
    units = np.ones(shape.layers) if mask.units_off is None else 1 - mask.units_off.mean(1)
    units[list(mask.skipped)] = 0
    return useful_flops(shape, lengths, mask.matrix.mean(1).tolist(), units.tolist())


def pruned_masks(shape: Shape) -> dict[str, HeadMask]:
    """Return masks whose heads, units and layers are cut out of the network."""
    half, quarter, upper = np.ones((3, shape.layers, shape.heads), np.float32)
    half[:, ::2] = 0
    quarter[:, np.arange(shape.heads) % 4 != 3] = 0
    upper[: shape.layers // 2] = 0
    ones = np.ones_like(half)
    units = np.zeros((shape.layers, shape.inner), np.bool_)
    units[:, ::2] = True
    skipped = tuple(range(shape.layers // 2, shape.layers))
    return {
        "ours bf16, 50 % of every layer's heads off": HeadMask(half),
        "ours bf16, 75 % of every layer's heads off": HeadMask(quarter),
        "ours bf16, all heads of the lower half of the layers off": HeadMask(upper),
        "ours bf16, 50 % of every layer's units off": HeadMask(ones, (), units),
        "ours bf16, 50 % of every layer's heads and units off": HeadMask(half, (), units),
        "ours bf16, the upper half of the layers skipped": HeadMask(ones, skipped),
    }

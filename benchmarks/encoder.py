"""Measures the network alone against transformers and the GEMM limit, with masks and pruned.

Also measures the share of time by part, and how far bfloat16 moves the scores on labelled pairs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import agreement, cores, parts
from benchmarks.measure import Ratio, alternate, machine, ratio
from benchmarks.workload import (
    BERT_SHAPES,
    PAIRS,
    Shape,
    document_lengths,
    encoder,
    network,
    pairs,
    query_title_lengths,
    useful_flops,
)
from benchmarks.workload import SHAPES as ALL_SHAPES
from models.batch import pack
from models.head_mask import HeadMask
from models.ops.cpu import PrepackedLinear
from models.row_masks import Masks, RowMasks

SHAPES = {name: ALL_SHAPES[name] for name in (*BERT_SHAPES, "modernbert")}
LIMIT_TOKENS = 1600
OURS, TRANSFORMERS = "ours bf16", "transformers bf16"
MASKED = "ours bf16, another random mask for every pair (20 % off)"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one engine on one shape. Ratios compare its speed with another's, round by round.

    workload: titles or documents. saved: the share of time that a pruned variant saves, over the share of
        FLOPs that it removes; None if nothing is pruned.
    share_of_limit: useful FLOPs per second (real tokens, live heads) over the run's bf16 GEMM rate.
    """

    shape: str
    engine: str
    pairs_per_second: float
    share_of_limit: float
    against_transformers: Ratio
    against_ours: Ratio
    workload: str = "titles"
    saved: float | None = None


def gemm_calls(shape: Shape, dtype: torch.dtype) -> tuple[dict[str, Callable[[], object]], float]:
    """Return one layer's products of LIMIT_TOKENS rows, one per torch function, and their FLOPs."""
    sizes = [(3 * shape.hidden, shape.hidden), (shape.hidden, shape.hidden)]
    sizes += [(shape.inner, shape.hidden)] * shape.up_maps + [(shape.hidden, shape.inner)]
    parts = []
    for out, width in sizes:
        weight, bias = torch.randn(out, width).to(dtype), torch.zeros(out, dtype=dtype)
        parts.append(
            (torch.randn(LIMIT_TOKENS, width).to(dtype), weight, bias, PrepackedLinear(weight, bias))
        )

    def plain() -> None:
        with torch.inference_mode():
            for x, weight, bias, _ in parts:
                torch.nn.functional.linear(x, weight, bias)

    def matmul() -> None:
        with torch.inference_mode():
            for x, weight, _, _ in parts:
                torch.mm(x, weight.t())

    def prepacked() -> None:
        with torch.inference_mode():
            for x, _, _, linear in parts:
                linear(x)

    flops = sum(2 * LIMIT_TOKENS * out * width for out, width in sizes)
    return {"linear": plain, "mm": matmul, "prepacked": prepacked}, float(flops)


def measure(rounds: int) -> dict[str, Any]:
    """Measure every shape on both workloads, its profile on titles, and the agreement with float32."""
    rows, profiles = [], {}
    for name, shape in SHAPES.items():
        for workload, lengths in (
            ("titles", query_title_lengths(PAIRS)),
            ("documents", document_lengths(16)),
        ):
            print(f"encoder: {shape.name}, {workload}", file=sys.stderr, flush=True)
            rows += measure_one(name, workload, lengths, rounds)
        profiles[shape.name] = profile_of(shape)
    return {
        "machine": machine(),
        "rows": [asdict(row) for row in rows],
        "profile": profiles,
        "cores": cores.measure(rounds),
        "agreement": agreement.measure(),
    }


def measure_one(shape_name: str, workload: str, lengths: np.ndarray, rounds: int) -> list[Row]:
    """Return the table of one shape on sequences of these lengths."""
    shape = SHAPES[shape_name]
    batch = pairs(lengths, shape.vocabulary)
    model = network(shape)
    ours = {"bf16": encoder(model, torch.bfloat16), "fp32": encoder(model, torch.float32)}
    pruned = pruned_variants(shape)

    def run(name: str, masks: Masks = None) -> Callable[[], object]:
        network = ours[name]
        return lambda: network.forward(pack(batch, device=network.device), masks)

    ids, attention_mask = padded([pair.ids for pair in batch])
    half = network(shape).bfloat16()

    def transformers(reference: torch.nn.Module) -> Callable[[], object]:
        def call() -> object:
            with torch.inference_mode():
                return reference(input_ids=ids, attention_mask=attention_mask)

        return call

    gemms, flops = gemm_calls(shape, torch.bfloat16)
    sides = {
        OURS: run("bf16"),
        MASKED: run("bf16", random_masks(shape, len(lengths))),
        **{name: run("bf16", RowMasks.of(mask)) for name, mask in pruned.items()},
        TRANSFORMERS: transformers(half),
        "ours fp32": run("fp32"),
        "transformers fp32": transformers(model),
    }
    for side in sides.values():
        side()  # a mask's heads are cut out when the mask is used a second time
    seconds = alternate(sides | gemms, rounds, inner=1 if shape.hidden > 400 else 4)
    limit = max(flops / statistics.median(seconds[name]) for name in gemms)
    whole = useful_flops(shape, lengths)
    rows = []
    for name in sides:
        mask = pruned.get(name)
        needed = whole if mask is None else flops_under(mask, shape, lengths)
        against_ours = ratio(seconds, name, OURS)
        rows.append(
            Row(
                shape=shape.name,
                engine=name,
                pairs_per_second=len(lengths) / statistics.median(seconds[name]),
                share_of_limit=needed / statistics.median(seconds[name]) / limit,
                against_transformers=ratio(seconds, name, TRANSFORMERS),
                against_ours=against_ours,
                workload=workload,
                saved=None if mask is None else (1 - 1 / against_ours.median) / (1 - needed / whole),
            )
        )
    return rows


def flops_under(mask: HeadMask, shape: Shape, lengths: np.ndarray) -> float:
    """Return the multiplications and additions that a mask leaves."""
    units = np.ones(shape.layers) if mask.units_off is None else 1 - mask.units_off.mean(1)
    units[list(mask.skipped)] = 0
    return useful_flops(shape, lengths, mask.matrix.mean(1).tolist(), units.tolist())


def pruned_variants(shape: Shape) -> dict[str, HeadMask]:
    """Return masks of variants whose heads and units that are off are cut out."""
    half, quarter, upper = np.ones((3, shape.layers, shape.heads), np.float32)
    half[:, ::2] = 0
    quarter[:, np.arange(shape.heads) % 4 != 3] = 0
    upper[: shape.layers // 2] = 0
    ones, units = np.ones_like(half), np.zeros((shape.layers, shape.inner), np.bool_)
    units[:, ::2] = True
    return {
        "ours bf16, 50 % of every layer's heads off": HeadMask(half),
        "ours bf16, 75 % of every layer's heads off": HeadMask(quarter),
        "ours bf16, all heads of the lower half of the layers off": HeadMask(upper),
        "ours bf16, 50 % of every layer's units off": HeadMask(ones, (), units),
        "ours bf16, 50 % of every layer's heads and units off": HeadMask(half, (), units),
        "ours bf16, the upper half of the layers skipped": HeadMask(
            ones, tuple(range(shape.layers // 2, shape.layers))
        ),
    }


def random_masks(shape: Shape, rows: int) -> np.ndarray:
    """Return a different mask for every row, with a random 20 % of the heads off: (rows, layers, heads)."""
    rng = np.random.default_rng(0)
    return (rng.random((rows, shape.layers, shape.heads)) >= 0.2).astype(np.float32)


def profile_of(shape: Shape) -> dict[str, float]:
    """Return the share of time by part, on titles with a different random mask for every pair."""
    batch, masks = pairs(query_title_lengths(PAIRS), shape.vocabulary), random_masks(shape, PAIRS)
    ours = encoder(network(shape), torch.bfloat16)
    return parts.measure(lambda: ours.forward(pack(batch, device=ours.device), masks))


def as_markdown(result: dict[str, Any]) -> str:
    """Return the tables: engines on each workload, the profile, and the agreement with float32."""
    heads = ["shape", "workload", "engine", "pairs/s", "share of the bf16 GEMM limit"]
    heads += ["× transformers bf16", "× ours bf16", "saved"]
    lines = [
        f"{result['machine']}. Titles: batches of 64 query–title pairs, 25 tokens in the mean; documents: of "
        "16 pairs of 96 to 128 tokens. *Saved*: the share of its time that a pruned variant saves, over the "
        "share of the FLOPs that it removes.",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    for row in result["rows"]:
        saved = "" if row["saved"] is None else f"{row['saved']:.0%}"
        lines.append(
            f"| {row['shape']} | {row['workload']} | {row['engine']} | {row['pairs_per_second']:.0f} "
            f"| {row['share_of_limit']:.0%} | {Ratio(**row['against_transformers'])} "
            f"| {Ratio(**row['against_ours'])} | {saved} |"
        )
    lines += ["", f"| time by part, titles, masks by row | {' | '.join(parts.PARTS)} |"]
    lines.append("|---" * (len(parts.PARTS) + 1) + "|")
    for shape, shares in result["profile"].items():
        lines.append(f"| {shape} | " + " | ".join(f"{shares[part]:.1%}" for part in parts.PARTS) + " |")
    lines += ["", cores.as_markdown(result["cores"])]
    scores = result["agreement"]
    lines += [
        "",
        f"Shipped model in bfloat16 against float32 on {scores['pairs']:.0f} labelled pairs: probabilities "
        f"differ by {scores['max_probability_difference']:.4f} at most, {scores['grades_changed']:.2%} of "
        f"the grades change; QWK {scores['qwk_bfloat16']:.4f} against {scores['qwk_float32']:.4f}, NDCG@10 "
        f"{scores['ndcg10_bfloat16']:.4f} against {scores['ndcg10_float32']:.4f}.",
    ]
    return "\n".join(lines)


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that this run misses."""
    lines = []
    for row in result["rows"]:
        where = f"{row['shape']}, {row['workload']}"
        if row["engine"] == OURS and row["against_transformers"]["median"] <= 1:
            lines.append(f"{where}: slower than transformers bf16")
        if row["workload"] != "titles":
            continue  # the targets are for titles
        if row["engine"] == OURS and row["shape"] == SHAPES["base"].name and row["share_of_limit"] < 0.9:
            lines.append(f"{where}: {row['share_of_limit']:.0%} of the GEMM limit, target 90 %")
        if row["engine"] == MASKED and row["against_ours"]["median"] < 0.97:
            lines.append(f"{where}: masks cost {1 - row['against_ours']['median']:.1%}, target 3 %")
        if row["saved"] is not None and row["saved"] < 0.9:
            lines.append(
                f"{where}, {row['engine']}: saves {row['saved']:.0%} of the FLOPs it removes, target 90 %"
            )
    agreed = result["agreement"]
    for metric in ("qwk", "ndcg10"):
        loss = agreed[f"{metric}_float32"] - agreed[f"{metric}_bfloat16"]
        if loss > 0.005:
            lines.append(f"bfloat16: {metric} {loss:.4f} below float32, bound 0.005")
    return lines


def padded(sequences: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded token ids and attention mask, (rows, longest), sorted by length."""
    tensors = [torch.from_numpy(ids.astype(np.int64)) for ids in sorted(sequences, key=len)]
    ones = [torch.ones(len(tensor), dtype=torch.int64) for tensor in tensors]
    return (
        torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True),
        torch.nn.utils.rnn.pad_sequence(ones, batch_first=True),
    )

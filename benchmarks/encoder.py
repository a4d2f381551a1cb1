"""The network alone: ours against transformers, with and without masks, and the GEMM limit of the run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.measure import Ratio, alternate, ratio
from benchmarks.workload import (
    PAIRS,
    SHAPES,
    Shape,
    encoder,
    network,
    pairs,
    query_title_lengths,
    useful_flops,
)
from models.linear import Linear
from models.packing import pack

LIMIT_TOKENS = 1600
OURS, TRANSFORMERS = "ours bf16", "transformers bf16"
MASKED = "ours bf16, another random mask for every pair (20 % off)"
HALF, LOWER = "ours bf16, every second head off", "ours bf16, heads of layers 0 to 5 off"


@dataclass(frozen=True, slots=True)
class Row:
    """One engine on one shape. Ratios are speed against the named engine, round by round of one run.

    share_of_limit: useful FLOPs per second (real tokens, live heads) over the run's bf16 GEMM rate.
    """

    shape: str
    engine: str
    pairs_per_second: float
    share_of_limit: float
    against_transformers: Ratio
    against_ours: Ratio


def gemm_calls(shape: Shape, dtype: torch.dtype) -> tuple[dict[str, Callable[[], object]], float]:
    """One layer's products of LIMIT_TOKENS rows by each of torch's ways, and their FLOPs."""
    sizes = [(3 * shape.hidden, shape.hidden), (shape.hidden, shape.hidden)]
    sizes += [(shape.inner, shape.hidden), (shape.hidden, shape.inner)]
    parts = []
    for out, width in sizes:
        weight, bias = torch.randn(out, width).to(dtype), torch.zeros(out, dtype=dtype)
        parts.append((torch.randn(LIMIT_TOKENS, width).to(dtype), weight, bias, Linear(weight, bias)))

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


def measure(shape_name: str, rounds: int) -> list[Row]:
    """The encoder table for one shape."""
    shape = SHAPES[shape_name]
    lengths = query_title_lengths(PAIRS)
    batch = pairs(lengths, shape.vocabulary)
    model = network(shape)
    ours = {"bf16": encoder(model, torch.bfloat16), "fp32": encoder(model, torch.float32)}
    # Another mask for every row: 20 % of the heads off, at random.
    rng = np.random.default_rng(0)
    masks = (rng.random((PAIRS, shape.layers, shape.heads)) >= 0.2).astype(np.float32)
    layers_off = np.ones((shape.layers, shape.heads), np.float32)
    layers_off[: shape.layers // 2] = 0
    half_off = np.ones((shape.layers, shape.heads), np.float32)
    half_off[:, ::2] = 0

    def run(name: str, weights: np.ndarray | None = None) -> Callable[[], object]:
        network = ours[name]
        return lambda: network.forward(pack(batch, device=network.device, dtype=network.dtype), weights)

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
        MASKED: run("bf16", masks),
        HALF: run("bf16", half_off),
        LOWER: run("bf16", layers_off),
        TRANSFORMERS: transformers(half),
        "ours fp32": run("fp32"),
        "transformers fp32": transformers(model),
    }
    for side in sides.values():
        side()  # a mask's heads are cut out when it comes a second time
    seconds = alternate(sides | gemms, rounds, inner=1 if shape.hidden > 400 else 4)
    limit = max(flops / statistics.median(seconds[name]) for name in gemms)
    return [
        Row(
            shape=shape.name,
            engine=name,
            pairs_per_second=PAIRS / statistics.median(seconds[name]),
            share_of_limit=useful_flops(shape, lengths, 0.5 if name in (HALF, LOWER) else 1.0)
            / statistics.median(seconds[name])
            / limit,
            against_transformers=ratio(seconds, name, TRANSFORMERS),
            against_ours=ratio(seconds, name, OURS),
        )
        for name in sides
    ]


def padded(sequences: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask as a padding engine wants them, (rows, longest), sorted by length."""
    tensors = [torch.from_numpy(ids.astype(np.int64)) for ids in sorted(sequences, key=len)]
    ones = [torch.ones(len(tensor), dtype=torch.int64) for tensor in tensors]
    return (
        torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True),
        torch.nn.utils.rnn.pad_sequence(ones, batch_first=True),
    )

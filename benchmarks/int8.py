"""Compares int8 with our bf16: speed on both shapes, and accuracy on labelled pairs.

The shipped shape is the shipped model. The base shape has random weights, so only its speed counts.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.encoder import LIMIT_TOKENS
from benchmarks.measure import alternate, machine, ratio
from benchmarks.workload import (
    BERT_SHAPES,
    PAIRS,
    SHAPES,
    Shape,
    network,
    pairs,
    query_title_lengths,
    useful_flops,
)
from models import Classifier, HeadMask
from models.batch import pack
from models.bert import Bert
from models.checkpoint.config import parse_config, read_config
from models.checkpoint.hub import DEFAULT
from models.checkpoint.tensors import read_tensors
from models.compress.quantize import batches, calibrate, quantize
from models.ops.int8 import Int8Linear, QuantizedMap, TensorScale
from models.quality.agreement import agreement
from models.quality.labelled import LabelledPair, read_labelled, read_pairs

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
CPU = torch.device("cpu")
BF16, INT8 = "bf16", "int8"
MASKED = "int8, another random mask for every pair (20 % off)"
HALF = "int8, every second head off"
MASKS = ("none", "random:0.2@7", "0-5.*")
SPEEDUP = 1.75
LARGEST_LOSS = 0.005


def measure(rounds: int, shapes: Sequence[str] = BERT_SHAPES, limit: int | None = None) -> dict[str, Any]:
    """Measure speed by shape and the shipped model's accuracy. limit: number of labelled pairs; None: all."""
    with TemporaryDirectory() as directory:
        shipped = Path(directory) / "int8"
        tokenizer = Classifier.load(DEFAULT, "cpu", "float32").tokenizer
        known = read_pairs(SAMPLE / "calibration.jsonl.gz")
        order = np.random.default_rng(0).permutation(len(known))
        quantize(DEFAULT, shipped, tokenizer.encode([known[place] for place in order]))
        speed = []
        for name in shapes:
            print(f"{SHAPES[name].name}, {rounds} rounds", file=sys.stderr, flush=True)
            both = loaded(shipped) if name == "shipped" else made_up(SHAPES[name])
            speed += compare(SHAPES[name], *both, rounds)
        test = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:limit]
        return {"machine": machine(), "speed": speed, "accuracy": accuracy(shipped, test)}


def loaded(int8: Path) -> tuple[Bert, Bert]:
    """Return the shipped model in bf16 and in int8."""
    float_config, int8_config = read_config(DEFAULT), read_config(int8)
    return (
        Bert(float_config, read_tensors(DEFAULT, float_config), device=CPU, dtype=torch.bfloat16),
        Bert(int8_config, read_tensors(int8, int8_config), device=CPU, dtype=torch.bfloat16),
    )


def made_up(shape: Shape) -> tuple[Bert, Bert]:
    """Return a network with random weights in both formats, calibrated on a few random tokens."""
    model = network(shape)
    config, tensors = parse_config(model.config.to_dict()), dict(model.state_dict())
    quantized = dict(tensors)
    with torch.inference_mode():
        few = pairs(query_title_lengths(8, seed=1), shape.vocabulary, seed=1)
        for layer in calibrate(config, tensors, list(batches(few))):
            quantized.update(layer)
    return (
        Bert(config, tensors, device=CPU, dtype=torch.bfloat16),
        Bert(replace(config, int8=True), quantized, device=CPU, dtype=torch.bfloat16),
    )


def compare(shape: Shape, bf16: Bert, int8: Bert, rounds: int) -> list[dict[str, Any]]:
    """Return one row per engine: pairs/s, share of its format's GEMM limit, ratios to bf16 and to int8."""
    lengths = query_title_lengths(PAIRS)
    batch = pairs(lengths, bf16.config.vocab_size)
    layers, heads = shape.layers, shape.heads
    masks = (np.random.default_rng(0).random((PAIRS, layers, heads)) >= 0.2).astype(np.float32)
    half = np.ones((layers, heads), np.float32)
    half[:, ::2] = 0

    def run(network: Bert, weights: np.ndarray | None = None) -> Callable[[], object]:
        return lambda: network.forward(pack(batch, device=CPU), weights)

    sides = {BF16: run(bf16), INT8: run(int8), MASKED: run(int8, masks), HALF: run(int8, half)}
    for side in sides.values():
        side()  # a mask's heads are cut out when the mask is used a second time
    limits, operations = products(bf16)
    seconds = alternate(sides | limits, rounds, inner=1 if shape.hidden > 400 else 4)
    rows = []
    for name in sides:
        median = statistics.median(seconds[name])
        limit = operations / statistics.median(seconds["GEMM bf16" if name == BF16 else "GEMM int8"])
        useful = useful_flops(shape, lengths, 0.5 if name == HALF else 1.0)
        rows.append(
            {
                "shape": shape.name,
                "engine": name,
                "pairs_per_second": PAIRS / median,
                "share_of_limit": useful / median / limit,
                "over_bf16": asdict(ratio(seconds, name, BF16)),
                "over_int8": asdict(ratio(seconds, name, INT8)),
            }
        )
    return rows


def products(bf16: Bert) -> tuple[dict[str, Callable[[], object]], float]:
    """Return one layer's four prepacked products of LIMIT_TOKENS rows in both formats, and their operations.

    The int8 products go from quantized inputs to bfloat16, without GELU and residual.
    """
    layer = bf16.layers[0]
    assert layer.attention is not None
    floats = (layer.attention.query_key_value, layer.attention.output, layer.up, layer.down)
    shapes = [linear.weight.shape for linear in floats]
    numbers = [torch.randn(LIMIT_TOKENS, width).bfloat16() for _, width in shapes]
    integers = [
        Int8Linear(
            QuantizedMap(
                torch.randint(-127, 128, size).to(torch.int8), torch.ones(size[0]), torch.zeros(size[0])
            ),
            dtype=torch.bfloat16,
            source=TensorScale(1.0, 128),
        )
        for size in shapes
    ]
    quantized = [torch.randint(0, 256, (LIMIT_TOKENS, width)).to(torch.uint8) for _, width in shapes]

    def in_bf16() -> None:
        with torch.inference_mode():
            for linear, x in zip(floats, numbers, strict=True):
                linear(x)

    def in_int8() -> None:
        with torch.inference_mode():
            for linear, x in zip(integers, quantized, strict=True):
                linear(x)

    operations = float(sum(2 * LIMIT_TOKENS * out * width for out, width in shapes))
    return {"GEMM bf16": in_bf16, "GEMM int8": in_int8}, operations


def accuracy(int8: Path, test: list[LabelledPair]) -> list[dict[str, Any]]:
    """Compare the shipped model's bf16 and int8 with float32 on labelled pairs, with some masks."""
    exact = Classifier.load(DEFAULT, "cpu", "float32")
    formats = {BF16: Classifier.load(DEFAULT, "cpu", "bfloat16"), INT8: Classifier.load(int8, "cpu")}
    texts = [(pair.query, pair.title) for pair in test]
    rows = []
    for spec in MASKS:
        mask = HeadMask.parse(spec, layers=exact.num_layers, heads=exact.num_heads)
        expected = exact.score(texts, mask)
        for name, classifier in formats.items():
            result = agreement(expected, classifier.score(texts, mask), test)
            rows.append({"head_mask": spec, "format": name, **asdict(result)})
    return rows


def as_markdown(result: dict[str, Any]) -> str:
    """Return both tables."""
    lines = [
        f"{result['machine']}; batches of 64 query–title pairs, 25 tokens in the mean. Limits: the prepacked "
        "products of one layer in the same format. The base shape has random weights.",
        "",
        "| shape | engine | pairs/s | share of the format's GEMM limit | × ours bf16 | × ours int8 |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["speed"]:
        ratios = " | ".join(
            f"{row[over]['median']:.2f} ({row[over]['low']:.2f} to {row[over]['high']:.2f})"
            for over in ("over_bf16", "over_int8")
        )
        lines.append(
            f"| {row['shape']} | ours {row['engine']} | {row['pairs_per_second']:.0f} "
            f"| {row['share_of_limit']:.0%} | {ratios} |"
        )
    lines += [
        "",
        f"The shipped model against float32 on {result['accuracy'][0]['pairs']} pairs of data/sample/test; "
        "changes with 95 % intervals, paired, over queries.",
        "",
        "| head mask | format | QWK | NDCG@10 | accuracy | same grade | largest probability difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["accuracy"]:
        cells = " | ".join(
            f"{row['after'][name]:.4f}, {row['change'][name]['value']:+.4f} "
            f"({row['change'][name]['low']:+.4f} to {row['change'][name]['high']:+.4f})"
            for name in ("qwk", "ndcg10", "accuracy")
        )
        lines.append(
            f"| `{row['head_mask']}` | {row['format']} | {cells} "
            f"| {row['same_grade']:.1%} | {row['largest_probability_difference']:.3f} |"
        )
    return "\n".join(lines)


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target of docs/PERFORMANCE.md that this run misses."""
    lines = []
    for row in result["speed"]:
        speed = row["over_bf16"]["median"]
        if row["engine"] == INT8 and row["shape"] == SHAPES["base"].name and speed < SPEEDUP:
            lines.append(f"{row['shape']}: int8 is {speed:.2f} × ours bf16, target {SPEEDUP} ×")
        cost = 1 - row["over_int8"]["median"]
        if row["engine"] == MASKED and cost > 0.03:
            lines.append(f"{row['shape']}: masks cost int8 {cost:.1%}, target 3 %")
    for row in result["accuracy"]:
        loss = -row["change"]["qwk"]["value"]
        if row["format"] == INT8 and loss > LARGEST_LOSS:
            lines.append(
                f"int8 under mask {row['head_mask']}: QWK falls by {loss:.4f}, target at most {LARGEST_LOSS}"
            )
    return lines

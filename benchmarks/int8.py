"""Compares int8 with our float formats: speed on both shapes, and accuracy on labelled pairs.

The shipped shape is the shipped model. The base shape has random weights, so only its speed counts. On a
processor without bfloat16, int8 is compared with float32, and float32 with the faster of MKL and oneDNN.
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

from benchmarks.encoder import LIMIT_TOKENS, gemm_calls
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
from models.device import has_native_bfloat16
from models.ops.int8 import Int8Linear
from models.ops.integer_products import input_bits
from models.ops.quantized import QuantizedMap, TensorScale
from models.quality.agreement import agreement
from models.quality.labelled import LabelledPair, read_labelled, read_pairs

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
CPU = torch.device("cpu")
BF16, FP32, INT8 = "bf16", "fp32", "int8"
DTYPES = {BF16: torch.bfloat16, FP32: torch.float32}
MASKED = "int8, another random mask for every pair (20 % off)"
HALF = "int8, every second head off"
MASKS = ("none", "random:0.2@7", "0-5.*")
SPEEDUP = {BF16: 1.75, FP32: 1.6}
"""Target over the processor's own float format; that over bfloat16 is for the base shape alone."""

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
            networks = loaded(shipped) if name == "shipped" else made_up(SHAPES[name])
            speed += compare(SHAPES[name], networks, rounds)
        test = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:limit]
        return {
            "machine": machine(),
            "int8_input_bits": input_bits(),
            "speed": speed,
            "accuracy": accuracy(shipped, test),
        }


def formats() -> list[str]:
    """Return the float formats that are measured; the first is the one that this processor computes in."""
    return [BF16, FP32] if has_native_bfloat16(CPU) else [FP32]


def loaded(int8: Path) -> dict[str, Bert]:
    """Return the shipped model in every format."""
    float_config, int8_config = read_config(DEFAULT), read_config(int8)
    tensors = read_tensors(DEFAULT, float_config)
    networks = {name: Bert(float_config, tensors, device=CPU, dtype=DTYPES[name]) for name in formats()}
    dtype = DTYPES[formats()[0]]
    return networks | {INT8: Bert(int8_config, read_tensors(int8, int8_config), device=CPU, dtype=dtype)}


def made_up(shape: Shape) -> dict[str, Bert]:
    """Return a network with random weights in every format, calibrated on a few random tokens."""
    model = network(shape)
    config, tensors = parse_config(model.config.to_dict()), dict(model.state_dict())
    quantized = dict(tensors)
    with torch.inference_mode():
        few = pairs(query_title_lengths(8, seed=1), shape.vocabulary, seed=1)
        for layer in calibrate(config, tensors, list(batches(few))):
            quantized.update(layer)
    networks = {name: Bert(config, tensors, device=CPU, dtype=DTYPES[name]) for name in formats()}
    dtype = DTYPES[formats()[0]]
    return networks | {INT8: Bert(replace(config, int8=True), quantized, device=CPU, dtype=dtype)}


def compare(shape: Shape, networks: dict[str, Bert], rounds: int) -> list[dict[str, Any]]:
    """Return one row per engine: pairs/s, share of its format's GEMM limit, ratios to floats and to int8."""
    lengths = query_title_lengths(PAIRS)
    int8, floats = networks[INT8], formats()
    batch = pairs(lengths, int8.config.vocab_size)
    layers, heads = shape.layers, shape.heads
    masks = (np.random.default_rng(0).random((PAIRS, layers, heads)) >= 0.2).astype(np.float32)
    half = np.ones((layers, heads), np.float32)
    half[:, ::2] = 0

    def run(network: Bert, weights: np.ndarray | None = None) -> Callable[[], object]:
        return lambda: network.forward(pack(batch, device=CPU), weights)

    sides = {name: run(network) for name, network in networks.items()}
    sides |= {MASKED: run(int8, masks), HALF: run(int8, half)}
    for side in sides.values():
        side()  # a mask's heads are cut out when the mask is used a second time
    limits, operations = {INT8: {"GEMM int8": products(shape)}}, 0.0
    for name in floats:
        calls, operations = gemm_calls(shape, DTYPES[name])
        limits[name] = {f"GEMM {name} [{way}]": call for way, call in calls.items()}
    every = {name: call for ways in limits.values() for name, call in ways.items()}
    seconds = alternate(sides | every, rounds, inner=1 if shape.hidden > 400 else 4)
    rates = {
        name: operations / min(statistics.median(seconds[way]) for way in ways)
        for name, ways in limits.items()
    }
    rows = []
    for name in sides:
        median = statistics.median(seconds[name])
        useful = useful_flops(shape, lengths, 0.5 if name == HALF else 1.0)
        rows.append(
            {
                "shape": shape.name,
                "engine": name,
                "pairs_per_second": PAIRS / median,
                "share_of_limit": useful / median / rates.get(name, rates[INT8]),
                "over_floats": asdict(ratio(seconds, name, floats[0])),
                "over_int8": asdict(ratio(seconds, name, INT8)),
                "floats": floats[0],
            }
        )
    return rows


def products(shape: Shape) -> Callable[[], object]:
    """Return the call of one layer's four int8 products of LIMIT_TOKENS rows.

    They go from quantized inputs to the processor's float format, without GELU and residual.
    """
    hidden, inner, dtype = shape.hidden, shape.inner, DTYPES[formats()[0]]
    sizes = [(3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)]
    parts = []
    for size in sizes:
        weight = torch.randint(-127, 128, size).to(torch.int8)
        integers = QuantizedMap(weight, torch.ones(size[0]), torch.zeros(size[0]))
        quantized = torch.randint(0, 2 ** (input_bits() or 8), (LIMIT_TOKENS, size[1])).to(torch.uint8)
        parts.append((Int8Linear(integers, dtype=dtype, source=TensorScale(1.0, 128)), quantized))

    def call() -> None:
        with torch.inference_mode():
            for linear, x in parts:
                linear(x)

    return call


def accuracy(int8: Path, test: list[LabelledPair]) -> list[dict[str, Any]]:
    """Compare the shipped model's int8, and its bf16 if that is native, with float32, with some masks."""
    exact = Classifier.load(DEFAULT, "cpu", "float32")
    classifiers = {INT8: Classifier.load(int8, "cpu")}
    if BF16 in formats():
        classifiers = {BF16: Classifier.load(DEFAULT, "cpu", "bfloat16")} | classifiers
    texts = [(pair.query, pair.title) for pair in test]
    rows = []
    for spec in MASKS:
        mask = HeadMask.parse(spec, layers=exact.num_layers, heads=exact.num_heads)
        expected = exact.score(texts, mask)
        for name, classifier in classifiers.items():
            result = agreement(expected, classifier.score(texts, mask), test)
            rows.append({"head_mask": spec, "format": name, **asdict(result)})
    return rows


def as_markdown(result: dict[str, Any]) -> str:
    """Return both tables."""
    floats = result["speed"][0]["floats"]
    bits = {8: "8 bits", 7: "7 bits (no VNNI)"}.get(result["int8_input_bits"], "float products")
    lines = [
        f"{result['machine']}; batches of 64 query–title pairs, 25 tokens in the mean; inputs of int8 "
        f"products: {bits}. Limits: one layer's products in the same format; of floats, the fastest of `mm` "
        "and `linear` (MKL) and the prepacked one (oneDNN). The base shape has random weights.",
        "",
        f"| shape | engine | pairs/s | share of the format's GEMM limit | × ours {floats} | × ours int8 |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["speed"]:
        ratios = " | ".join(
            f"{row[over]['median']:.2f} ({row[over]['low']:.2f} to {row[over]['high']:.2f})"
            for over in ("over_floats", "over_int8")
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
        speed, floats = row["over_floats"]["median"], row["floats"]
        wanted = floats == FP32 or row["shape"] == SHAPES["base"].name
        if row["engine"] == INT8 and wanted and speed < SPEEDUP[floats]:
            lines.append(f"{row['shape']}: int8 is {speed:.2f} × ours {floats}, target {SPEEDUP[floats]} ×")
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

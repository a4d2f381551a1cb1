"""Compares int8 with our float formats: speed on both shapes, and accuracy on labelled pairs.

The shipped shape is the shipped model. The base shape has random weights, so only its speed counts. On a
processor without bfloat16, int8 is compared with float32, and float32 with the faster of MKL and oneDNN.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.checkpoints import checkpoint, quantize_into
from benchmarks.measure import alternate, ratio
from benchmarks.peers.ours import float_products, int8_products
from benchmarks.report import Report, Row, times_as_fast
from benchmarks.workload import (
    BERT_SHAPES,
    PAIRS,
    SAMPLE,
    SHAPES,
    pairs,
    query_title_lengths,
    random_masks,
    useful_flops,
)
from headroom import Classifier, HeadMask
from headroom.models.batch import pack
from headroom.models.device import has_native_bfloat16
from headroom.models.network import Network
from headroom.models.ops.int8_products import input_bits
from headroom.models.quality.comparison import agreement
from headroom.models.quality.labelled import LabelledPair, read_labelled
from headroom.models.selection import RowMasks

CPU = torch.device("cpu")
BF16 = "bf16"
FP32 = "fp32"
INT8 = "int8"
DTYPES = {BF16: torch.bfloat16, FP32: torch.float32}
MASKED = "int8, another random mask for every pair (20 % off)"
MASKS = ("none", "random:0.2@7", "0-5.*")
LARGEST_LOSS = 0.005


def measure(rounds: int, shapes: Sequence[str] = BERT_SHAPES, limit: int | None = None) -> Report:
    """Measure speed by shape and the shipped model's accuracy. limit: number of labelled pairs; None: all."""
    bits = {8: "8 bits", 7: "7 bits (no VNNI)"}.get(input_bits() or 0, "float products")
    report = Report(
        f"Batches of 64 query–title pairs, 25 tokens in the mean; inputs of int8 products: {bits}. Limits: "
        "one layer's products in the same format; of floats, the fastest of `mm` and `linear` (MKL) and the "
        "prepacked one (oneDNN). The base shape has random weights. Intervals: 95 %, paired, over queries."
    )
    with TemporaryDirectory() as directory:
        for name in shapes:
            print(f"int8: {SHAPES[name].name}", file=sys.stderr, flush=True)
            source = checkpoint(name)
            int8 = Path(directory, name)
            quantize_into(source, int8, None if name == "shipped" else 8)
            compared = loaded(source, int8)
            networks = {dtype: classifier.network for dtype, classifier in compared.items()}
            speed(report, name, networks, rounds)
            if name == "shipped":
                accuracy(report, compared, read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:limit])
    return report


def loaded(source: Path, int8: Path) -> dict[str, Classifier]:
    """Return a checkpoint in every float format, and its int8 form."""
    floats = {
        name: Classifier.load(source, "cpu", str(DTYPES[name]).removeprefix("torch.")) for name in formats()
    }
    return floats | {INT8: Classifier.load(int8, "cpu")}


def formats() -> list[str]:
    """Return the float formats that are measured; the first is the one that this processor computes in."""
    return [BF16, FP32] if has_native_bfloat16(CPU) else [FP32]


def speed(report: Report, name: str, networks: dict[str, Network], rounds: int) -> None:
    """Add pairs/s of each format, its share of the format's GEMM limit, and ratios to floats and to int8."""
    shape = SHAPES[name]
    lengths = query_title_lengths(PAIRS)
    float_format = formats()[0]
    batch = pairs(lengths, networks[INT8].config.vocab_size)

    def run(network: Network, masks: RowMasks | None = None) -> Callable[[], object]:
        return lambda: network.forward(pack(batch, device=CPU), masks)

    sides = {dtype: run(network) for dtype, network in networks.items()}
    sides[MASKED] = run(networks[INT8], random_masks(shape, PAIRS))
    ways = {INT8: int8_products(shape, DTYPES[float_format])}
    flops = 0.0
    for dtype in formats():
        ways[dtype], flops = float_products(shape, DTYPES[dtype])
    gemms = {way: call for calls in ways.values() for way, call in calls.items()}
    seconds = alternate(sides | gemms, rounds, inner=1 if shape.hidden > 400 else 4, warm_ups=2)
    limits = {
        dtype: flops / min(statistics.median(seconds[way]) for way in calls) for dtype, calls in ways.items()
    }
    useful = useful_flops(shape, lengths)
    report.tables[shape.name] = [
        line(side, seconds, useful / limits.get(side, limits[INT8]), float_format) for side in sides
    ]
    if name == "base" or float_format == FP32:
        what = f"{shape.name}: int8 × ours {float_format}"
        minimum = {BF16: 1.75, FP32: 1.6}[float_format]
        report.rows.append(times_as_fast(what, ratio(seconds, INT8, float_format), minimum))
    masked = ratio(seconds, MASKED, INT8)
    cost = Row(f"{shape.name}: cost of masks", f"{1 - masked.median:.1%}", "≤ 3 %", masked.median >= 0.97)
    report.rows.append(cost)


def line(side: str, seconds: dict[str, list[float]], ideal: float, float_format: str) -> dict[str, str]:
    """Return a format's line of the table. ideal: seconds for the pairs at the format's GEMM limit."""
    median = statistics.median(seconds[side])
    return {
        "engine": f"ours {side}",
        "pairs/s": f"{PAIRS / median:.0f}",
        "share of the format's GEMM limit": f"{ideal / median:.0%}",
        f"× ours {float_format}": ratio(seconds, side, float_format).text(),
        f"× ours {INT8}": ratio(seconds, side, INT8).text(),
    }


def accuracy(report: Report, classifiers: dict[str, Classifier], test: list[LabelledPair]) -> None:
    """Compare the shipped model's other formats with float32, with some masks."""
    exact = classifiers[FP32]
    texts = [(pair.query, pair.title) for pair in test]
    for spec in MASKS:
        mask = HeadMask.parse(spec, layers=exact.num_layers, heads=exact.num_heads)
        expected = exact.score(texts, mask)
        for name, classifier in classifiers.items():
            if name == FP32:
                continue
            found = agreement(expected, classifier.score(texts, mask), texts, test, LARGEST_LOSS)
            qwk = found["change"]["qwk"]
            ndcg = found["change"]["ndcg10"]
            value = (
                f"QWK {qwk.value:+.4f} ({qwk.low:+.4f} to {qwk.high:+.4f}), NDCG@10 {ndcg.value:+.4f}; "
                f"{found['same_grade']:.1%} have the same grade"
            )
            row = Row(f"shipped, {name} against fp32, head mask `{spec}`, {len(test)} pairs", value)
            if name == INT8:
                row = replace(row, target=f"QWK ≥ −{LARGEST_LOSS}", ok=qwk.value >= -LARGEST_LOSS)
            report.rows.append(row)

"""Our engine, and torch's GEMM rate. The adapter of `benchmarks.peers.engines` that imports our code."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.batch import Batch, Engine
from benchmarks.workload import Shape, products
from headroom import Classifier
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.device import has_native_bfloat16
from headroom.models.ops.cpu import PrepackedLinear, can_prepack
from headroom.models.ops.int8 import Int8Linear
from headroom.models.ops.int8_products import QuantizedMap, TensorScale, input_bits

ROWS = 1600
"""Rows of the matrix products whose rate is the limit that a run compares networks with."""

Calls = dict[str, Callable[[], object]]
INT8 = "int8"
"""Name of the directory with the int8 checkpoint, which stands beside the exported one."""


def engines(directory: Path) -> dict[str, Engine]:
    """Return fp32, bf16 if the processor computes in it, int8 if there is one, and one layer's GEMMs."""
    fp32 = Classifier.load(directory, "cpu", "float32")
    result = {"ours fp32": engine(fp32)}
    dtype = torch.float32
    if has_native_bfloat16(torch.device("cpu")):
        dtype = torch.bfloat16
        result["ours bf16"] = engine(Classifier.load(directory, "cpu", "bfloat16"))
    if (quantized := directory.parent / INT8).exists():
        result["ours int8"] = engine(Classifier.load(quantized, "cpu"))
    return result | gemms(fp32, dtype)


def engine(classifier: Classifier) -> Engine:
    """Return an engine from token ids to logits, including packing."""
    prepared: dict[int, list[EncodedPair]] = {}

    def call(batch: Batch) -> np.ndarray:
        if id(batch) not in prepared:
            prepared[id(batch)] = encoded(batch)
        return classifier.forward(prepared[id(batch)])

    return call


def encoded(batch: Batch) -> list[EncodedPair]:
    """Return the batch's rows without padding."""
    firsts = (batch.attention_mask * (1 - batch.token_type_ids)).sum(axis=1)
    return [
        EncodedPair(
            ids[:length].astype(np.int32).tobytes(), int(first) - 2, unknown_tokens=0, truncated=False
        )
        for ids, length, first in zip(batch.input_ids, batch.lengths, firsts, strict=True)
    ]


def gemms(classifier: Classifier, dtype: torch.dtype) -> dict[str, Engine]:
    """Return one layer's products, one for each of torch's functions; logits are their FLOPs."""
    config = classifier.config
    shape = Shape("", config.hidden_size, config.intermediate_size, config.vocab_size)
    calls, flops = float_products(shape, dtype)

    def run(call: Callable[[], object], _: Batch) -> np.ndarray:
        call()
        return np.array([[flops]])

    return {way: partial(run, call) for way, call in calls.items()}


def float_products(shape: Shape, dtype: torch.dtype) -> tuple[Calls, float]:
    """Return a call of the products for each of torch's functions that work here, and the FLOPs of a call."""
    ways = defaultdict[str, list[Callable[[], object]]](list)
    for out, width in products(shape):
        weight = torch.randn(out, width).to(dtype)
        bias = torch.zeros(out, dtype=dtype)
        x = torch.randn(ROWS, width).to(dtype)
        ways["linear"].append(partial(torch.nn.functional.linear, x, weight, bias))
        ways["mm"].append(partial(torch.mm, x, weight.t()))
        if can_prepack(dtype):
            ways["prepacked"].append(partial(PrepackedLinear(weight, bias), x))
    flops = float(sum(2 * ROWS * out * width for out, width in products(shape)))
    name = str(dtype).removeprefix("torch.")
    return {f"GEMM {name} [{way}]": _all(calls) for way, calls in ways.items()}, flops


def int8_products(shape: Shape, dtype: torch.dtype) -> Calls:
    """Return a call of the int8 products, from quantized inputs to `dtype`, without GELU and residual."""
    calls: list[Callable[[], object]] = []
    for size in products(shape):
        weight = torch.randint(-127, 128, size).to(torch.int8)
        integers = QuantizedMap(weight, torch.ones(size[0]), torch.zeros(size[0]))
        x = torch.randint(0, 2 ** (input_bits() or 8), (ROWS, size[1])).to(torch.uint8)
        linear = Int8Linear(integers, dtype=dtype, source=TensorScale(1.0, 128))
        calls.append(partial(linear, x))
    return {"GEMM int8": _all(calls)}


def _all(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    return torch.inference_mode()(lambda: [call() for call in calls])

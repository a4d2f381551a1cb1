"""One layer's matrix products of 1,600 rows; their rate is the limit that a run compares networks with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.workload import Shape, products
from models.ops.cpu import PrepackedLinear
from models.ops.int8 import Int8Linear
from models.ops.integer_products import input_bits
from models.ops.quantized import QuantizedMap, TensorScale

ROWS = 1600
Calls = dict[str, Callable[[], object]]


def float_products(shape: Shape, dtype: torch.dtype) -> tuple[Calls, float]:
    """Return a call of the products for each of torch's functions, and the FLOPs of one call."""
    ways: dict[str, list[Callable[[], object]]] = {"linear": [], "mm": [], "prepacked": []}
    for out, width in products(shape):
        weight, bias = torch.randn(out, width).to(dtype), torch.zeros(out, dtype=dtype)
        x = torch.randn(ROWS, width).to(dtype)
        ways["linear"].append(partial(torch.nn.functional.linear, x, weight, bias))
        ways["mm"].append(partial(torch.mm, x, weight.t()))
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

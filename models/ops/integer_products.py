"""oneDNN's products of 8-bit integers, and the test that decides how many bits of an input they get.

With VNNI (of AVX-512, or AVX-VNNI without it), oneDNN sums four products of an unsigned and a signed byte
exactly. Without VNNI, it first sums two of them in 16 bits: 255·127·2 does not fit, 127·127·2 does. So inputs
get 7 bits there: every sum is exact.

On ARM, oneDNN has fast code for some kinds of integer products and processors only; the rest takes a hundred
times as long (https://github.com/uxlfoundation/oneDNN/pull/1885, /pull/3684). There, float products compute.

`torch.ops.onednn.qlinear_pointwise` is private to torch. It is used only on the torch release on which it was
checked, and after a self-test with the largest sums.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F

from models.ops.cpu import CHECKED_TORCH, FUSED
from models.ops.kernel_build import features_here
from models.ops.torch import activate

PLAIN: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
"""The operator's last arguments for a plain float32 result."""

ROWS = (1, 3, 16, 70)
"""Rows of the products that are tried: oneDNN has other code for few of them."""


@functools.cache
def input_bits() -> int:
    """Return how many bits of an input oneDNN's products take here: 8, 7, or 0 if they cannot be used."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return 0
    # torch knows VNNI of AVX-512 alone, Linux lists AVX-VNNI too.
    if (torch.cpu._is_vnni_supported() or "avx_vnni" in features_here()) and works(8):
        return 8
    return 7 if torch.cpu._is_avx2_supported() and works(7) else 0


def works(bits: int) -> bool:
    """Return whether the products of inputs of `bits` bits are exact and agree with float products."""
    try:
        return _is_exact(bits) and _agrees(bits)
    except (RuntimeError, AttributeError):
        return False


def _is_exact(bits: int) -> bool:
    """Try the largest sums: any that does not fit is wrong by half."""
    largest = 2**bits - 1
    signs = torch.tensor([127, -127]).repeat(24)[:, None]
    weight = (signs * torch.ones(48, 160, dtype=torch.int64)).to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scale, zeros = torch.ones(48), torch.zeros(48, dtype=torch.int64)
    for rows in ROWS:
        x = torch.full((rows, 160), largest, dtype=torch.uint8)
        sums = operator()(x, 1.0, 0, packed, scale, zeros, None, *PLAIN)
        if not torch.equal(sums, F.linear(x.float(), weight.float())):
            return False
    return True


def _agrees(bits: int) -> bool:
    """Try residuals, activations and quantized outputs on random numbers."""
    zero_point = 2 ** (bits - 1)
    generator = torch.Generator().manual_seed(0)
    quantized = torch.randint(0, 2**bits, (16, 48), generator=generator).to(torch.uint8)
    weight = torch.randint(-127, 128, (32, 48), generator=generator).to(torch.int8)
    scale, bias, residual = (torch.rand(n, generator=generator) for n in ((32,), (32,), (16, 32)))
    scale, zeros = scale / 100, torch.zeros(32, dtype=torch.int64)
    exact = F.linear(quantized.float() - zero_point, weight.float()) * scale + bias
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    agree = torch.equal(packed.to_dense().t(), weight)
    call = (quantized, 1.0, zero_point, packed, scale, zeros)
    for dtype in (torch.float32, torch.bfloat16):
        fused = operator().binary(
            *(*call, residual.to(dtype, copy=True), bias, 1.0, 0, dtype),
            *(1.0, 0, "sum", 1.0, "none", [], ""),
        )
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        agree &= torch.allclose(fused.float(), exact + residual, rtol=tolerance, atol=tolerance)
    for activation, (name, algorithm) in FUSED.items():
        fused = operator()(*call, bias, 0.25, 9, torch.uint8, name, [], algorithm)
        expected = torch.round(activate(exact, activation) / 0.25).add_(9).clamp_(0, 255)
        agree &= bool((fused.float() - expected).abs().max() <= 1)
    return agree


@functools.cache
def operator() -> torch._ops.OpOverloadPacket:
    """Return the operator; looking it up takes longer than a call of this function."""
    return torch.ops.onednn.qlinear_pointwise

"""oneDNN's products of 8-bit integers, and the test that decides whether they are used.

`torch.ops.onednn.qlinear_pointwise` is private to torch. It is used only on the torch release on which it was
checked, with VNNI (without it oneDNN's 16-bit sums may overflow), and after a self-test.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from models.ops.cpu import CHECKED_TORCH, FUSED
from models.ops.torch import activate


@functools.cache
def has_integer_products() -> bool:
    """Return whether oneDNN's integer products work here and agree with float products of the integers."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return False
    if not torch.cpu._is_vnni_supported():
        return False
    zero_point = 128
    generator = torch.Generator().manual_seed(0)
    quantized = torch.randint(0, 256, (16, 48), generator=generator).to(torch.uint8)
    weight = torch.randint(-127, 128, (32, 48), generator=generator).to(torch.int8)
    scale, bias, residual = (torch.rand(n, generator=generator) for n in ((32,), (32,), (16, 32)))
    scale, zeros = scale / 100, torch.zeros(32, dtype=torch.int64)
    exact = F.linear(quantized.float() - zero_point, weight.float()) * scale + bias
    try:
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
    except (RuntimeError, AttributeError):
        return False
    return agree


@functools.cache
def operator() -> torch._ops.OpOverloadPacket:
    """Return the operator; looking it up takes longer than a call of this function."""
    return torch.ops.onednn.qlinear_pointwise

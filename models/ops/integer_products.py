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

from models.device import cpu_flags
from models.ops.cpu import CHECKED_TORCH

ROWS = (1, 3, 16, 70)
"""Rows of the products that are tried: oneDNN has other code for few of them."""


@functools.cache
def input_bits() -> int:
    """Return how many bits of an input oneDNN's products take here: 8, 7, or 0 if they cannot be used."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return 0
    features = cpu_flags()
    if not features.isdisjoint({"avx512_vnni", "avx_vnni"}) and is_exact(8):
        return 8
    return 7 if "avx2" in features and is_exact(7) else 0


def is_exact(bits: int) -> bool:
    """Try the largest sums of inputs of `bits` bits: any that does not fit is wrong by half."""
    largest = 2**bits - 1
    signs = torch.tensor([127, -127]).repeat(24)[:, None]
    weight = (signs * torch.ones(48, 160, dtype=torch.int64)).to(torch.int8)
    scale, zeros = torch.ones(48), torch.zeros(48, dtype=torch.int64)
    plain: tuple[Any, ...] = 1.0, 0, torch.float32, "none", [], ""
    for rows in ROWS:
        x = torch.full((rows, 160), largest, dtype=torch.uint8)
        try:
            packed = torch.ops.onednn.qlinear_prepack(weight, None)
            sums = operator()(x, 1.0, 0, packed, scale, zeros, None, *plain)
        except (RuntimeError, AttributeError):
            return False
        if not torch.equal(sums, F.linear(x.float(), weight.float())):
            return False
    return True


@functools.cache
def operator() -> torch._ops.OpOverloadPacket:
    """Return the operator; looking it up takes longer than a call of this function."""
    return torch.ops.onednn.qlinear_pointwise

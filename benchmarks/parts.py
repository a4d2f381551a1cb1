"""Measures the time of a forward pass by part, with torch's profiler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile, record_function

from models.ops.kernels import Kernels

PARTS = ("linear", "attention core", "LayerNorm", "mask", "embeddings", "rest")

_PART_OF = {
    "mkldnn::_linear_pointwise": "linear",
    "aten::linear": "linear",
    "onednn::qlinear_pointwise": "linear",
    "aten::embedding": "embeddings",
    "aten::layer_norm": "LayerNorm",
    "aten::mul_": "mask",
    "aten::bmm": "attention core",
    "aten::softmax": "attention core",
    "aten::scaled_dot_product_attention": "attention core",
    "Kernels.affine": "linear",
    "Kernels.attention": "attention core",
    "Kernels.layer_norm": "LayerNorm",
}


def measure(call: Callable[[], object], calls: int = 5) -> dict[str, float]:
    """Return each part's share of the wall time of `call`, a forward pass; the shares sum to 1.

    The rest is Python, packing, the classifier's head and the profiler itself. The mask is part of our
    attention kernel; with AMX, the norm that follows a map is part of the map.
    """
    call()
    with _kernels_seen(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        wall = (time.perf_counter() - started) * 1e6
    shares = dict.fromkeys(PARTS, 0.0)
    for event in profiler.events():
        part = _part(event)
        if part is not None:
            shares[part] += event.self_cpu_time_total / wall
    shares["rest"] = max(0.0, 1 - sum(shares.values()))
    return shares


@contextlib.contextmanager
def _kernels_seen() -> Iterator[None]:
    """Make our own kernels appear in the profile by name."""
    with contextlib.ExitStack() as stack:
        for name in ("affine", "attention", "layer_norm"):
            recorded = record_function(f"Kernels.{name}")(getattr(Kernels, name))
            stack.enter_context(patch.object(Kernels, name, recorded))
        yield


def _part(event: Any) -> str | None:
    """Return the part of the outermost operator around an event, or None if no operator has one."""
    part = None
    while event is not None:
        part = _PART_OF.get(event.name, part)
        event = event.cpu_parent
    return part

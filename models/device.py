"""Which device and number format to compute with, by what the machine has."""

from __future__ import annotations

import torch

from models.cores import cores
from models.errors import ModelError

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}


def resolve_device(name: str) -> torch.device:
    """`auto` (CUDA where there is one, else the CPU), `cpu`, `cuda` or `cuda:N`. Raises ModelError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device {name!r} is not known; give auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not supported; give auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r} is not here: torch sees no CUDA device")
    return device


def resolve_dtype(name: str, device: torch.device, *, deterministic: bool) -> torch.dtype:
    """`auto` is bfloat16 where the device computes in it natively, else float32.

    deterministic: only float32 can be; `auto` then means float32. Raises ModelError.
    """
    if name == "auto":
        return torch.bfloat16 if not deterministic and has_native_bfloat16(device) else torch.float32
    dtype = DTYPES.get(name)
    if dtype is None:
        raise ModelError(f"dtype {name!r} is not known; give auto, {', '.join(DTYPES)}")
    if deterministic and dtype != torch.float32:
        raise ModelError(f"deterministic scores need dtype float32, not {name}")
    return dtype


def has_native_bfloat16(device: torch.device) -> bool:
    """avx512_bf16 or amx on a CPU, compute capability 8 or newer on CUDA."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def describe(device: torch.device) -> str:
    """The device in words, for logs and GET /v1/models."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({cores()} cores)"


def processor_features() -> list[str]:
    """The vector features of this CPU that decide which code paths compute."""
    return [
        name
        for name, present in (
            ("avx2", torch.cpu._is_avx2_supported()),
            ("avx512", torch.cpu._is_avx512_supported()),
            ("avx512_vnni", torch.cpu._is_vnni_supported()),
            ("avx512_bf16", torch.cpu._is_avx512_bf16_supported()),
            ("amx", torch.cpu._is_amx_tile_supported()),
        )
        if present
    ]

"""Chooses the device and the number format to compute with; its memory, its threads, and times of calls."""

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from headroom.models.arrays import Floats
from headroom.models.cores import DTYPES, check_device_name, check_dtype_name, cores, cpu_flags
from headroom.models.errors import ModelError

FULL_MEMORY = (
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
    "can't allocate memory",
)
"""Parts of torch's messages, in errors of several types, about a full memory of the GPU or of the machine."""


def release_memory() -> None:
    """Give the memory of freed tensors back to the system.

    glibc keeps it, and tensors of ever other sizes do not fit in again: a training on batches of varying
    length grew by 7 MB a step.
    """
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def resolve_device(name: str) -> torch.device:
    """Return the device `cpu`, `cuda`, `cuda:N` or `auto` (CUDA if there is one, else the CPU).

    A CUDA device has its number. Raises ModelError for another name or if the device is missing.
    """
    check_device_name(name)
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if name == "auto":
            return torch.device("cpu")
        raise ModelError(f"device {name!r} is not here: torch sees no CUDA device")
    number = name.partition(":")[2]
    device = torch.device("cuda", int(number) if number else torch.cuda.current_device())
    count = torch.cuda.device_count()
    if device.index >= count:
        raise ModelError(f"device {name!r} is not here: torch sees cuda:0 to cuda:{count - 1}")
    return device


def resolve_dtype(name: str, device: torch.device, *, deterministic: bool) -> torch.dtype:
    """Return the dtype. `auto` is bfloat16 if the device computes in it natively, else float32.

    On a GPU with fast float16 and no bfloat16, such as a T4, `auto` is float16.
    deterministic: only float32 on a CPU is allowed, and `auto` means float32. Raises ModelError.
    """
    check_dtype_name(name)
    if deterministic and device.type == "cuda":
        raise ModelError(
            "deterministic scores need device cpu: on a GPU, a score depends on the rest of its batch"
        )
    if name == "auto":
        if deterministic:
            return torch.float32
        if has_native_bfloat16(device):
            return torch.bfloat16
        tensor_cores = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 7
        return torch.float16 if tensor_cores else torch.float32
    dtype: torch.dtype = getattr(torch, DTYPES[name])
    if deterministic and dtype != torch.float32:
        raise ModelError(f"deterministic scores need dtype float32, not {name}")
    if dtype == torch.float16 and device.type == "cpu":
        raise ModelError("dtype float16 needs a GPU; give auto, float32 or bfloat16 on a CPU")
    return dtype


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether the device has avx512_bf16 or amx (a CPU), or compute capability 8 or newer (CUDA)."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return not cpu_flags().isdisjoint({"avx512_bf16", "amx_tile"})


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is full, so that a smaller batch may fit."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in FULL_MEMORY)


def is_device_failure(error: BaseException, device: torch.device) -> bool:
    """Return whether an error of CUDA sticks: the device computes nothing any more in this process.

    Some errors, such as an illegal memory access, are returned by every later call until the process ends;
    others, such as a launch with wrong arguments, by one call only. So the device is asked for a sum.
    """
    if is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    if not (isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)):
        return False
    try:
        return torch.ones(2, device=device).sum().item() != 2
    except RuntimeError as second_error:
        return not is_out_of_memory(second_error)


def limit_memory(device: torch.device, share: float) -> None:
    """Let this process's torch allocate at most this share of a GPU's memory, which other processes use too.

    What does not fit raises an error for which `is_out_of_memory` is true. With a share of 1 or more, or on a
    CPU, nothing is limited.
    """
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)


def autocast(device: torch.device) -> torch.autocast:
    """Return a context that computes products in bfloat16 if the device does so natively, else in float32.

    Elsewhere bfloat16 is emulated, and training takes several times as long.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=has_native_bfloat16(device))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread on a CPU inside the `with` block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_turns(calls: Sequence[Callable[[], object]], rounds: int, advance: Callable[[], object]) -> Floats:
    """Return the seconds of calls that take turns, (rounds, calls), after a round that only sets things up.

    advance: is called after each call.
    """
    seconds = np.empty((1 + rounds, len(calls)))
    for turn, number in np.ndindex(*seconds.shape):
        started = time.perf_counter()
        calls[number]()
        seconds[turn, number] = time.perf_counter() - started
        advance()
    return seconds[1:]


def describe(device: torch.device) -> str:
    """Return the device's name, for logs and GET /v1/models."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({cores()} cores)"

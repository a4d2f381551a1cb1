"""Finds the cores that this process may use and the processor's features, and checks the names of devices and
number formats: all that needs no torch."""

import functools
import math
import os
import re
from pathlib import Path

from headroom.models.errors import ModelError

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux lists the features that the processor has and the kernel has switched on."""

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")

DEVICES = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
"""The names that a user may give, and torch's."""


def cores() -> int:
    """Return how many cores this process may use: those it is bound to, up to its container's CPU limit."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return bound if limit is None else max(1, min(bound, math.ceil(limit)))


def cpu_limit() -> float | None:
    """Return the CPU limit of this process's control groups in cores; None if there is none.

    `docker run --cpus`, a Kubernetes limit and systemd's CPUQuota= set it. With version 2
    (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files) the process's own group and all
    visible groups above it count; with version 1, the container's group.
    """
    lines = [line for line in _text(OWN_CGROUP).splitlines() if line.startswith("0::")]
    own_group = Path(lines[0].removeprefix("0::").lstrip("/") if lines else "")
    limits = [_text(CGROUPS / group / "cpu.max") for group in (own_group, *own_group.parents)]
    limits.append(" ".join(_text(CGROUPS / f"cpu/cpu.cfs_{part}_us") for part in ("quota", "period")))
    shares = []
    for limit in limits:
        quota, _, period = limit.partition(" ")
        try:
            shares.append(int(quota) / int(period))
        except (ValueError, ZeroDivisionError):  # `max`, or nothing that can be read
            continue
    return min((share for share in shares if share > 0), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def check_device_name(name: str) -> None:
    """Raise ModelError unless the name is `auto`, `cpu`, `cuda` or `cuda:N`."""
    if not DEVICES.fullmatch(name):
        raise ModelError(f"device {name!r} is not supported; give auto, cpu, cuda or cuda:N")


def check_dtype_name(name: str) -> None:
    """Raise ModelError unless the name is `auto` or one of DTYPES."""
    if name != "auto" and name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not known; give auto, {', '.join(DTYPES)}")


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the features that CPUINFO lists for every core; none if it cannot be read.

    ATEN_CPU_CAPABILITY=avx2 hides AVX-512 and AMX, as it does from torch's own kernels.
    """
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    listed = [{*line.partition(":")[2].split()} for line in lines if line.startswith(("flags", "Features"))]
    flags = set.intersection(*listed) if listed else set()
    limited = os.environ.get("ATEN_CPU_CAPABILITY", "").lower() in ("default", "avx2")
    return frozenset(flag for flag in flags if not (limited and flag.startswith(("avx512", "amx"))))


def processor_features() -> list[str]:
    """Return the vector features of this CPU that decide which code paths compute."""
    names = {"avx512f": "avx512", "amx_tile": "amx"}
    flags = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
    return [names.get(flag, flag) for flag in flags if flag in cpu_flags()]

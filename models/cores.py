"""Counts the processor cores that this process may use. Imports neither torch nor the rest of the project."""

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


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
    own = Path(lines[0].removeprefix("0::").lstrip("/") if lines else "")
    limits = [_text(CGROUPS / group / "cpu.max") for group in (own, *own.parents)]
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

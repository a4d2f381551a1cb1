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
    limits = [_share(_words(group / "cpu.max")) for group in _own_groups()]
    limits.append(
        _share([*_words(CGROUPS / "cpu/cpu.cfs_quota_us"), *_words(CGROUPS / "cpu/cpu.cfs_period_us")])
    )
    return min((limit for limit in limits if limit is not None), default=None)


def _own_groups() -> list[Path]:
    """Return this process's control group (version 2) and all above it."""
    for line in _lines(OWN_CGROUP):
        if line.startswith("0::"):
            own = Path(line.removeprefix("0::").lstrip("/"))
            return [CGROUPS / group for group in (own, *own.parents)]
    return [CGROUPS]


def _share(quota_and_period: list[str]) -> float | None:
    """Return quota / period, both in microseconds; None for `max`, -1 or anything unreadable."""
    try:
        quota, period = map(int, quota_and_period)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []

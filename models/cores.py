"""How many processor cores there are for us. Knows neither torch nor the rest of the project."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def cores() -> int:
    """How many cores this process may use: those it is bound to, no more than its container's CPU limit."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return bound if limit is None else max(1, min(bound, math.ceil(limit)))


def cpu_limit() -> float | None:
    """The cores' worth of time that Linux grants this process's control groups; None where it sets no limit.

    It is what `docker run --cpus`, a Kubernetes limit and systemd's CPUQuota= come to. Of version 2
    (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files) the process's own group and those
    above it count, as far as they can be seen; of version 1 the container's.
    """
    limits = [_share(_words(group / "cpu.max")) for group in _own_groups()]
    limits.append(
        _share([*_words(CGROUPS / "cpu/cpu.cfs_quota_us"), *_words(CGROUPS / "cpu/cpu.cfs_period_us")])
    )
    return min((limit for limit in limits if limit is not None), default=None)


def _own_groups() -> list[Path]:
    """This process's group of version 2 and all above it."""
    for line in _lines(OWN_CGROUP):
        if line.startswith("0::"):
            own = Path(line.removeprefix("0::").lstrip("/"))
            return [CGROUPS / group for group in (own, *own.parents)]
    return [CGROUPS]


def _share(quota_and_period: list[str]) -> float | None:
    """Quota over period, of microseconds; None for `max`, -1 and what cannot be read."""
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

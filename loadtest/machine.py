"""Describes the client's machine for the report, because numbers depend on it."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("uvloop", "httptools", "hdrhistogram", "numpy")


def describe() -> dict[str, Any]:
    """Return processor, memory, system and versions of the client's machine."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    file = Path("/proc/cpuinfo")
    model = re.search(
        r"^model name\s*: (.*)$", file.read_text("utf-8") if file.exists() else "", re.MULTILINE
    )
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "cores": usable,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }

"""The service that the page's tests look at: its live config, and an experiment with some days of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LIVE: dict[str, Any] = {
    "variants": [
        {"name": "full"},
        {"name": "pruned20", "head_mask": "@pruned20", "sliced": True},
        {"name": "pruned60", "head_mask": "@pruned60", "sliced": True},
    ],
}


def seed(database: Path) -> None:
    """Write it."""

"""Reads the figures of a checkpoint's quality, which `headroom train` writes."""

from __future__ import annotations

import json
from pathlib import Path

from models.errors import UnsupportedCheckpoint


def read_quality(directory: Path) -> dict[str, float] | None:
    """Return a checkpoint's figures: "test", else "validation", of its metrics.json; None without a file."""
    file = directory / "metrics.json"
    if not file.exists():
        return None
    try:
        metrics = json.loads(file.read_text(encoding="utf-8"))
        figures = metrics["test"] if "test" in metrics else metrics["validation"]
        return {str(name): float(value) for name, value in figures.items() if isinstance(value, int | float)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None

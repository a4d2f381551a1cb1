"""Checks of a new checkpoint's directory and source, made before torch is imported."""

from __future__ import annotations

from pathlib import Path

from models.checkpoint.config import ModelConfig
from models.errors import ModelError


def check_empty(target: Path) -> None:
    """Raise ModelError if the directory to write is not empty, or is a file."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} is not empty; name a new directory")


def check_can_be_quantized(source: Path, config: ModelConfig) -> None:
    """Raise ModelError if the checkpoint is quantized already."""
    if config.int8:
        raise ModelError(f"{source} is quantized already; name the float checkpoint it was made from")

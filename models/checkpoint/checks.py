"""What a new checkpoint's place and source must be, checked before torch is imported."""

from __future__ import annotations

from pathlib import Path

from models.checkpoint.config import ModelConfig
from models.errors import ModelError


def check_empty(target: Path) -> None:
    """Raises ModelError where a directory to write is there and holds something, or is a file."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} is not empty; name a new directory")


def check_can_be_quantized(source: Path, config: ModelConfig) -> None:
    """Raises ModelError where the checkpoint is quantized already."""
    if config.int8:
        raise ModelError(f"{source} is quantized already; name the float checkpoint it was made from")

"""Reads what lies beside the weights: the figures of quality, and a study's findings about each head.

`headroom train` writes metrics.json, and `headroom study` head_study.json, which is copied to the weights.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from models.checkpoint.config import ModelConfig
from models.errors import UnsupportedCheckpoint

FILE = "head_study.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

logger = logging.getLogger("headroom.models")


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


def read_head_study(directory: Path, config: ModelConfig) -> dict[str, Any] | None:
    """Return the study of a checkpoint's heads, or None without one.

    A file that was made for other weights, or that cannot be read, is left out with a warning: it only
    explains heads, and scores do not depend on it.
    """
    file = directory / FILE
    if not file.exists():
        return None
    try:
        study: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if study["shape"] != [config.num_layers, config.num_heads]:
            raise ValueError(f"it is for {study['shape']} layers and heads")
        if len(study["heads"]) != config.num_layers * config.num_heads:
            raise ValueError("it does not list each head once")
        if study["weights"] != weights_id(directory):
            raise ValueError("it is for other weights; make it again after a training")
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s is not used: %s", file, error)
        return None
    return study


def weights_id(directory: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a checkpoint's weights; empty if they are in parts."""
    for name in WEIGHTS:
        if (directory / name).exists():
            with (directory / name).open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    return ""

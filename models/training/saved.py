"""Writes and reads what a training saves, so that it can go on."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from models.errors import ModelError


def save(state: Any, path: Path) -> None:
    """Write a state whole or not at all: if the process is killed, the file before stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def read_saved(path: Path) -> dict[str, Any]:
    """Return a saved state. Raises ModelError if the file holds anything but tensors and plain values: such
    a file could run code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        raise ModelError(
            f"{path} is damaged, or holds Python objects that could run code; remove it to begin anew"
        ) from None
    return state

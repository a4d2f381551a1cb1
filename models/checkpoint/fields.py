"""Reads config.json and checks single fields of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import UnsupportedCheckpoint

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    **dict.fromkeys(
        "gelu_new gelu_fast gelu_accurate gelu_pytorch_tanh gelu_python_tanh".split(), "gelu_tanh"
    ),
    "swish": "silu",
    "linear": "none",
    **{
        name: name
        for name in "gelu_10 hardswish leaky_relu mish quick_gelu relu relu6 sigmoid silu tanh".split()
    },
}
"""The activation in config.json, as transformers names it → the name that `models.ops` uses."""


AT_MOST = {
    "num_hidden_layers": 1_000,
    "n_layers": 1_000,
    "num_attention_heads": 1_000,
    "n_heads": 1_000,
    "max_position_embeddings": 131_072,
    "num_labels": 10_000,
    "out_features": 10_000,
}
"""Largest values of sizes that something is allocated for before the weights are read; of others, SIZE."""
SIZE = 100_000_000


def positive_int(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a field that is a whole number ≥ 1 and at most AT_MOST. default: its value if it is missing."""
    value = raw.get(name, default)
    if type(value) is not int or value < 1:
        raise UnsupportedCheckpoint(f"config.json: {name} is {value!r}; it must be a whole number ≥ 1")
    if value > AT_MOST.get(name, SIZE):
        raise UnsupportedCheckpoint(f"config.json: {name} is {value}, more than {AT_MOST.get(name, SIZE):,}")
    return value


def positive_float(value: Any, name: str) -> float:
    """Return the value of the field `name`, a finite number > 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsupportedCheckpoint(f"config.json: {name} is {value!r}; it must be a finite number > 0")
    return float(value)


def activation(raw: Mapping[str, Any], name: str, default: str = "gelu") -> str:
    """Return the activation that a field names, as `models.ops` calls it."""
    value = raw.get(name, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise UnsupportedCheckpoint(
            f"config.json: {name} is {value!r}; supported: {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[value]


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises UnsupportedCheckpoint, which names the file."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedCheckpoint(f"{file} does not exist") from None
    except (ValueError, OSError) as error:
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise UnsupportedCheckpoint(f"{file} is not a JSON object")
    return raw

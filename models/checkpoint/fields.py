"""Reads config.json and checks single fields of it."""

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


def check(is_right: bool, problem: str) -> None:
    """Raise UnsupportedCheckpoint with the problem unless a file is right."""
    if not is_right:
        raise UnsupportedCheckpoint(problem)


def need(is_right: bool, name: str, value: object, wanted: str) -> None:
    """Raise UnsupportedCheckpoint unless a field of config.json is right. wanted: says what it must be."""
    check(is_right, f"config.json: {name} is {value!r}; {wanted}")


def flag(raw: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; default: false."""
    value = raw.get(name, False)
    need(type(value) is bool, name, value, "it must be true or false")
    return bool(value)


def positive_int(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a field that is a whole number ≥ 1 and at most AT_MOST. default: its value if it is missing."""
    value: Any = raw.get(name, default)
    need(type(value) is int and value >= 1, name, value, "it must be a whole number ≥ 1")
    limit = AT_MOST.get(name, SIZE)
    need(value <= limit, name, value, f"it must be at most {limit:,}")
    return int(value)


def positive_float(value: Any, name: str) -> float:
    """Return the value of the field `name`, a finite number > 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    need(is_number and 0 < value < math.inf, name, value, "it must be a finite number > 0")
    return float(value)


def activation(raw: Mapping[str, Any], name: str, default: str = "gelu") -> str:
    """Return the activation that a field names, as `models.ops` calls it."""
    value = raw.get(name, default)
    is_known = isinstance(value, str) and value in ACTIVATIONS
    need(is_known, name, value, f"supported: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[value]


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises UnsupportedCheckpoint, which names the file."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedCheckpoint(f"{file} does not exist") from None
    except (ValueError, OSError) as error:
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None
    check(isinstance(raw, dict), f"{file} is not a JSON object")
    return dict(raw)

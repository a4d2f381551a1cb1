"""Reads a checkpoint's JSON files, and checks single fields of its config.json."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headroom.models import files
from headroom.models.errors import UnsupportedCheckpoint, reading_problem
from headroom.models.files import Json

_ALIKE = "gelu relu sigmoid silu tanh".split()
_GELU_TANH = "gelu_new gelu_fast gelu_accurate gelu_pytorch_tanh gelu_python_tanh".split()
ACTIVATIONS = {
    **dict(zip(_ALIKE, _ALIKE, strict=True)),
    **dict.fromkeys(_GELU_TANH, "gelu_tanh"),
    "gelu_python": "gelu",
    "swish": "silu",
    "linear": "none",
}
"""The activation in config.json, as transformers names it → the name that `headroom.models.ops` uses."""

Fields = Mapping[str, Any]
"""The fields of a config.json, or of another JSON object in a checkpoint."""

MAX_BYTES = 128 << 20
"""The largest file that is read beside the weights; the tokenizers of 250,000 pieces have 35 MB."""

MIN_WINDOW = 4
"""The fewest tokens that hold a pair: a token of each text, and two special ones."""


def check(is_right: object, problem: str) -> None:
    """Raise UnsupportedCheckpoint with the problem unless a file is right."""
    if not is_right:
        raise UnsupportedCheckpoint(problem)


def need(is_right: object, name: str, value: object, wanted: str) -> None:
    """Raise UnsupportedCheckpoint unless a field of config.json is right. wanted: says what it must be."""
    check(is_right, f"config.json: {name} is {value!r}; {wanted}")


def positive_int(raw: Fields, name: str, default: int | None = None, maximum: int = 100_000_000) -> int:
    """Return a field that is a whole number ≥ 1. default: its value if it is missing. maximum: small
    where memory is allocated before the weights confirm it."""
    value: Any = raw.get(name, default)
    is_right = type(value) is int and 1 <= value <= maximum
    need(is_right, name, value, f"it must be a whole number from 1 to {maximum:,}")
    return int(value)


def window(value: Any, file: Path, name: str) -> int | None:
    """Return the tokens of the longest sequence, which the field `name` of a file says; None if it does not.

    transformers writes 1e30 for a tokenizer without a limit.
    """
    if value is None:
        return None
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    wanted = f"it must be a whole number from {MIN_WINDOW}"
    check(is_whole and value >= MIN_WINDOW, f"{file}: {name} is {value!r}; {wanted}")
    return int(value)


def positive_float(value: Any, name: str) -> float:
    """Return the value of the field `name`, a finite number > 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    need(is_number and 0 < value < math.inf, name, value, "it must be a finite number > 0")
    return float(value)


def finite_floats(value: Any, name: str, count: int) -> tuple[float, ...]:
    """Return the value of the field `name`, a list of `count` finite numbers."""
    numbers = value if isinstance(value, list) else []
    is_right = len(numbers) == count and all(
        isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in numbers
    )
    need(is_right, name, value, f"it must be a list of {count} finite numbers, one per label")
    return tuple(float(one) for one in numbers)


def choice(raw: Fields, name: str, known: Iterable[Any], default: Any = None) -> Any:
    """Return a field that has one of the known values. default: its value if it is missing."""
    value = raw.get(name, default)
    known = list(known)
    need(value in known, name, value, f"supported: {', '.join(map(repr, known))}")
    return value


def activation(raw: Fields, name: str, default: str = "gelu") -> str:
    """Return the activation that a field names, as `headroom.models.ops` calls it."""
    return ACTIVATIONS[choice(raw, name, ACTIVATIONS, default)]


@contextmanager
def reading(file: Path | str) -> Iterator[None]:
    """Raise UnsupportedCheckpoint, which names the file, if it cannot be read or has another form than such
    files have: any error says so, because libraries raise many types."""
    try:
        yield
    except UnsupportedCheckpoint:
        raise
    except Exception as error:
        raise UnsupportedCheckpoint(reading_problem(file, error)) from error


def read_json_if_there(file: Path) -> Json:
    """Return the object of a JSON file, and an empty one if there is no such file."""
    return read_json(file) if file.is_file() else {}


def read_json(file: Path) -> Json:
    """Return the JSON object in a file. Raises UnsupportedCheckpoint, which names the file."""
    with reading(file):
        raw = json.loads(files.read_text(file, MAX_BYTES))
    check(isinstance(raw, dict), f"{file} is not a JSON object")
    return dict(raw)

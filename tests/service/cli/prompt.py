"""What a test of the `headroom` program gets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Output(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Output]

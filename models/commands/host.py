"""The program that registers the commands adds variants of config files here; `models` does not know them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models import Classifier, HeadMask
    from models.quality.comparison import Side
    from models.quality.labelled import Columns, LabelledPair


@dataclass(frozen=True, slots=True)
class Network:
    """The options that name a network: those of the command line with these names."""

    model: str | None
    config: Path | None
    variant: str | None
    mask: str | None
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Sides:
    """A variant beside its baseline on labelled pairs. stages: how many pairs ended at each, of a cascade."""

    sides: list[Side]
    pairs: list[LabelledPair]
    labels: tuple[str, ...]
    stages: dict[str, int]


resolve: Callable[[Network], tuple[Classifier, HeadMask]]
"""Returns the classifier and the mask that the options name. The program sets it, and `sides`."""

sides: Callable[[Network, Path, Columns], Sides]
"""Grades the labelled pairs of a file by a variant and by what it is measured beside."""

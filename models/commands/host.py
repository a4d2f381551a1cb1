"""Additions of the program that registers the commands: variants of config files.

`models` does not know them. In a program without them, the options that need them are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from models.errors import ModelError

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


def _missing(*_: Any) -> NoReturn:
    raise ModelError("this program knows no config files; use the headroom program")


@dataclass(slots=True)
class Host:
    """The functions that the program adds."""

    resolve: Callable[[Network], tuple[Classifier, HeadMask]] = _missing
    """Return the classifier and the mask that the options name."""

    sides: Callable[[Network, Path, Columns], Sides] = _missing
    """Grade the labelled pairs of a file by a variant and by what it is measured beside."""


host = Host()

"""The models, masks and columns that a job scores its pairs with."""

from __future__ import annotations

from dataclasses import dataclass

from service.config.settings import LiveConfig
from service.config.variants import MaskForm
from service.files.reading import Fields


@dataclass(frozen=True, slots=True)
class Column:
    """The variant and mask of a set of output columns. suffix: ends their names, "" if there is one set only.

    variant, mask: None if not given, or if a column of the input chooses them. The mask may switch units off.
    """

    suffix: str = ""
    variant: str | None = None
    mask: MaskForm | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """All that pairs are scored with: a value that can be sent to another machine.

    model: a checkpoint's directory or hub id, or None for the shipped one. live: variants and masks.
    """

    model: str | None
    live: LiveConfig
    columns: tuple[Column, ...]
    fields: Fields
    overflow: str = "truncate"
    device: str = "auto"
    dtype: str = "auto"

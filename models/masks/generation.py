"""The masks of a query's generation: of the encoder's heads, and of the two attentions of the decoder.

One grammar names them all: the encoder's part comes first, then `decoder:` (masked self-attention) and
`cross:` (encoder–decoder attention), each after a semicolon: `0-5.*;decoder:2.3;cross:1.*`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from headroom.models.errors import InvalidMask
from headroom.models.masks.grammar import GENERATOR_PARTS, Shape, generator_part, shown
from headroom.models.masks.head_mask import HeadMask


@dataclass(frozen=True)
class GenerationMask:
    """Which heads act while a query is generated. Masks are equal if all three are.

    encoder: of the encoder that reads the question. decoder: of the masked self-attention, and cross: of the
    encoder–decoder attention, (layers, heads) of the generator each.
    """

    encoder: HeadMask
    decoder: HeadMask
    cross: HeadMask

    @cached_property
    def spec(self) -> str:
        """Return the canonical spec, such as `0-5.*;cross:1.*`; `none` if all heads are on."""
        parts = [] if self.encoder.is_none else [self.encoder.spec]
        if not self.keeps_generator:
            parts.append(self.generator_spec)
        return ";".join(parts) or "none"

    @cached_property
    def generator_spec(self) -> str:
        """Return the canonical spec of the decoder's part, such as `decoder:0.1;cross:1.*`, or `none`."""
        parts = {"decoder": self.decoder, "cross": self.cross}
        return ";".join(f"{name}:{mask.spec}" for name, mask in parts.items() if not mask.is_none) or "none"

    @property
    def keeps_generator(self) -> bool:
        """Return whether the decoder's heads are all on."""
        return self.decoder.is_none and self.cross.is_none


class SpecParts(NamedTuple):
    """A spec cut at its semicolons. encoder: None if it says nothing about the encoder."""

    encoder: str | None
    generator: Mapping[str, str]


def split_spec(spec: str) -> SpecParts:
    """Return the parts of a spec such as `2.3,7.*;decoder:0.1;cross:1.*`.

    Raises InvalidMask if they stand in another order, or one stands twice.
    """
    encoder: str | None = None
    generator: dict[str, str] = {}
    for number, text in enumerate(spec.split(";")):
        name = generator_part(text)
        if name is None and number:
            raise InvalidMask(
                f"{shown(text.strip())} stands after a ';'; the encoder's heads come first, then decoder: or "
                "cross: (0-5.*;cross:1.*)"
            )
        if name is None:
            encoder = text
        elif name in generator:
            raise InvalidMask(f"{name}: stands twice; list its heads once ({name}:0.1,1.*)")
        else:
            generator[name] = text.partition(":")[2]
    return SpecParts(encoder, generator)


def generator_masks(parts: Mapping[str, str], shape: Shape) -> tuple[HeadMask, HeadMask]:
    """Return the masks of the decoder's masked self-attention and of its encoder–decoder attention.

    parts: the lists of heads by the part's name. shape: (layers, heads) of the generator.
    Raises InvalidMask: one sentence that says what is wrong, in which part, and the valid range.
    """
    layers, heads = shape
    masks = dict.fromkeys(GENERATOR_PARTS, HeadMask.none(layers, heads))
    for name, text in parts.items():
        if "@" in text.partition("random:")[0] or "skip:" in text:
            raise InvalidMask(
                f"{name}: {shown(text.strip())} is for the encoder alone; list heads ({name}:1.*)"
            )
        try:
            masks[name] = HeadMask.parse(text, layers=layers, heads=heads)
        except InvalidMask as error:
            raise InvalidMask(f"{name}: {error}") from None
    return masks["decoder"], masks["cross"]


def generation_mask(spec: str, encoder: Callable[[str], HeadMask], shape: Shape) -> GenerationMask:
    """Return the mask of a spec such as `2.3,7.*;decoder:0.1;cross:1.*`.

    encoder: returns the mask of the encoder's part. shape: (layers, heads) of the generator.
    Raises InvalidMask as `split_spec` and `generator_masks` do.
    """
    parts = split_spec(spec)
    spec_of_encoder = "none" if parts.encoder is None else parts.encoder
    return GenerationMask(encoder(spec_of_encoder), *generator_masks(parts.generator, shape))

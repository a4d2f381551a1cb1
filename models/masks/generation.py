"""The masks of a query's generation: of the encoder's heads, and of the two attentions of the decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from headroom.models.errors import InvalidMask
from headroom.models.masks.grammar import Shape, shown
from headroom.models.masks.head_mask import HeadMask

PARTS = ("decoder", "cross")
"""The masked self-attention and the encoder–decoder attention of a query generator."""


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
        parts = {"": self.encoder, "decoder:": self.decoder, "cross:": self.cross}
        return ";".join(f"{name}{mask.spec}" for name, mask in parts.items() if not mask.is_none) or "none"

    @property
    def is_none(self) -> bool:
        """Return whether the decoder's heads are all on."""
        return self.decoder.is_none and self.cross.is_none


def generation_mask(spec: str, encoder: Callable[[str], HeadMask], shape: Shape) -> GenerationMask:
    """Return the mask of a spec such as `2.3,7.*;decoder:0.1;cross:1.*`.

    encoder: returns the mask of the encoder's part. shape: (layers, heads) of the generator.
    Raises InvalidMask: one sentence that says what is wrong, in which part, and the valid range.
    """
    layers, heads = shape
    whole = HeadMask.none(layers, heads)
    of_encoder = encoder("none")
    parts = dict.fromkeys(PARTS, whole)
    given = set[str]()
    for number, text in enumerate(spec.split(";")):
        name, part = split_part(text)
        if not name and number:
            raise InvalidMask(
                f"{shown(text.strip())} stands after a ';'; the encoder's heads come first, then decoder: or "
                "cross: (0-5.*;cross:1.*)"
            )
        if name in given:
            raise InvalidMask(f"{name}: stands twice; list its heads once (cross:0.1,1.*)")
        given.add(name)
        if not name:
            of_encoder = encoder(text)
            continue
        if part.strip().startswith(("@", "skip:")):
            raise InvalidMask(
                f"{name}: {shown(part.strip())} is for the encoder alone; list heads (cross:1.*)"
            )
        try:
            mask = HeadMask.parse(part, layers=layers, heads=heads)
        except InvalidMask as error:
            raise InvalidMask(f"{name}: {error}") from None
        if mask.skipped:
            raise InvalidMask(f"{name}: only the encoder's layers can be skipped; list heads (cross:1.*)")
        parts[name] = mask
    return GenerationMask(of_encoder, parts["decoder"], parts["cross"])


def split_part(text: str) -> tuple[str, str]:
    """Return the part of the generator that a spec begins with, and the rest; "" for the encoder's."""
    name, colon, rest = text.strip().partition(":")
    return (name.strip(), rest) if colon and name.strip() in PARTS else ("", text)


def names_generator(spec: object) -> bool:
    """Return whether a mask's form names heads of a query generator."""
    return isinstance(spec, str) and any(split_part(text)[0] for text in spec.split(";"))

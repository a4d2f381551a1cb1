"""The heads that a request lists."""

from __future__ import annotations

from models.classifier import Classifier
from models.errors import InvalidMask
from models.masks.head_mask import HeadMask
from service.errors import InvalidRequest


def heads_of(spec: str, classifier: Classifier) -> tuple[tuple[int, int], ...]:
    """Return the heads of a list such as `2.3,4.*` as (layer, head): those that a mask of this spec switches
    off. Raises InvalidRequest if it is no such list, or empty."""
    try:
        mask = HeadMask.parse(spec, layers=classifier.num_layers, heads=classifier.num_heads)
    except InvalidMask as error:
        raise InvalidRequest(str(error), param="heads") from None
    if mask.skipped:
        raise InvalidRequest("names layers with skip:; list heads, such as 2.3,4.*", param="heads")
    if not mask.off:
        raise InvalidRequest("names no head; list some, such as 2.3,4.*", param="heads")
    return mask.off

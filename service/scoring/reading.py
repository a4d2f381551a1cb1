"""Chooses the tokenizer for a request.

Other servers' clients may ask to keep the end of long texts, to refuse them, or to read one text alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.checkpoint.reading import OtherReading
from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from service.errors import InvalidRequest
from service.schemas.texts import TruncationRequest


def tokenizer_for(request: object, tokenizer: PairTokenizer, pair: int | None = None) -> PairTokenizer:
    """Return the tokenizer that reads a request's texts as the request asks for.

    pair: the place in the request of the only pair that it is to read; None: it reads all of them together.
    """
    if not isinstance(request, TruncationRequest):
        return tokenizer
    alone = request.alone if pair is None else [0] if pair in request.alone else ()
    if request.keep != "end" and not alone:
        return tokenizer
    return OtherReading(tokenizer, keep_end=request.keep == "end", alone=alone)


def check_whole(request: object, encoded: Sequence[EncodedPair], window: int) -> None:
    """Raise InvalidRequest if texts do not fit into the window of a request that wants them whole."""
    if not isinstance(request, TruncationRequest) or request.keep != "all":
        return
    field = "titles" if request.pairs is None else "pairs"
    for place, pair in enumerate(encoded):
        if pair.truncated:
            raise InvalidRequest(
                f"does not fit into the window of {window} tokens; send shorter texts, or allow truncation",
                param=f"{field}[{place}]",
            )

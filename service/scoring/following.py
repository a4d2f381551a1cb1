"""Tells the access log and the trace of a request, if it is followed, what it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from service.engine.trail import Trail
from service.observe.followed import current
from service.schemas.condense import CondenseRequest
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.scoring.catalog import Choice


def asks_for(
    request: ScoreRequest | CompareRequest | AttentionRequest | CondenseRequest, choices: Sequence[Choice]
) -> None:
    """Note the variant and mask of each column, and the request's pairs."""
    if (followed := current.get()) is None:
        return
    if isinstance(request, AttentionRequest):
        query, pairs = request.query, 1
    elif isinstance(request, CondenseRequest):
        query, pairs = request.query, len(request.titles)
    else:
        texts = request.texts()
        query, pairs = texts[0][0], len(texts)
    columns = [(choice.variant.name, choice.mask.id) for choice in choices]
    followed.asks_for(columns, pairs, query)


def tokenized(began: float, ended: float) -> None:
    """Note when the request's texts were read, on the monotonic clock."""
    if (followed := current.get()) is not None and followed.trace is not None:
        followed.trace.stage("tokenize", began, ended)


def trail() -> Trail | None:
    """Return what follows the request through queue and batches; None if it is not traced."""
    followed = current.get()
    return None if followed is None else followed.trace

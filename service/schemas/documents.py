"""A scoring request that says how much of each document to read, as some other clients' shapes can."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.checkpoint.chunks import LongTitles
from service.schemas.requests import ScoreRequest

_Limit = Annotated[int, Field(ge=1)] | None


class DocumentsRequest(ScoreRequest):
    """A ScoreRequest with Cohere's two limits; /v1 does not take them.

    A document is cut off after `max_tokens_per_doc` tokens first. With `overflow="chunks"`, at most
    `max_chunks_per_doc` chunks of it are scored. Text beyond either limit makes its result `truncated`.
    """

    max_tokens_per_doc: _Limit = None
    max_chunks_per_doc: _Limit = None

    @property
    def long_titles(self) -> LongTitles | None:
        """How much to read of each document. None: truncate it to the window."""
        if self.overflow == "truncate" and self.max_tokens_per_doc is None:
            return None
        return LongTitles(self.overflow, self.max_tokens_per_doc, self.max_chunks_per_doc)

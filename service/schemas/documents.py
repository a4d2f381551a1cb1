"""A scoring request that says how to read its texts, as the shapes of some other clients can."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from models.checkpoint.chunks import LongTitles
from service.schemas.requests import ScoreRequest

_Limit = Annotated[int, Field(ge=1)] | None


class DocumentsRequest(ScoreRequest):
    """A ScoreRequest with ways of reading that /v1 does not take.

    A document is cut off after `max_tokens_per_doc` tokens first. With `overflow="chunks"`, at most
    `max_chunks_per_doc` chunks of it are scored. Text beyond either limit makes its result `truncated`.

    keep: which part is read of texts that do not fit into the window; "all": such texts are refused.
    alone: the indices of the pairs whose query is read by itself; their title is empty.
    """

    max_tokens_per_doc: _Limit = None
    max_chunks_per_doc: _Limit = None
    keep: Literal["beginning", "end", "all"] = "beginning"
    alone: frozenset[int] = frozenset()

    @property
    def long_titles(self) -> LongTitles | None:
        """How much to read of each document. None: truncate it to the window."""
        if self.overflow == "truncate" and self.max_tokens_per_doc is None:
            return None
        return LongTitles(self.overflow, self.max_tokens_per_doc, self.max_chunks_per_doc)

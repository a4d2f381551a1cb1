"""The scoring request for other servers' clients, who choose what is kept of texts that are too long."""

from __future__ import annotations

from typing import Literal

from service.schemas.requests import ScoreRequest

KeptPart = Literal["beginning", "end", "all"]
"""What is kept of texts that do not fit into the window: of each the beginning or the end. "all": such texts
are refused."""


class TruncationRequest(ScoreRequest):
    """A scoring request that also says what becomes of texts that do not fit into the window.

    keep: the part of them that is read.
    alone: the pairs, by their place, whose query is read by itself; their title is empty.
    """

    keep: KeptPart = "beginning"
    alone: frozenset[int] = frozenset()

    @classmethod
    def of(cls, request: ScoreRequest, keep: KeptPart, alone: frozenset[int] = frozenset()) -> ScoreRequest:
        """Return a checked request with these ways of reading."""
        if keep == "beginning" and not alone:
            return request
        return cls.model_construct(**dict(request), keep=keep, alone=alone)

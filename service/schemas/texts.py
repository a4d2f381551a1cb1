"""The scoring request behind the routes of other people's clients, whose servers read texts in more ways."""

from __future__ import annotations

from typing import Literal

from service.schemas.requests import ScoreRequest

Keep = Literal["beginning", "end", "all"]
"""What is kept of texts that do not fit into the window: of each the beginning or the end. "all": such texts
are refused."""


class TextsRequest(ScoreRequest):
    """A scoring request that also says how its texts are read.

    alone: the pairs, by their place, whose query is read by itself; their title is empty.
    """

    keep: Keep = "beginning"
    alone: frozenset[int] = frozenset()

    @classmethod
    def of(cls, request: ScoreRequest, keep: Keep, alone: frozenset[int] = frozenset()) -> ScoreRequest:
        """Return a checked request with these ways of reading."""
        if keep == "beginning" and not alone:
            return request
        return cls.model_construct(**dict(request), keep=keep, alone=alone)

"""VLLM's score requests and answers: one query to one document, one to many, or pair by pair.

https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/pooling/scoring/protocol.py
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import WithJsonSchema

from headroom.service.api.clients.answers import TokenUsage, model_name, usage_of
from headroom.service.api.clients.base import CompatRequest, query_and_titles
from headroom.service.api.errors import OURS
from headroom.service.descriptions import documented
from headroom.service.schemas.requests import ScoreRequest, accepted, example
from headroom.service.schemas.responses import Number, ScoreResponse

Texts = Annotated[
    str | list[str],
    accepted(
        lambda form: (
            isinstance(form, str) or (isinstance(form, list) and all(isinstance(text, str) for text in form))
        ),
        "should be a string or a list of strings",
    ),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


@documented
@dataclass(slots=True)
class VllmScore:
    """One pair's score."""

    index: int
    """Position in the request."""
    object: Literal["score"]
    """The kind of object."""
    score: Number
    """`score` of /v1/score; with `raw_scores`, a logit."""


@documented
@dataclass(slots=True)
class VllmScores:
    """The scores, in the order of the request."""

    id: str
    """New for each answer."""
    object: Literal["list"]
    """The kind of object."""
    created: int
    """Seconds since 1970."""
    model: str
    """What scored: `NAME@VARIANT`."""
    data: list[VllmScore]
    """One per pair."""
    usage: TokenUsage


class VllmScoreRequest(CompatRequest):
    """A score request of vLLM. `names` says how one of its two forms calls queries and documents."""

    servers = ("vLLM",)
    answers = (VllmScores,)
    errors = OURS

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        sides = (getattr(self, self.names[field]) for field in ("query", "titles"))
        queries, documents = ([side] if isinstance(side, str) else side for side in sides)
        return self.scoring(**query_and_titles(queries, documents))

    def answer(self, response: ScoreResponse) -> VllmScores:
        """Return the scores, in the order of the request."""
        return VllmScores(
            id=f"score-{uuid.uuid4().hex}",
            object="list",
            created=int(time.time()),
            model=model_name(response),
            data=[VllmScore(each.index, "score", self.relevance(each)) for each in response.results],
            usage=usage_of(response),
        )


class VllmTextsRequest(VllmScoreRequest):
    """Score texts against texts, in vLLM's older form."""

    model_config = example(text_1="angle bracket", text_2=["Wood deck screws", "12-Gauge Angle"])
    distinct_field = "text_1"
    names: ClassVar[Mapping[str, str]] = {"query": "text_1", "titles": "text_2"}

    text_1: Texts
    """The query, or as many as there are documents."""
    text_2: Texts
    """The documents."""


class VllmQueriesRequest(VllmScoreRequest):
    """Score documents against queries, as vLLM does."""

    model_config = example(queries=["angle bracket", "screw"], documents=["12-Gauge Angle", "USB cable"])
    distinct_field = "queries"
    names: ClassVar[Mapping[str, str]] = {"query": "queries", "titles": "documents"}

    queries: Texts
    """The query, or as many as there are documents."""
    documents: Texts
    """The documents."""

"""SGLang's rerank requests and answers.

https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/openai/protocol.py

Its path is that of the other servers, but its answer is a bare list. So a client of SGLang is known by the
field `instruct`, or by the path /sglang/v1/rerank.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from headroom.service.api.clients.base import RankingRequest, by_relevance
from headroom.service.api.clients.documents import ReturnDocuments, Texts, TopN
from headroom.service.descriptions import doc
from headroom.service.schemas.requests import Instruction, Query, ScoreRequest, example
from headroom.service.schemas.responses import Number, ScoreResponse


class SglangRank(TypedDict):
    """One document's relevance."""

    score: Annotated[Number, doc("`score` of /v1/score.")]
    document: NotRequired[Annotated[str, doc("The text, unless `return_documents` is false.")]]
    index: Annotated[int, doc("Position in the request.")]
    meta_info: Annotated[dict[str, int], doc("`prompt_tokens`: of the pair.")]


class SglangRequest(RankingRequest):
    """A rerank request as SGLang takes it, known by its `instruct` or by the path."""

    model_config = example(
        query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], instruct="Find the product."
    )
    distinct_field = "instruct"
    servers = ("SGLang",)
    answers = (list[SglangRank],)

    query: Query = Field(description="What was searched for; not blank.")
    documents: Texts
    instruct: Instruction = None
    top_n: TopN = None
    return_documents: ReturnDocuments = None

    @property
    def documents_shown(self) -> int | None:
        """The number of documents that the answer shows, the best ones; None: all."""
        return self.top_n

    def scoring(self, reading: Mapping[str, Any] | None = None, **texts: Any) -> ScoreRequest:
        """Return our request, with the instruction."""
        request = super().scoring(reading, **texts)
        return request if self.instruct is None else request.model_copy(update={"instruction": self.instruct})

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        return self.scoring(query=self.query, titles=self.documents)

    def answer(self, response: ScoreResponse) -> list[dict[str, Any]]:
        """Return SGLang's list, the most relevant first."""
        ranks: list[dict[str, Any]] = [
            {"score": one.score, "index": one.index, "meta_info": {"prompt_tokens": one.tokens}}
            for one in by_relevance(response.results)[: self.top_n]
        ]
        if self.return_documents is False:
            return ranks
        return [rank | {"document": self.documents[rank["index"]]} for rank in ranks]

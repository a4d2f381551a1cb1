"""The base classes of other people's request shapes: they read, score, order and refuse all of them alike.

A shape is a pydantic model of a client's request (`CompatRequest`). `score_request` makes our scoring request
of it, and `answer` the client's answer of ours. Limits, deadlines and experiments are those of
`POST /v1/score`. `headroom.service.api.clients` says which shapes each path takes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import ConfigDict, Field

from headroom.service.api.errors import RERANK, ErrorShape
from headroom.service.api.post import Post, Timed, validated
from headroom.service.api.ranking import headers_of, score_titles
from headroom.service.config.settings import Settings
from headroom.service.errors import InvalidRequest
from headroom.service.fields import WHOLE_NUMBER
from headroom.service.schemas.requests import (
    DocumentsRequest,
    Ids,
    QueryId,
    ScoreRequest,
    ScoringFields,
    too_many,
)
from headroom.service.schemas.responses import ScoreResponse, ScoreResult
from headroom.service.sentences import shortened

Count = Annotated[int, Field(ge=1, le=2**53 - 1), WHOLE_NUMBER]
"""How many of something a caller wants; more than there are is fine."""
TopN = Annotated[
    Count | None, Field(description="How many results to return, the most relevant ones; default: all.")
]
ReturnDocuments = Annotated[
    bool | None, Field(description="Whether each result brings its document; default: no.")
]


class OurFields(ScoringFields):
    """The fields of /v1/score that a request in another server's shape may have. Unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class CompatRequest(OurFields, ABC):
    """A request in another server's shape."""

    distinct_field: ClassVar[str | None] = None
    """The field whose presence tells this shape from the others at its path."""
    takes_untyped: ClassVar[bool] = False
    """Whether its clients send no Content-Type."""
    servers: ClassVar[tuple[str, ...]]
    """Whose shape it is."""
    answers: ClassVar[tuple[Any, ...]]
    """The types of its answers."""
    errors: ClassVar[ErrorShape] = RERANK
    names: ClassVar[Mapping[str, str]] = {"titles": "documents"}
    """The client's names of our fields, where they differ."""

    model: str | None = None
    """`NAME@VARIANT` names a variant of `GET /v1/variants`. Any other name is taken and ignored: the
    service's own model scores."""
    raw_scores: bool = False
    """Whether scores are logits: that of a model with one label; of a graded model the log-odds of
    `score`."""

    @classmethod
    def example(cls) -> Any:
        """Return the request that the documentation shows."""
        return cast(dict[str, Any], cls.model_config["json_schema_extra"])["examples"][0]

    def check_count(self, settings: Settings) -> None:
        """Raise InvalidRequest for more texts than a request may have, before anything is made of them."""
        for field in self.names.values():
            texts = getattr(self, field)
            if isinstance(texts, list) and len(texts) > settings.max_pairs:
                raise too_many(len(texts), field, settings)

    @abstractmethod
    def score_request(self) -> ScoreRequest:
        """Return our request; `scoring` makes one with the fields that all shapes share."""

    @abstractmethod
    def answer(self, response: ScoreResponse) -> Any:
        """Return their answer, as JSON values or dataclasses."""

    def headers(self, response: ScoreResponse) -> Mapping[str, str]:  # noqa: ARG002
        """Return the headers that the answer brings besides ours."""
        return {}

    def scoring(self, **texts: Any) -> ScoreRequest:
        """Return our request with this request's variant and mask. Raises InvalidRequest.

        texts: `query` and `titles`, or `pairs`; and the fields of a DocumentsRequest that say how they are
            read.
        """
        ours = {name: getattr(self, name) for name in OurFields.model_fields} | {"variant": self._variant()}
        fields = {**texts, **ours, **self.ranking_fields()}
        is_plain = fields.keys() <= ScoreRequest.model_fields.keys()
        return validated(ScoreRequest if is_plain else DocumentsRequest, fields)

    def ranking_fields(self) -> dict[str, Any]:
        """Return the fields of our request that say which order the answer shows: by default, none."""
        return {"is_ranked": False}

    def _variant(self) -> str | None:
        """Return the variant that `variant` or `model` names."""
        _, at, named = (self.model or "").rpartition("@")
        if not at:
            return self.variant
        if self.variant not in (None, named):
            raise InvalidRequest(
                f"names the variant {shortened(named)}, but variant is another", param="model"
            )
        return named

    def their_name(self, param: str) -> str:
        """Return the client's name of the field at fault, such as `documents[3]` for `titles[3]`."""
        if param == "variant" and self.variant is None:
            return "model"
        return their_name(param, self.names)

    def relevance(self, result: ScoreResult) -> Any:
        """Return a pair's relevance: `score` of /v1/score, or on the scale of logits its `raw_score`."""
        return result.raw_score if self.raw_scores else result.score


class RankingRequest(CompatRequest):
    """A request whose answer is the documents' order. `names` may have another name for `top_n`."""

    ids: Ids = None
    query_id: QueryId = None

    @property
    def documents_shown(self) -> int | None:
        """The number of documents that the answer shows, the best ones; None: all."""
        shown: int | None = getattr(self, self.names.get("top_n", "top_n"))
        return shown

    def ranking_fields(self) -> dict[str, Any]:
        """Return the fields of our request that say which order the answer shows."""
        shown = self.documents_shown
        fields = {"ids": self.ids, "query_id": self.query_id}
        return fields if shown is None else fields | {"top_n": shown}

    def ranked(self, response: ScoreResponse) -> list[ScoreResult]:
        """Return the results that the answer shows, in its order: by raw score, an interleaved one's by rank.

        Equal ones stay in the request's order.
        """
        results = sorted(
            response.results,
            key=lambda result: -result.raw_score if result.rank is None else result.rank,
        )
        return results[: self.documents_shown]


def refuse_order_fields(fields: OurFields, *names: str) -> None:
    """Raise InvalidRequest if a request whose answer is no order asks for one.

    names: the fields that ask for one; default: all. `on_failure` asks for one unless it is "error".
    """
    for name in names or ("on_failure", "min_score", "min_grade"):
        if getattr(fields, name) not in (None, "error"):
            raise InvalidRequest("the answers of this route are no order of titles; leave it out", param=name)


async def score_and_answer(request: Post, body: CompatRequest) -> Timed:
    """Score a request in another shape and answer in that shape."""
    body.check_count(request.settings)
    try:
        score_request = body.score_request()
        response = await score_titles(request, score_request)
    except InvalidRequest as error:
        raise renamed(error, body.their_name) from None
    headers = {**body.headers(response), **headers_of(response)}
    return Timed(body.answer(response), response.timing_ms, headers)


def their_name(param: str, names: Mapping[str, str]) -> str:
    """Return a client's name of our field at fault, such as `documents[3]` for `titles[3]`.

    names: the client's names of our fields. If it has one for `query`, queries and titles are two lists.
    """
    field = param.partition("[")[0]
    index = param[len(field) :]
    if field == "pairs" and "query" in names:
        field = "query"
        index = index.removesuffix("[0]")
    return names.get(field, field) + index


def renamed(error: InvalidRequest, name_of: Callable[[str], str]) -> InvalidRequest:
    """Return an error that names the field at fault as the client does.

    name_of: returns the client's name of one of our fields.
    """
    if error.param is None:
        return error
    sentence = error.message.removeprefix(f"{error.param}: ")
    return InvalidRequest(sentence, param=name_of(error.param))


def query_and_titles(queries: Sequence[str], titles: Sequence[str]) -> dict[str, Any]:
    """Return `query` and `titles`, or `pairs`: one query for all titles, or one for each.

    Raises InvalidRequest if there are several queries and another number of titles.
    """
    if len(queries) == 1:
        return {"query": queries[0], "titles": titles}
    if len(queries) != len(titles):
        reason = f"{len(queries)} queries for {len(titles)} titles; send one query, or as many"
        raise InvalidRequest(reason, param="query")
    return {"pairs": list(zip(queries, titles, strict=True))}

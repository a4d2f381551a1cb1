"""Text-embeddings-inference's requests and answers: /rerank, /predict and /info, as in its version 1.9.

https://github.com/huggingface/text-embeddings-inference/blob/v1.9.3/router/src/http/types.rs
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api import error_shapes
from service.api.clients.base import CompatRequest, by_relevance, raw_score, relevance
from service.api.clients.documents import Count
from service.errors import EmptyRequest
from service.schemas.requests import ScoreRequest
from service.schemas.responses import Number, ScoreResponse
from service.schemas.texts import KeptPart, TruncationRequest


def _inputs(value: Any) -> Any:
    """Check what /predict reads: a text, a pair, or a batch of lists of one or two texts."""
    if isinstance(value, str) or _is_sequence(value):
        return value
    if isinstance(value, list) and value and all(map(_is_sequence, value)):
        return value
    raise PydanticCustomError(
        "inputs", "should be a text, a pair of texts, or a batch: a list of [text] and [query, title]"
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(isinstance(each, str) for each in value)


_SEQUENCE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
Inputs = Annotated[
    str | list[str] | list[list[str]],
    PlainValidator(_inputs),
    WithJsonSchema(
        {"oneOf": [{"type": "string"}, _SEQUENCE, {"type": "array", "items": _SEQUENCE, "minItems": 1}]}
    ),
]


@dataclass(slots=True)
class TeiRank:
    """One text's relevance."""

    index: Annotated[int, Field(description="Position in the request.")]
    score: Annotated[Number, Field(description="`score` of /v1/score; with `raw_scores`, not in [0, 1].")]


@dataclass(slots=True)
class TeiTextRank(TeiRank):
    """One text's relevance, and the text."""

    text: Annotated[str, Field(description="As it was sent.")]


@dataclass(slots=True)
class TeiPrediction:
    """One label's share."""

    score: Annotated[Number, Field(description="Probability; with `raw_scores`, the logit.")]
    label: Annotated[str, Field(description="The label's name in the checkpoint.")]


@dataclass(slots=True)
class TeiError:
    """An error of text-embeddings-inference."""

    error: Annotated[str, Field(description="One sentence; for people.")]
    error_type: Annotated[
        Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"],
        Field(description="For programs."),
    ]


STATUSES_TEI = (422, 424)
"""The statuses of TEI's errors that no other shape at the same paths has."""


class TeiRequest(CompatRequest):
    """The fields that /rerank and /predict share."""

    errors = error_shapes.tei

    truncate: bool | None = Field(
        None,
        description="false: refuse texts that do not fit into the window, with 422; default: truncate them.",
    )
    # Clients send the lower case too, but code generators make the same name of both.
    truncation_direction: Annotated[
        Literal["Right", "right", "Left", "left"],
        WithJsonSchema({"type": "string", "enum": ["Right", "Left"]}),
    ] = Field(
        "Right",
        description="Where texts that do not fit are cut: `Right` keeps the beginning, `Left` the end.",
    )
    raw_scores: bool = Field(False, description="Logits in place of probabilities.")

    def keep(self) -> KeptPart:
        """Return what is kept of texts that do not fit."""
        if self.truncate is False:
            return "all"
        return "end" if self.truncation_direction.lower() == "left" else "beginning"

    @abstractmethod
    def characters(self) -> int:
        """Return the number of characters to read, a query once for each text."""

    def headers(self, response: ScoreResponse) -> Mapping[str, str]:
        """Return the timings in whole milliseconds, and what was read."""
        timing = response.timing_ms
        return {
            "x-compute-time": str(int(timing.total)),
            "x-compute-characters": str(self.characters()),
            "x-compute-tokens": str(response.usage.tokens),
            "x-total-time": str(int(timing.total)),
            "x-tokenization-time": str(int(timing.tokenize)),
            "x-queue-time": str(int(timing.queue)),
            "x-inference-time": str(int(timing.inference)),
        }


class TeiRerankRequest(TeiRequest):
    """Rank texts by relevance to a query, as text-embeddings-inference does."""

    chosen_by: ClassVar[str | None] = "texts"
    names: ClassVar[Mapping[str, str]] = {"titles": "texts"}

    query: str = Field(description="What was searched for; not blank.")
    texts: list[str] = Field(description="The texts to rank; at least one.")
    return_text: bool = Field(False, description="Whether the answer holds the texts.")
    top_n: Count | None = Field(
        None, description="How many results to return; default: all. Not in TEI, but LiteLLM sends it."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "angle bracket",
                    "texts": ["Wood deck screws", "Simpson Strong-Tie 12-Gauge Angle"],
                    "return_text": True,
                }
            ]
        }
    )

    def characters(self) -> int:
        """Return the number of characters to read, the query once for each text."""
        return len(self.query) * len(self.texts) + sum(map(len, self.texts))

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        if not self.texts:
            raise EmptyRequest("texts: must not be empty", param="texts")
        return TruncationRequest.of(self.scoring(query=self.query, titles=self.texts), self.keep())

    def answer(self, response: ScoreResponse) -> list[TeiRank]:
        """Return the ranks, the most relevant first."""
        score = raw_score if self.raw_scores else relevance
        ranked = by_relevance(response.results)[: self.top_n]
        if self.return_text:
            return [TeiTextRank(result.index, score(result), self.texts[result.index]) for result in ranked]
        return [TeiRank(result.index, score(result)) for result in ranked]


class TeiPredictRequest(TeiRequest):
    """Classify texts or pairs of texts, as text-embeddings-inference does."""

    names: ClassVar[Mapping[str, str]] = {"pairs": "inputs"}

    inputs: Inputs = Field(
        description="A text, or a pair `[query, title]`; or a batch: a list of `[text]` and `[query, title]`."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": ["angle bracket", "Simpson Strong-Tie 12-Gauge Angle"]},
                {"inputs": [["angle bracket", "Wood deck screws"], ["angle bracket"]], "raw_scores": True},
            ]
        }
    )

    @property
    def is_batch(self) -> bool:
        """Return whether the answer is a list of lists."""
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def _their_name(self, param: str) -> str:
        """Return the place in `inputs` as the request has it: a text, a pair, or a batch of them."""
        place = param.removeprefix("pairs[0]")
        if self.is_batch or place == param:
            return super()._their_name(param)
        return "inputs" if isinstance(self.inputs, str) else f"inputs{place}"

    def sequences(self) -> list[list[str]]:
        """Return the texts and pairs, each a list of one or two strings."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        return cast(list[list[str]], self.inputs if self.is_batch else [self.inputs])

    def characters(self) -> int:
        """Return the number of characters to read."""
        return sum(len(text) for sequence in self.sequences() for text in sequence)

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        sequences = self.sequences()
        alone = frozenset(place for place, sequence in enumerate(sequences) if len(sequence) == 1)
        request = self.scoring(pairs=[(*sequence, "")[:2] for sequence in sequences])
        return TruncationRequest.of(request, self.keep(), alone)

    def answer(self, response: ScoreResponse) -> list[TeiPrediction] | list[list[TeiPrediction]]:
        """Return the labels of each text or pair, the most probable first."""
        predictions = []
        for result in response.results:
            if self.raw_scores:
                scores = list(result.logits)
            else:
                scores = [result.score] if result.probabilities is None else list(result.probabilities)
            # Probabilities that are too small for a float32 are all 0; their logits still have an order.
            labelled = sorted(
                zip(scores, response.labels, result.logits, strict=True), key=lambda one: (-one[0], -one[2])
            )
            predictions.append([TeiPrediction(score, label) for score, label, _ in labelled])
        return predictions if self.is_batch else predictions[0]

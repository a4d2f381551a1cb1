"""Text-embeddings-inference's requests and answers: /rerank, /predict and /info, as in its version 1.9.

https://github.com/huggingface/text-embeddings-inference/blob/v1.9.3/router/src/http/types.rs
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

from fastapi import FastAPI, Request, Response
from pydantic import Field, WithJsonSchema

from headroom.service.api.clients.base import (
    CompatRequest,
    RankingRequest,
    by_relevance,
    refuse_order_fields,
    relevance,
)
from headroom.service.api.clients.documents import Count
from headroom.service.api.errors import TEI, json_response
from headroom.service.api.openapi import errors
from headroom.service.api.post import backend_of, check_ready
from headroom.service.config.settings import OnFailure, Settings
from headroom.service.descriptions import doc, documented
from headroom.service.errors import EmptyRequest, InvalidRequest
from headroom.service.schemas.requests import ScoreRequest, accepted, example
from headroom.service.schemas.responses import Number, ScoreResponse
from headroom.version import version

TAG = "text-embeddings-inference"


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (1, 2) and all(isinstance(each, str) for each in value)


_SEQUENCE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
Inputs = Annotated[
    str | list[str] | list[list[str]],
    accepted(
        lambda form: (
            isinstance(form, str)
            or _is_sequence(form)
            or (isinstance(form, list) and bool(form) and all(map(_is_sequence, form)))
        ),
        "should be a text, a pair of texts, or a batch: a list of [text] and [query, title]",
    ),
    WithJsonSchema(
        {"oneOf": [{"type": "string"}, _SEQUENCE, {"type": "array", "items": _SEQUENCE, "minItems": 1}]}
    ),
]


@dataclass(slots=True)
class TeiRank:
    """One text's relevance."""

    index: Annotated[int, doc("Position in the request.")]
    score: Annotated[Number, doc("`score` of /v1/score; with `raw_scores`, not in [0, 1].")]


@documented
@dataclass(slots=True)
class TeiTextRank(TeiRank):
    """One text's relevance, and the text."""

    text: str
    """As it was sent."""


@documented
@dataclass(slots=True)
class TeiPrediction:
    """One label's share."""

    score: Number
    """Probability; with `raw_scores`, the logit."""
    label: str
    """The label's name in the checkpoint."""


class TeiRequest(CompatRequest):
    """The fields that /rerank and /predict share."""

    servers = (TAG,)
    errors = TEI

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

    def reading_fields(self) -> dict[str, Any]:
        """Return the fields of a DocumentsRequest that say what is read of texts that do not fit."""
        if self.truncate is False:
            return {"keep": "all"}
        return {"keep": "end"} if self.truncation_direction in ("Left", "left") else {}

    def headers(self, request: ScoreRequest, response: ScoreResponse) -> Mapping[str, str]:
        """Return the timings in whole milliseconds, and what was read, a query once for each of its texts."""
        timing = response.timing_ms
        return {
            "x-compute-time": str(int(timing.total)),
            "x-compute-characters": str(sum(len(query) + len(text) for query, text in request.texts())),
            "x-compute-tokens": str(response.usage.tokens),
            "x-total-time": str(int(timing.total)),
            "x-tokenization-time": str(int(timing.tokenize)),
            "x-queue-time": str(int(timing.queue)),
            "x-inference-time": str(int(timing.inference)),
        }


class TeiRerankRequest(RankingRequest, TeiRequest):
    """Rank texts by relevance to a query, as text-embeddings-inference does."""

    model_config = example(query="angle bracket", texts=["Wood deck screws", "12-Gauge Angle"])
    distinct_field = "texts"
    answers = (list[TeiTextRank], list[TeiRank])
    names: ClassVar[Mapping[str, str]] = {"titles": "texts"}

    query: str = Field(description="What was searched for; not blank.")
    texts: list[str] = Field(fail_fast=True, description="The texts to rank; at least one.")
    return_text: bool = Field(False, description="Whether the answer holds the texts.")
    top_n: Count | None = Field(
        None, description="How many results to return; default: all. Not in TEI, but LiteLLM sends it."
    )

    @property
    def documents_shown(self) -> int | None:
        """The number of texts that the answer shows, the best ones; None: all."""
        return self.top_n

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        if not self.texts:
            raise EmptyRequest("texts: must not be empty", param="texts")
        return self.scoring(self.reading_fields(), query=self.query, titles=self.texts)

    def answer(self, response: ScoreResponse) -> list[TeiRank]:
        """Return the ranks, the most relevant first."""
        ranks = [
            TeiRank(result.index, relevance(result, raw=self.raw_scores))
            for result in by_relevance(response.results)[: self.top_n]
        ]
        if not self.return_text:
            return ranks
        return [TeiTextRank(rank.index, rank.score, self.texts[rank.index]) for rank in ranks]


class TeiPredictRequest(TeiRequest):
    """Classify texts or pairs of texts, as text-embeddings-inference does."""

    model_config = example(inputs=["angle bracket", "Simpson Strong-Tie 12-Gauge Angle"])
    answers = (list[TeiPrediction], list[list[TeiPrediction]])
    names: ClassVar[Mapping[str, str]] = {"pairs": "inputs"}

    inputs: Inputs = Field(
        description="A text, or a pair `[query, title]`; or a batch: a list of `[text]` and `[query, title]`."
    )

    @property
    def is_batch(self) -> bool:
        """Return whether the answer is a list of lists."""
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def check_count(self, settings: Settings) -> None:
        """Raise InvalidRequest for more texts and pairs than a request may have."""
        if self.is_batch:
            super().check_count(settings)

    def their_name(self, param: str) -> str:
        """Return the index in `inputs` as the request has it: a text, a pair, or a batch of them."""
        index = param.removeprefix("pairs[0]")
        if self.is_batch or index == param:
            return super().their_name(param)
        return "inputs" if isinstance(self.inputs, str) else f"inputs{index}"

    def keeps_order(self, default: OnFailure) -> bool:  # noqa: ARG002
        """Return False: labels have no order of the titles to keep."""
        return False

    def sequences(self) -> list[list[str]]:
        """Return the texts and pairs, each a list of one or two strings."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        return cast(list[list[str]], self.inputs if self.is_batch else [self.inputs])

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        refuse_order_fields(self)
        sequences = self.sequences()
        alone = frozenset(index for index, sequence in enumerate(sequences) if len(sequence) == 1)
        reading = self.reading_fields() | ({"alone": alone} if alone else {})
        return self.scoring(reading, pairs=[(*sequence, "")[:2] for sequence in sequences])

    def answer(self, response: ScoreResponse) -> list[TeiPrediction] | list[list[TeiPrediction]]:
        """Return the labels of each text or pair, the most probable first."""
        predictions = []
        for result in response.results:
            if not result.scored:
                raise InvalidRequest(
                    f"{response.variant!r} is an order of titles and gives no labels; name another",
                    param="variant",
                )
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


async def info(request: Request) -> Response:
    """The model of the default variant, and this server's limits, as text-embeddings-inference tells them.

    `model_type` holds the labels: under `reranker` if it is one, else under `classifier`, which /rerank takes
    all the same. `max_concurrent_requests` counts pairs of full length.
    """
    backend = backend_of(request)
    settings = request.app.state.settings
    model = backend.default_model()
    device = "cpu" if model.device.startswith("cpu") else "cuda"
    names = {str(index): label for index, label in enumerate(model.labels)}
    labels = {"id2label": names, "label2id": {label: int(index) for index, label in names.items()}}
    return json_response(
        {
            "model_id": model.repository or model.name,
            "model_sha": model.commit,
            "model_dtype": model.dtype,
            "served_model_name": model.name,
            "model_type": {"reranker" if len(names) == 1 else "classifier": labels},
            "max_concurrent_requests": max(1, settings.queue_tokens(device) // model.max_tokens),
            "max_input_length": model.max_tokens,
            "max_batch_tokens": settings.batch_tokens(device),
            "max_batch_requests": None,
            "max_client_batch_size": settings.max_pairs,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": version(),
            "sha": None,
            "docker_label": None,
        }
    )


async def health(request: Request) -> Response:
    """200 and nothing else while requests are welcome."""
    check_ready(request)
    return Response()


def add_routes(app: FastAPI) -> None:
    """Add /info, /health and /ping."""
    app.add_api_route(
        "/info",
        info,
        name="tei_info",
        response_model=dict[str, Any],
        responses=errors(401, 403, 429, 500, 503, model=TEI.model),
        tags=[TAG],
    )
    for path in ("/health", "/ping"):
        app.add_api_route(
            path,
            health,
            name=f"tei_{path[1:]}",
            response_class=Response,
            responses=errors(500, 503, model=TEI.model),
            tags=[TAG],
        )

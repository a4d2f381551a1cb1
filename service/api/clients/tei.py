"""Text-embeddings-inference's requests and answers: /rerank, /predict and /info, as in its version 1.9.

https://github.com/huggingface/text-embeddings-inference/blob/v1.9.3/router/src/http/types.rs
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fastapi import FastAPI, Request, Response
from pydantic import Field, WithJsonSchema

from headroom.service.api.clients.base import CompatRequest, RankingRequest, TopN, refuse_order_fields
from headroom.service.api.errors import TEI, json_response
from headroom.service.api.openapi import errors
from headroom.service.api.post import backend_of, check_ready
from headroom.service.config.settings import OnFailure, Settings
from headroom.service.descriptions import documented
from headroom.service.errors import EmptyRequest, InvalidRequest
from headroom.service.schemas.requests import ScoreRequest, accepted, example
from headroom.service.schemas.responses import Number, ScoreResponse
from headroom.version import version

TAG = "text-embeddings-inference"


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)


_PAIR = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}
Inputs = Annotated[
    str | list[str] | list[list[str]],
    accepted(
        lambda form: (
            isinstance(form, str)
            or _is_pair(form)
            or (isinstance(form, list) and bool(form) and all(map(_is_pair, form)))
        ),
        "should be a text, a pair of texts, or a list of pairs [query, title]",
    ),
    WithJsonSchema({"oneOf": [{"type": "string"}, _PAIR, {"type": "array", "items": _PAIR, "minItems": 1}]}),
]


@documented
@dataclass(slots=True)
class TeiRank:
    """One text's relevance."""

    index: int
    """Position in the request."""
    score: Number
    """`score` of /v1/score; with `raw_scores`, not in [0, 1]."""


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

    truncate: bool | None = None
    """false: refuse texts that do not fit into the window, with 422; default: truncate them."""
    truncation_direction: Literal["Right", "Left"] = "Right"
    """Where texts that do not fit are cut: `Right` keeps the beginning, `Left` the end."""

    def reading_fields(self) -> dict[str, Any]:
        """Return the fields of a DocumentsRequest that say what is read of texts that do not fit."""
        if self.truncate is False:
            return {"keep": "all"}
        return {"keep": "end"} if self.truncation_direction == "Left" else {}

    def headers(self, response: ScoreResponse) -> Mapping[str, str]:
        """Return the timings in whole milliseconds, and the tokens read, a query's once for each text."""
        timing = response.timing_ms
        return {
            "x-compute-time": str(int(timing.total)),
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

    query: str
    """What was searched for; not blank."""
    texts: list[str] = Field(fail_fast=True)
    """The texts to rank; at least one."""
    return_text: bool = False
    """Whether the answer holds the texts."""
    top_n: TopN = None  # not in TEI, but LiteLLM sends it

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        if not self.texts:
            raise EmptyRequest("texts: must not be empty", param="texts")
        return self.scoring(query=self.query, titles=self.texts, **self.reading_fields())

    def answer(self, response: ScoreResponse) -> list[TeiRank]:
        """Return the ranks, the most relevant first."""
        ranks = [TeiRank(result.index, self.relevance(result)) for result in self.ranked(response)]
        if not self.return_text:
            return ranks
        return [TeiTextRank(rank.index, rank.score, self.texts[rank.index]) for rank in ranks]


class TeiPredictRequest(TeiRequest):
    """Classify texts or pairs of texts, as text-embeddings-inference does."""

    model_config = example(inputs=["angle bracket", "Simpson Strong-Tie 12-Gauge Angle"])
    answers = (list[TeiPrediction], list[list[TeiPrediction]])
    names: ClassVar[Mapping[str, str]] = {"pairs": "inputs"}

    inputs: Inputs
    """A text, a pair `[query, title]`, or a list of pairs."""

    @property
    def is_batch(self) -> bool:
        """Return whether the answer is a list of lists."""
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def check_count(self, settings: Settings) -> None:
        """Raise InvalidRequest for more pairs than a request may have."""
        if self.is_batch:
            super().check_count(settings)

    def their_name(self, param: str) -> str:
        """Return the index in `inputs` as the request has it: of a text, a pair, or a list of pairs."""
        index = param.removeprefix("pairs[0]")
        if self.is_batch or index == param:
            return super().their_name(param)
        return "inputs" if isinstance(self.inputs, str) else f"inputs{index}"

    def keeps_order(self, default: OnFailure) -> bool:  # noqa: ARG002
        """Return False: labels have no order of the titles to keep."""
        return False

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        refuse_order_fields(self)
        if isinstance(self.inputs, str):
            alone = frozenset([0])
            return self.scoring(pairs=[(self.inputs, "")], alone=alone, **self.reading_fields())
        pairs = self.inputs if self.is_batch else [self.inputs]
        return self.scoring(pairs=pairs, **self.reading_fields())

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

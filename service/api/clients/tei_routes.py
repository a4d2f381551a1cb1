"""The routes of text-embeddings-inference, but for /rerank, which other servers have too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import Field

from service.api.clients.base import STATUSES, add_compat_route
from service.api.clients.tei import (
    STATUSES_TEI,
    TeiError,
    TeiPrediction,
    TeiPredictRequest,
    TeiRank,
    TeiRerankRequest,
    TeiTextRank,
)
from service.api.examples import ANSWERS
from service.api.openapi import errors
from service.api.post import backend_of, check_ready
from service.api.replies import json_response
from service.config.settings import Settings
from service.schemas.listings import ModelInfo

TAG = "text-embeddings-inference"
_RANKED = [{"index": 1, "score": 0.5616, "text": "Simpson Strong-Tie 12-Gauge Angle"}]
_PREDICTED = [{"score": 0.53, "label": "exact"}, {"score": 0.47, "label": "close"}]


@dataclass(slots=True)
class TeiLabels:
    """A model's labels."""

    id2label: Annotated[dict[str, str], Field(description="The name of each logit, by its place.")]
    label2id: Annotated[dict[str, int], Field(description="The place of each name.")]


@dataclass(slots=True)
class TeiReranker:
    """A model with one label."""

    reranker: TeiLabels


@dataclass(slots=True)
class TeiClassifier:
    """A model with several labels, the grades; /rerank takes it all the same."""

    classifier: TeiLabels


@dataclass(slots=True)
class TeiInfo:
    """The model of the default variant, and this server's limits."""

    model_id: Annotated[str, Field(description="Its repository on the hub, or its name.")]
    model_sha: Annotated[
        str | None, Field(description="The repository's commit that was loaded; null for a local directory.")
    ]
    model_dtype: Annotated[str, Field(description="The number format that it computes in.")]
    served_model_name: Annotated[str, Field(description="Its name, as answers give it.")]
    model_type: Annotated[
        TeiReranker | TeiClassifier, Field(description="How many labels it has, and which.")
    ]
    max_concurrent_requests: Annotated[
        int, Field(description="Pairs of full length that the queue takes before requests get 429.")
    ]
    max_input_length: Annotated[int, Field(description="The window in tokens.")]
    max_batch_tokens: Annotated[int, Field(description="Tokens of one batch.")]
    max_batch_requests: Annotated[int | None, Field(description="Always null: tokens limit a batch.")]
    max_client_batch_size: Annotated[int, Field(description="Texts or pairs of one request.")]
    auto_truncate: Annotated[bool, Field(description="Always true: what does not fit is truncated.")]
    tokenization_workers: Annotated[int, Field(description="Threads that read long texts, of one replica.")]
    version: Annotated[str, Field(description="headroom's version.")]
    sha: Annotated[str | None, Field(description="Always null: text-embeddings-inference's own commit.")]
    docker_label: Annotated[str | None, Field(description="Always null: the label of its own image.")]


async def info(request: Request) -> Response:
    """The model of the default variant, and this server's limits, in text-embeddings-inference's shape."""
    backend = backend_of(request)
    default = next(variant for variant in backend.variants().variants if variant.default)
    return json_response(_info(backend.model_of(default.name), request.app.state.settings))


async def health(request: Request) -> Response:
    """200 and nothing else while requests are welcome."""
    check_ready(request)
    return Response()


def add_routes(app: FastAPI) -> None:
    """Add /predict, POST /, /info, /health and /ping."""
    predictions: tuple[Any, ...] = (list[TeiPrediction], list[list[TeiPrediction]])
    ranks: tuple[Any, ...] = (list[TeiTextRank], list[TeiRank])
    add_compat_route(
        app,
        "/predict",
        "tei_predict",
        [TeiPredictRequest],
        answers=predictions,
        error_model=TeiError,
        example=_PREDICTED,
        tags=[TAG],
        statuses=(*STATUSES, *STATUSES_TEI),
        description="Classify texts or pairs of texts: the labels of each, the most probable first.",
    )
    add_compat_route(
        app,
        "/",
        "tei_root",
        [TeiRerankRequest, TeiPredictRequest],
        answers=(*ranks, *predictions),
        error_model=TeiError,
        example=_RANKED,
        tags=[TAG],
        statuses=(*STATUSES, *STATUSES_TEI),
        description="As /rerank for a request with `texts`, else as /predict.",
    )
    ANSWERS["tei_info"] = _EXAMPLE
    app.add_api_route(
        "/info",
        info,
        name="tei_info",
        response_model=TeiInfo,
        responses=errors(401, 403, 429, 500, 503, model=TeiError),
        tags=[TAG],
    )
    for path in ("/health", "/ping"):
        app.add_api_route(
            path,
            health,
            name=f"tei_{path[1:]}",
            response_class=Response,
            responses=errors(500, 503, model=TeiError),
            tags=[TAG],
        )


def _info(model: ModelInfo, settings: Settings) -> TeiInfo:
    device = "cpu" if model.device.startswith("cpu") else "cuda"
    return TeiInfo(
        model_id=model.repository or model.name,
        model_sha=model.commit,
        model_dtype=model.dtype,
        served_model_name=model.name,
        model_type=_model_type(model.labels),
        max_concurrent_requests=max(1, settings.queue_tokens(device) // model.max_tokens),
        max_input_length=model.max_tokens,
        max_batch_tokens=settings.batch_tokens(device),
        max_batch_requests=None,
        max_client_batch_size=settings.max_pairs,
        auto_truncate=True,
        tokenization_workers=1,
        version=version("headroom"),
        sha=None,
        docker_label=None,
    )


def _model_type(labels: Sequence[str]) -> TeiReranker | TeiClassifier:
    """Return the kind that text-embeddings-inference gives a model with these labels."""
    named = TeiLabels(
        {str(place): label for place, label in enumerate(labels)},
        {label: place for place, label in enumerate(labels)},
    )
    return TeiReranker(named) if len(labels) == 1 else TeiClassifier(named)


_EXAMPLE = {
    "model_id": "headroom-default",
    "model_sha": None,
    "model_dtype": "bfloat16",
    "served_model_name": "headroom-default",
    "model_type": {
        "classifier": {
            "id2label": {"0": "irrelevant", "1": "related", "2": "partial", "3": "close", "4": "exact"},
            "label2id": {"irrelevant": 0, "related": 1, "partial": 2, "close": 3, "exact": 4},
        }
    },
    "max_concurrent_requests": 512,
    "max_input_length": 128,
    "max_batch_tokens": 1024,
    "max_batch_requests": None,
    "max_client_batch_size": 1000,
    "auto_truncate": True,
    "tokenization_workers": 1,
    "version": "0.1.0",
    "sha": None,
    "docker_label": None,
}

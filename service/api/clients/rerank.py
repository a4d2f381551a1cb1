"""The rerank routes, and which shapes share each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import Field

from service.api.clients.base import STATUSES, CompatRequest, add_compat_route
from service.api.clients.cohere import CohereAnswer, CohereV2Request
from service.api.clients.jina import InfinityAnswer, InfinityRequest, RerankAnswer, RerankRequest
from service.api.clients.tei import STATUSES_TEI, TeiError, TeiRank, TeiRerankRequest, TeiTextRank
from service.api.clients.voyage import VoyageAnswer, VoyageRequest
from service.schemas.responses import ErrorDetail


@dataclass(slots=True)
class RerankError:
    """An error of a rerank route: the same sentence wherever a client looks for it."""

    message: Annotated[str, Field(description="One sentence; for Cohere's client.")]
    detail: Annotated[str, Field(description="The same; for LlamaIndex, Haystack and Voyage's client.")]
    error: Annotated[ErrorDetail, Field(description="As in the errors of /v1.")]


_JUDGED: dict[str, Any] = {
    "model": "headroom-default@full",
    "head_mask": {
        "id": "20e5ffaa4b14",
        "spec": "none",
        "heads_on": 144,
        "heads": 144,
        "units_on": 36864,
        "units": 36864,
        "layers_on": 12,
        "layers": 12,
    },
    "assignment": None,
    "degraded": False,
}
_META = {
    "api_version": {"version": "1"},
    "billed_units": {"search_units": 1},
    "tokens": {"input_tokens": 21},
    "warnings": [],
}
_RERANKED = {
    "id": "5807ee2e-0cda-445a-9ec8-864c60a06606",
    "object": "rerank",
    "results": [
        {
            "index": 1,
            "relevance_score": 0.5616,
            "document": {"text": "Simpson Strong-Tie 12-Gauge Angle"},
        }
    ],
    "meta": _META,
    "usage": {"prompt_tokens": 21, "total_tokens": 21},
    "created": 1_795_000_000,
    **_JUDGED,
}
_COHERE_V2 = {
    "id": "5807ee2e-0cda-445a-9ec8-864c60a06606",
    "results": [{"index": 1, "relevance_score": 0.5616}],
    "meta": _META | {"api_version": {"version": "2"}},
    **_JUDGED,
}
_INFINITY = _RERANKED | {
    "results": [
        {"index": 1, "relevance_score": 0.2475, "document": "Simpson Strong-Tie 12-Gauge Angle"},
        {"index": 0, "relevance_score": -0.4824, "document": "Wood deck screws"},
    ]
}


def add_routes(app: FastAPI) -> None:
    """Add /v1/rerank, /v2/rerank and /rerank."""
    routes: tuple[tuple[str, str, list[type[CompatRequest]], list[Any], Any, list[str], str], ...] = (
        (
            "/v1/rerank",
            "rerank_v1",
            [VoyageRequest, RerankRequest],
            [RerankAnswer, VoyageAnswer],
            _RERANKED,
            ["Cohere", "Jina", "vLLM", "Voyage"],
            "Rank documents by relevance, in the shape of Cohere (version 1), Jina and vLLM; in Voyage's for "
            "a request with `top_k`.",
        ),
        (
            "/v2/rerank",
            "rerank_v2",
            [CohereV2Request],
            [CohereAnswer],
            _COHERE_V2,
            ["Cohere"],
            "Rank documents by relevance, in the shape of Cohere, version 2.",
        ),
        (
            "/rerank",
            "rerank",
            [TeiRerankRequest, InfinityRequest],
            [InfinityAnswer, list[TeiTextRank], list[TeiRank]],
            _INFINITY,
            ["Infinity", "vLLM", "text-embeddings-inference"],
            "Rank documents by relevance, in the shape of Infinity: as /v1/rerank, but `document` is a text. "
            "In text-embeddings-inference's for a request with `texts`.",
        ),
    )
    for path, name, shapes, answers, example, tags, description in routes:
        of_tei = TeiRerankRequest in shapes
        add_compat_route(
            app,
            path,
            name,
            shapes,
            answers=answers,
            error_model=RerankError | TeiError if of_tei else RerankError,  # type: ignore[arg-type]
            example=example,
            tags=tags,
            statuses=(*STATUSES, *STATUSES_TEI) if of_tei else STATUSES,
            description=description,
        )

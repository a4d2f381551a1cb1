"""The rerank routes, and which shapes share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI
from pydantic import Field

from service.http.compat.base import add_compat_route
from service.http.compat.cohere import RANKED, CohereAnswer, CohereV2Request
from service.schemas.responses import ErrorDetail


@dataclass(slots=True)
class RerankError:
    """An error of a rerank route: the same sentence wherever a client looks for it."""

    message: Annotated[str, Field(description="One sentence; for Cohere's client.")]
    detail: Annotated[str, Field(description="The same; for LangChain, LlamaIndex, Haystack and Voyage.")]
    error: Annotated[ErrorDetail, Field(description="As in the errors of /v1.")]


def add_routes(app: FastAPI) -> None:
    """Add /v2/rerank, /v1/rerank and /rerank."""
    add_compat_route(
        app,
        "/v2/rerank",
        "rerank_v2",
        [CohereV2Request],
        answers=[CohereAnswer],
        error_model=RerankError,
        example=RANKED,
        tags=["Cohere"],
        description="Rank documents by relevance, in the shape of Cohere's API, version 2.",
    )

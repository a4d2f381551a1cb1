"""Parts of answers that several clients' shapes have: what scored, how much was read, and what is amiss."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from headroom.service.schemas.responses import Assignment, HeadMaskInfo, ScoreResponse

WARNED_DOCUMENTS = 10
"""Documents that a warning lists."""


class ScoredBy(TypedDict):
    """The model, variant and mask that judged the documents: ours, in each answer."""

    model: Annotated[str, Field(description="What scored: `NAME@VARIANT`. A request's `model` takes it.")]
    head_mask: Annotated[
        HeadMaskInfo, Field(description="Ours: the mask that was applied, the variant's included.")
    ]
    assignment: Annotated[
        Assignment | None, Field(description="Ours: null where no experiment decided the variant.")
    ]
    degraded: Annotated[bool, Field(description="Ours: as in /v1/score, whether the load made it worse.")]


def scored_by(response: ScoreResponse) -> ScoredBy:
    """Return the fields that tell what judged the documents."""
    return {
        "model": model_name(response),
        "head_mask": response.head_mask,
        "assignment": response.assignment,
        "degraded": response.degraded,
    }


def model_name(response: ScoreResponse) -> str:
    """Return what scored: `NAME@VARIANT`."""
    return f"{response.model}@{response.variant}"


class TokenUsage(TypedDict):
    """How much was read, for the clients of Jina and vLLM."""

    prompt_tokens: Annotated[int, Field(description="Tokens scored, the query counted with each document.")]
    total_tokens: Annotated[int, Field(description="The same: nothing is generated.")]


def usage_of(response: ScoreResponse) -> TokenUsage:
    """Return how much was read."""
    return {"prompt_tokens": response.usage.tokens, "total_tokens": response.usage.tokens}


def warnings_of(response: ScoreResponse, advice: str = "") -> list[str]:
    """Return a sentence about each kind of documents with which something is amiss.

    Those that were truncated, are empty, were not reranked, or were left out. advice: what a caller can do
    about truncated documents.
    """
    truncated = [result.index for result in response.results if result.truncated]
    empty = [result.index for result in response.results if result.empty]
    warnings = []
    for indices, what, end in (
        (truncated, "truncated, so that only the beginning was scored", advice),
        (empty, "empty and ranked last", ""),
    ):
        if indices:
            documents = "1 document was" if len(indices) == 1 else f"{len(indices)} documents were"
            more = ", …" if len(indices) > WARNED_DOCUMENTS else ""
            listed = ", ".join(map(str, indices[:WARNED_DOCUMENTS])) + more
            warnings.append(f"{documents} {what} (index {listed}).{end}")
    if not response.reranked:
        unscored = len(response.results)
        warnings.append(
            f"{unscored} of the documents were not reranked ({response.reason}) and keep their order."
        )
    if response.dropped:
        warnings.append(f"{response.dropped} of the documents are below min_score or min_grade: left out.")
    return warnings

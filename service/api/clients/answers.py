"""Parts of answers that several clients' shapes have: what scored, the tokens read, and warnings."""

from typing_extensions import TypedDict

from headroom.service.descriptions import documented
from headroom.service.schemas.responses import Assignment, HeadMaskInfo, ScoreResponse

WARNED_DOCUMENTS = 10
"""Documents that a warning lists."""


@documented
class ScoredBy(TypedDict):
    """The model, variant and mask that judged the documents: ours, in each answer."""

    model: str
    """What scored: `NAME@VARIANT`. A request's `model` takes it."""
    head_mask: HeadMaskInfo
    """Ours: the mask that was applied, the variant's included."""
    assignment: Assignment | None
    """Ours: null where no experiment decided the variant."""
    degraded: bool
    """Ours: as in /v1/score, whether the load made it worse."""


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


@documented
class TokenUsage(TypedDict):
    """The number of tokens read, for the clients of Jina and vLLM."""

    prompt_tokens: int
    """Tokens scored, the query counted with each document."""
    total_tokens: int
    """The same: nothing is generated."""


def usage_of(response: ScoreResponse) -> TokenUsage:
    """Return the number of tokens read."""
    return {"prompt_tokens": response.usage.tokens, "total_tokens": response.usage.tokens}


def warnings_of(response: ScoreResponse, advice: str = "") -> list[str]:
    """Return sentences about documents that were truncated, are empty, were not reranked or are left out.

    advice: a sentence after that about truncated documents, which says what a caller can do.
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

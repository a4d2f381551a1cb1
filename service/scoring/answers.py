"""Answers to scoring requests, built from what the engine returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from models.checkpoint.chunks import ChunkedPair, best_chunks
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from service.engine.deadline import Deadline
from service.engine.threads import Outcome, RowScore
from service.experiments.definition.assignment import Assigned
from service.schemas.responses import (
    Assignment,
    AttentionResponse,
    Chunk,
    Column,
    CompareResponse,
    HeadAttention,
    ScoreResponse,
    ScoreResult,
    StageInfo,
    Timing,
    Usage,
)
from service.scoring.cascade import LOWEST, floor_of
from service.scoring.catalog import Choice
from service.scoring.encoding import Encoded
from service.scoring.listings import mask_info


class Computed(NamedTuple):
    """The engine's outcomes for the items of one request, in their order, and the seconds of each stage.

    is_cut_short: whether later stages of a cascade were left out because of the deadline.
    hits, misses: how many rows the score cache had and lacked, if it was asked.
    """

    outcomes: list[Outcome]
    tokenize_s: float
    queue_s: float
    inference_s: float
    is_cut_short: bool = False
    hits: int = 0
    misses: int = 0


def score_response(
    choice: Choice,
    assigned: Assigned | None,
    scored: Sequence[Encoded],
    results: list[ScoreResult],
    computed: Computed,
    deadline: Deadline,
    stages: list[StageInfo] | None = None,
    *,
    degraded: bool = False,
) -> ScoreResponse:
    """Build the answer of POST /v1/score.

    scored: the pairs, once for each time they were scored. stages: of a cascade.
    degraded: `choice` stands in for the default because of the load.
    assigned: the experiment's arm that the request's unit is in. If `choice` is another variant than the
        arm's, the answer says that it is a fallback.
    """
    return ScoreResponse(
        model=choice.variant.classifier.name,
        variant=choice.variant.name,
        head_mask=mask_info(choice.mask, choice.variant.classifier),
        assignment=None if assigned is None else _assignment(assigned, choice),
        degraded=degraded or computed.is_cut_short,
        results=results,
        usage=_usage(scored),
        timing_ms=_timing(computed, deadline),
        stages=stages,
        _labels=choice.variant.classifier.config.labels,
    )


def compare_response(
    model: str, columns: list[Column], scored: Sequence[Encoded], computed: Computed, deadline: Deadline
) -> CompareResponse:
    """Build the answer of POST /v1/compare. scored: the pairs, once for each time they were scored."""
    return CompareResponse(
        model=model,
        columns=columns,
        usage=_usage(scored),
        timing_ms=_timing(computed, deadline),
    )


def attention_response(
    choice: Choice,
    pair: EncodedPair,
    heads: Sequence[tuple[int, int]],
    computed: Computed,
    deadline: Deadline,
) -> AttentionResponse:
    """Build the answer of POST /v1/attention for heads given as (layer, head)."""
    maps = computed.outcomes[0]
    assert isinstance(maps, np.ndarray)
    classifier = choice.variant.classifier
    return AttentionResponse(
        model=classifier.name,
        variant=choice.variant.name,
        head_mask=mask_info(choice.mask, choice.variant.classifier),
        tokens=classifier.tokenizer.tokens(pair),
        segments=[0] * pair.title_start + [1] * (len(pair) - pair.title_start),
        heads=[HeadAttention(*head, matrix) for head, matrix in zip(heads, maps, strict=True)],
        timing_ms=_timing(computed, deadline),
    )


def score_results(choice: Choice, encoded: Encoded, outcomes: Sequence[Outcome]) -> list[ScoreResult]:
    """Return one result per pair, in their order. outcomes: one RowScore per row."""
    if encoded.counts is None:
        return _results(choice, encoded.pairs, outcomes)
    chunked = [pair for pair in encoded.pairs if isinstance(pair, ChunkedPair)]
    best, chunks = best_chunks([row.raw_score for row in outcomes if isinstance(row, RowScore)], chunked)
    results = _results(choice, encoded.pairs, [outcomes[row] for row in best])
    for result, chunk in zip(results, chunks, strict=True):
        if chunk is not None:
            result.chunk = Chunk(chunk.index, chunk.chunks, chunk.start, chunk.end)
    return results


def _results(
    choice: Choice, pairs: Sequence[EncodedPair | ChunkedPair], outcomes: Sequence[Outcome]
) -> list[ScoreResult]:
    labels = choice.variant.classifier.grades
    results = []
    for index, (pair, row) in enumerate(zip(pairs, outcomes, strict=True)):
        assert isinstance(row, RowScore)
        row = judged(choice.variant.classifier, pair, row)
        results.append(
            ScoreResult(
                index=index,
                grade=row.grade,
                label=None if row.grade is None else labels[row.grade],
                expected_grade=row.expected_grade,
                score=row.score,
                probabilities=row.probabilities,
                tokens=len(pair),
                unknown_tokens=pair.unknown_tokens,
                truncated=pair.truncated,
                raw_score=row.raw_score,
                empty=pair.title_tokens == 0,
                _logits=row.logits,
            )
        )
    return results


def judged(classifier: Classifier, pair: EncodedPair | ChunkedPair, row: RowScore) -> RowScore:
    """Return a pair's scores: the network's, or the lowest if the title is empty."""
    if pair.title_tokens:
        return row
    row = row._replace(score=np.float32(floor_of(classifier.config.score_activation)), raw_score=LOWEST)
    if row.probabilities is None:
        return row
    surely_lowest = np.eye(1, len(row.probabilities), dtype=np.float32)[0]
    return row._replace(grade=0, expected_grade=np.float32(0), probabilities=surely_lowest)


def _assignment(assigned: Assigned, choice: Choice) -> Assignment:
    return Assignment(
        experiment=assigned.experiment,
        arm=assigned.arm,
        bucket=assigned.bucket,
        forced=assigned.forced,
        fallback=choice.variant.name != assigned.variant,
    )


def _usage(columns: Sequence[Encoded]) -> Usage:
    return Usage(
        pairs=sum(len(column.pairs) for column in columns),
        tokens=sum(sum(map(len, column.rows)) for column in columns),
    )


def _timing(computed: Computed, deadline: Deadline) -> Timing:
    return Timing(
        tokenize=computed.tokenize_s * 1000,
        queue=computed.queue_s * 1000,
        inference=computed.inference_s * 1000,
        total=deadline.elapsed() * 1000,
    )

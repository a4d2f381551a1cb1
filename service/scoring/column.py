"""A column: the pairs of a request under one variant and mask, from their tokens to their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.checkpoint.chunks import ChunkedPair, best_chunks
from models.classifier import Classifier
from service.engine.threads import PairRow, RowScore
from service.schemas.responses import Chunk, ScoreResult, StageInfo, Usage
from service.scoring.cascade import LOWEST, Course, Due, floor_of
from service.scoring.catalog import Variant, mask_info
from service.scoring.tokens import Pair, rows_of


class ScoredColumn:
    """The pairs of a request on their way through a variant, which may be a cascade of several stages.

    Compute the rows of `due`, then call `advance`, until nothing is due. A cascade that is left early is
    valid too: each pair then has the score of the last stage that scored it.

    queries: of each pair.
    encoded: the pairs by classifier, for those of all stages.
    shared: whether masks of sliced variants are multiplied, so that their rows share other columns' batches.
    due: the rows to compute next.
    seconds: what it took so far.
    """

    def __init__(
        self,
        variant: Variant,
        queries: Sequence[str],
        encoded: Mapping[Classifier, Sequence[Pair]],
        *,
        shared: bool,
    ) -> None:
        self.variant = variant
        self.seconds = 0.0
        self._tokens = 0
        self._stages = variant.stages or (variant,)
        self._pairs = [encoded[stage.classifier] for stage in self._stages]
        self._lanes = [stage.lane(shared=shared) for stage in self._stages]
        self._course = Course(queries, variant.keeps) if variant.stages else None
        self._rows: list[Sequence[PairRow]] = [()] * len(queries)  # of each pair, from its last stage
        self._pairs_scored = [0] * len(self._stages)
        self.due: list[PairRow] = []
        self._round: list[tuple[Due, list[list[PairRow]]]] = []  # what is due, with the rows of each pair
        self._begin_round(self._course.due if self._course else [Due(0, range(len(queries)))])

    @property
    def usage(self) -> Usage:
        """Return what was scored so far; a pair counts once per stage."""
        return Usage(sum(self._pairs_scored), self._tokens)

    @property
    def is_cut_short(self) -> bool:
        """Whether later stages of a cascade were left out."""
        return bool(self.due)

    @property
    def later_tokens(self) -> int:
        """Tokens, at most, of the stages after the first: those of the longest titles."""
        tokens = 0
        for stage, indices, count in self._course.later() if self._course else ():
            lengths = [len(self._pairs[stage][index]) for index in indices]
            tokens += sum(sorted(lengths, reverse=True)[:count])
        return tokens

    def advance(self) -> None:
        """Take the results of the rows that were due, and choose the rows of the next round."""
        self._tokens += sum([row.tokens for row in self.due])
        self.seconds += sum([row.seconds for row in self.due])
        for due, rows_of_pairs in self._round:
            self._pairs_scored[due.stage] += len(due.pairs)
            for index, rows in zip(due.pairs, rows_of_pairs, strict=True):
                self._rows[index] = rows
        if self._course is None:
            self._begin_round([])
        else:
            self._course.advance(
                [[self._raw_score(due.stage, index) for index in due.pairs] for due, _ in self._round]
            )
            self._begin_round(self._course.due)

    def results(self) -> list[ScoreResult]:
        """Return one result per pair, in their order: from the last stage that scored it."""
        if self._course is None:
            return _results(self.variant.classifier, self._pairs[0], self._rows)
        results = []
        for number, (stage, encoded) in enumerate(zip(self._stages, self._pairs, strict=True)):
            indices = np.flatnonzero(self._course.stages == number).tolist()
            pairs, rows = [encoded[index] for index in indices], [self._rows[index] for index in indices]
            for index, result in zip(indices, _results(stage.classifier, pairs, rows), strict=True):
                result.index = index
                result.stage = stage.name
                results.append(result)
        results.sort(key=lambda result: result.index)
        floor = floor_of(self.variant.classifier.config.score_activation)
        scores = self._course.scores(np.array([result.score for result in results], np.float32), floor)
        for result, score, raw_score in zip(results, scores, self._course.raw_scores().tolist(), strict=True):
            result.score, result.raw_score = score, raw_score
        return results

    def stages(self) -> list[StageInfo] | None:
        """Return how the answer names the stages, and how many pairs each has scored; None if no cascade."""
        if self._course is None:
            return None
        return [
            StageInfo(stage.name, stage.classifier.name, mask_info(stage.mask, stage.classifier), pairs)
            for stage, pairs in zip(self._stages, self._pairs_scored, strict=True)
        ]

    def _begin_round(self, due_by_stage: Sequence[Due]) -> None:
        """Make the rows of the pairs that are due."""
        self._round = []
        for due in due_by_stage:
            mask, lane, pairs = self._stages[due.stage].mask, self._lanes[due.stage], self._pairs[due.stage]
            rows = [[PairRow(row, mask, lane) for row in rows_of(pairs[index])] for index in due.pairs]
            self._round.append((due, rows))
        self.due = [row for _, rows in self._round for rows_of_pair in rows for row in rows_of_pair]

    def _raw_score(self, stage: int, index: int) -> float:
        """Return the raw score of a pair: of several chunks, the best one's."""
        classifier, pair = self._stages[stage].classifier, self._pairs[stage][index]
        return max(_judged(classifier, pair, row.result).raw_score for row in self._rows[index])


def _results(
    classifier: Classifier, pairs: Sequence[Pair], rows: Sequence[Sequence[PairRow]]
) -> list[ScoreResult]:
    """Return one result per pair, in their order. rows: of each pair, with their results."""
    scores: list[RowScore] = [row.result for rows_of_pair in rows for row in rows_of_pair]
    chunks: Sequence[Any] = ()
    if chunked := [pair for pair in pairs if isinstance(pair, ChunkedPair)]:  # all of them, or none
        best, chunks = best_chunks([score.raw_score for score in scores], chunked)
        scores = [scores[row] for row in best]
    labels = classifier.grades
    results = []
    for index, (pair, score) in enumerate(zip(pairs, scores, strict=True)):
        score = _judged(classifier, pair, score)
        results.append(
            ScoreResult(
                index=index,
                grade=score.grade,
                label=None if score.grade is None else labels[score.grade],
                expected_grade=score.expected_grade,
                score=score.score,
                probabilities=score.probabilities,
                tokens=len(pair),
                unknown_tokens=pair.unknown_tokens,
                truncated=pair.truncated,
                raw_score=score.raw_score,
                empty=pair.title_tokens == 0,
                _logits=score.logits,
            )
        )
    for result, chunk in zip(results, chunks, strict=False):
        if chunk is not None:
            result.chunk = Chunk(chunk.index, chunk.chunks, chunk.start, chunk.end)
    return results


def _judged(classifier: Classifier, pair: Pair, score: RowScore) -> RowScore:
    """Return a pair's scores: the network's, or the lowest if the title is empty."""
    if pair.title_tokens:
        return score
    score = score._replace(score=np.float32(floor_of(classifier.config.score_activation)), raw_score=LOWEST)
    if score.probabilities is None:
        return score
    surely_lowest = np.eye(1, len(score.probabilities), dtype=np.float32)[0]
    return score._replace(grade=0, expected_grade=np.float32(0), probabilities=surely_lowest)

"""A column: the pairs of a request under one variant and mask, from their tokens to their results; and what
the columns of a request cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headroom.models.arrays import LOWEST
from headroom.models.checkpoint.chunks import ChunkedPair, best_chunks
from headroom.models.classifier import Classifier
from headroom.service.engine.request import Deadline
from headroom.service.engine.threads import PairRow, RowScore, mark_prefixes
from headroom.service.schemas.responses import Chunk, ScoreResult, StageInfo, Timing, Usage
from headroom.service.scoring.cascade import CascadeProgress, Due, lowest_score
from headroom.service.scoring.catalog import Variant
from headroom.service.scoring.tokens import Pair


@dataclass(slots=True)
class Computed:
    """The costs of the rows of one request so far.

    is_admitted: whether some of them were let into the queue.
    is_cached: whether there is a score cache. asked: for how many rows it was asked. misses: how many of
    these it did not have; None if it was not asked.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    is_admitted: bool = False
    is_cached: bool = False
    asked: int = 0
    misses: int | None = None

    @property
    def cache(self) -> str | None:
        """Return what answers say about the score cache: hit, partial or miss; None without one."""
        if not self.is_cached:
            return None
        if not self.misses and self.asked:
            return "hit"
        return "partial" if self.asked > (self.misses or 0) else "miss"

    def count(self, *, asked: int, misses: int) -> None:
        """Count rows for which the score cache was asked, and those of them that it did not have."""
        self.asked += asked
        self.misses = (self.misses or 0) + misses

    def timing(self, deadline: Deadline) -> Timing:
        """Return the times as answers hold them."""
        return Timing(
            tokenize=self.tokenize_s * 1000,
            queue=self.queue_s * 1000,
            inference=self.inference_s * 1000,
            total=deadline.elapsed() * 1000,
        )


class Column:
    """The pairs of a request under a variant that is no cascade.

    shared: whether the mask of a sliced variant is multiplied, so that its rows share other columns' batches.
    rows: what to compute for the pairs.
    is_cut_short: whether later stages of a cascade were left out. stages: those of a cascade.
    """

    is_cut_short = False
    stages: list[StageInfo] | None = None

    def __init__(self, variant: Variant, pairs: Sequence[Pair], *, shared: bool) -> None:
        self.variant = variant
        self._pairs = pairs
        lane = variant.shared_lane if shared else variant.lane
        self.rows = [
            PairRow(len(row), lane, row, variant.mask)
            for pair in pairs
            for row in (pair.rows if isinstance(pair, ChunkedPair) else (pair,))
        ]
        mark_prefixes(self.rows)

    @property
    def seconds(self) -> float:
        """Return what it took."""
        return sum([row.seconds for row in self.rows])

    @property
    def error(self) -> Exception | None:
        """Return the first error among the results."""
        return _first_error(self.rows)

    @property
    def usage(self) -> Usage:
        """Return what was scored."""
        return Usage(len(self._pairs), sum([row.tokens for row in self.rows]))

    def results(self) -> list[ScoreResult]:
        """Return one result per pair, in their order: from the last stage that scored it."""
        scores: list[RowScore] = [row.result for row in self.rows]
        chunks: Sequence[Any] = ()
        if chunked := [pair for pair in self._pairs if isinstance(pair, ChunkedPair)]:  # all of them, or none
            best, chunks = best_chunks([score.raw_score for score in scores], chunked)
            scores = [scores[row] for row in best]
        labels = self.variant.classifier.grades
        results = []
        for index, (pair, score) in enumerate(zip(self._pairs, scores, strict=True)):
            is_empty = pair.has_empty_title
            if is_empty:
                score = _lowest(self.variant.classifier, score)
            result = ScoreResult(
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
                _logits=score.logits,
            )
            if is_empty:
                result.empty = True
            results.append(result)
        for result, chunk in zip(results, chunks, strict=False):
            if chunk is not None:
                result.chunk = Chunk(chunk.index, chunk.chunks, chunk.start, chunk.end)
        return results


class CascadeColumn:
    """The pairs of a request on their way through the stages of a cascade.

    Have `rows` computed and call `advance`, until there are no more rows. Stopping early is valid too: each
    pair then has the score of the last stage that scored it.

    queries: of each pair. encoded: the pairs by classifier, for those of all stages.
    seconds, usage: what it took so far; a pair counts once per stage.
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
        self.usage = Usage(0, 0)
        self.stages = [
            StageInfo(stage.name, stage.classifier.name, stage.info, 0) for stage in variant.stages
        ]
        self._pairs = [encoded[stage.classifier] for stage in variant.stages]
        self._shared = shared
        self._progress = CascadeProgress(queries, variant.keeps, [stage.cost for stage in variant.stages])
        self._results: dict[int, ScoreResult] = {}
        self._begin_round()

    def _begin_round(self) -> None:
        self._round: list[tuple[Due, Column]] = []
        for due in self._progress.due:
            pairs = [self._pairs[due.stage][index] for index in due.pairs]
            self._round.append((due, Column(self.variant.stages[due.stage], pairs, shared=self._shared)))
        self.rows = [row for _, column in self._round for row in column.rows]

    @property
    def is_cut_short(self) -> bool:
        """Whether later stages were left out."""
        return bool(self.rows)

    @property
    def error(self) -> Exception | None:
        """Return the first error among the results of this round, which then is the last one."""
        return _first_error(self.rows)

    def advance(self) -> list[PairRow]:
        """Take the results of `rows`, and return those of the next round; none after the last."""
        raw_scores = []
        for due, column in self._round:
            results = column.results()
            for index, result in zip(due.pairs, results, strict=True):
                result.index = index
                result.stage = column.variant.name
                self._results[index] = result
            raw_scores.append([float(result.raw_score) for result in results])
            usage = column.usage
            self.seconds += column.seconds
            self.usage.pairs += usage.pairs
            self.usage.tokens += usage.tokens
            self.stages[due.stage].pairs += usage.pairs
        self._progress.advance(raw_scores)
        self._begin_round()
        return self.rows

    def results(self) -> list[ScoreResult]:
        """Return one result per pair, in their order: from the last stage that scored it."""
        results = [self._results[index] for index in range(len(self._results))]
        floor = lowest_score(self.variant.classifier.config.score_activation)
        scores = self._progress.scores(np.array([result.score for result in results], np.float32), floor)
        for result, score, raw_score in zip(
            results, scores, self._progress.raw_scores().tolist(), strict=True
        ):
            result.score = score
            result.raw_score = raw_score
        return results


def _first_error(rows: Sequence[PairRow]) -> Exception | None:
    return next((row.result for row in rows if isinstance(row.result, Exception)), None)


def _lowest(classifier: Classifier, score: RowScore) -> RowScore:
    """Return the scores of an empty title."""
    score = score._replace(
        score=np.float32(lowest_score(classifier.config.score_activation)), raw_score=LOWEST
    )
    if score.probabilities is None:
        return score
    surely_lowest = np.eye(1, len(score.probabilities), dtype=np.float32)[0]
    return score._replace(grade=0, expected_grade=np.float32(0), probabilities=surely_lowest)

"""Scores pairs in the stages of cascades, each stage a round of the request (`Scheduler.submit`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from service.engine.scheduler import Item, Round
from service.engine.threads import Lane, Outcome, Row, RowScore, Work
from service.schemas.responses import ScoreResult, StageInfo
from service.scoring.answers import judged, score_results
from service.scoring.cascade import Course, floor_of
from service.scoring.catalog import Choice
from service.scoring.encoding import Encoded
from service.scoring.listings import mask_info


class Staged:
    """The pairs of a request, or of one column of a compare, on their way through a cascade.

    choice: the cascade. queries: of each pair. encoded: the pairs by checkpoint, for those of all stages.
    lane: gives the lane of a stage's rows.
    scored: what has been scored, one entry per stage and round.
    """

    def __init__(
        self,
        choice: Choice,
        queries: Sequence[str],
        encoded: Mapping[str, Encoded],
        lane: Callable[[Choice], Lane],
    ) -> None:
        self._choice = choice
        self._encoded = [encoded[stage.variant.checkpoint] for stage in choice.stages]
        self._lanes = [lane(stage) for stage in choice.stages]
        self._course = Course(queries, choice.keeps)
        self._outcomes: list[Sequence[Outcome]] = [()] * len(queries)
        self._due: list[Encoded] = []
        self._pairs_scored = [0] * len(choice.stages)
        self.scored: list[Encoded] = []

    def items(self) -> list[Item[Work]]:
        """Return what is due: the rows of each stage's pairs."""
        self._due = [self._encoded[due.stage].of_pairs(due.pairs) for due in self._course.due]
        return [
            Item(len(row), self._lanes[due.stage], Row(row, self._choice.stages[due.stage].mask))
            for due, encoded in zip(self._course.due, self._due, strict=True)
            for row in encoded.rows
        ]

    @property
    def later_tokens(self) -> int:
        """The tokens, at most, of what comes after what is due: those of the longest titles."""
        tokens = 0
        for later in self._course.later():
            lengths = self._encoded[later.stage].tokens_of_pairs(later.pairs)
            tokens += sum(sorted(lengths, reverse=True)[: later.titles])
        return tokens

    def take(self, outcomes: Sequence[Outcome]) -> int:
        """Take the outcomes of what was due from the first of these on; return how many they were."""
        start = 0
        raw_scores = []
        for due, encoded in zip(self._course.due, self._due, strict=True):
            classifier = self._choice.stages[due.stage].variant.classifier
            best = []
            for number, count in enumerate(encoded.counts or [1] * len(due.pairs)):
                rows = outcomes[start : start + count]
                self._outcomes[due.pairs[number]] = rows
                scored = [row for row in rows if isinstance(row, RowScore)]
                best.append(max(judged(classifier, encoded.pairs[number], row).raw_score for row in scored))
                start += count
            raw_scores.append(best)
            self._pairs_scored[due.stage] += len(due.pairs)
            self.scored.append(encoded)
        self._course.advance(raw_scores)
        return start

    @property
    def is_done(self) -> bool:
        """Whether every stage has scored what was to reach it."""
        return not self._course.due

    @property
    def rows_due(self) -> int:
        """The number of rows that are due."""
        return sum(len(encoded.rows) for encoded in self._due)

    def results(self) -> list[ScoreResult]:
        """Return one result per pair, in their order: from the last stage that scored it."""
        results = []
        for number, (stage, encoded) in enumerate(zip(self._choice.stages, self._encoded, strict=True)):
            pairs = np.flatnonzero(self._course.stages == number).tolist()
            rows = [row for pair in pairs for row in self._outcomes[pair]]
            for pair, result in zip(pairs, score_results(stage, encoded.of_pairs(pairs), rows), strict=True):
                result.index = pair
                result.stage = stage.variant.name
                results.append(result)
        results.sort(key=lambda result: result.index)
        floor = floor_of(self._choice.variant.classifier.config.score_activation)
        scores = self._course.scores(np.array([result.score for result in results], np.float32), floor)
        for result, score, raw_score in zip(results, scores, self._course.raw_scores().tolist(), strict=True):
            result.score, result.raw_score = score, raw_score
        return results

    def stages(self) -> list[StageInfo]:
        """Return how the answer names the stages, and how many pairs each has scored."""
        return [
            StageInfo(
                stage.variant.name,
                stage.variant.classifier.name,
                mask_info(stage.mask, stage.variant.classifier),
                pairs,
            )
            for stage, pairs in zip(self._choice.stages, self._pairs_scored, strict=True)
        ]


class Rounds:
    """The rounds of a request with cascades: what the scheduler calls for the next one.

    plain: how many items of the first round belong to no cascade; they come first.
    """

    def __init__(self, cascades: Sequence[Staged], plain: int = 0) -> None:
        self._cascades = cascades
        self._taken = plain

    @property
    def later_tokens(self) -> int:
        """The tokens, at most, of the rounds after the one whose items were made last."""
        return sum(cascade.later_tokens for cascade in self._cascades)

    def __call__(self, results: Sequence[Any]) -> Round[Work]:
        """Return the next round; it has no items after an error, which ends the request.

        results: of all items so far.
        """
        if any(isinstance(result, Exception) for result in results):
            return Round(())
        for cascade in self._cascades:
            self._taken += cascade.take(results[self._taken : self._taken + cascade.rows_due])
        items = [item for cascade in self._cascades for item in cascade.items()]
        return Round(items, self.later_tokens)

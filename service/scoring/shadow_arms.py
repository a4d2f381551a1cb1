"""One arm of a shadow comparison: the way of a request's pairs through the arm's variant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from models.checkpoint.chunks import LongTitles, encode_chunks
from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from service.engine.scheduler import Item
from service.engine.threads import Row, RowScore, Work
from service.experiments.definition.config import ExperimentConfig
from service.schemas.requests import ScoreRequest
from service.scoring.answers import judged
from service.scoring.cascade import Course, Floats, RawScores, floor_of
from service.scoring.catalog import Catalog, Stage, Variant
from service.scoring.encoding import INLINE_CHARS
from service.scoring.reading import tokenizer_for


@dataclass(frozen=True, slots=True)
class Job:
    """A request to score once more, under the config that it was answered under.

    texts: the request's (query, title) pairs.
    """

    experiment: ExperimentConfig
    catalog: Catalog
    request: ScoreRequest
    texts: Sequence[tuple[str, str]]

    @property
    def chars(self) -> int:
        return sum(len(query) + len(title) for query, title in self.texts)


class Arm:
    """One arm's variant, which may be a cascade, and what it has made of a job's pairs so far.

    seconds: what its forward passes took.
    """

    def __init__(self, variant: Variant, texts: Sequence[tuple[str, str]]) -> None:
        self._variant = variant
        stages = variant.stages or (Stage(variant, None),)
        self._stages = [stage.variant for stage in stages]
        keeps = [stage.keep for stage in stages if stage.keep is not None]
        self._course = Course([query for query, _ in texts], keeps)
        self._best: dict[int, RowScore] = {}
        self._scores = np.zeros(len(texts), np.float32)
        self.seconds = 0.0

    def due(self) -> dict[int, Variant]:
        """Return the pairs of this round, and the variant that is to score each."""
        return {pair: self._stages[due.stage] for due in self._course.due for pair in due.pairs}

    def add(self, pair: int, encoded: EncodedPair, row: RowScore) -> None:
        """Note the score of a row of a pair; of several rows, the best counts."""
        row = judged(self._variant.classifier, encoded, row)
        if pair not in self._best or row.raw_score > self._best[pair].raw_score:
            self._best[pair] = row

    def end_round(self) -> None:
        """Choose the pairs of the next round, once all of this one are scored."""
        for pair, row in self._best.items():
            self._scores[pair] = row.score
        self._course.advance([[self._best[pair].raw_score for pair in due.pairs] for due in self._course.due])
        self._best = {}

    def relevance(self) -> Floats:
        """Return the pairs' scores on the scale from 0 to 1, (pairs,) float32."""
        classifier = self._variant.classifier
        scores = self._course.scores(self._scores, floor_of(classifier.config.score_activation))
        return classifier.relevance(scores)

    def raw_scores(self) -> RawScores:
        """Return what ranks the pairs."""
        return self._course.raw_scores()


class Step(NamedTuple):
    """The rows that are scored at the same moment, by arm: a pair, or one chunk of its title."""

    pair: int
    items: Mapping[str, Item[Work]]


async def steps(job: Job, pair: int, variants: Mapping[str, Variant]) -> list[Step]:
    """Encode a job's pair for the variants of some arms, by arm.

    Checkpoints may cut its title into different numbers of chunks.
    """
    rows: dict[str, Sequence[EncodedPair]] = {}
    for variant in variants.values():
        if variant.checkpoint in rows:
            continue
        texts, long_titles = [job.texts[pair]], job.request.long_titles
        tokenizer = tokenizer_for(job.request, variant.classifier.tokenizer, pair)
        read = partial(_rows, tokenizer, texts, long_titles)
        is_long = sum(map(len, texts[0])) > INLINE_CHARS  # it would hold up the event loop
        rows[variant.checkpoint] = await asyncio.to_thread(read) if is_long else read()
    steps_of_pair = []
    for chunk in range(max(map(len, rows.values()), default=0)):
        items: dict[str, Item[Work]] = {}
        for name, variant in variants.items():
            if chunk < len(rows[variant.checkpoint]):
                row = rows[variant.checkpoint][chunk]
                items[name] = Item(len(row), variant.lane, Row(row, variant.mask))
        steps_of_pair.append(Step(pair, items))
    return steps_of_pair


def _rows(
    tokenizer: PairTokenizer, texts: Sequence[tuple[str, str]], long_titles: LongTitles | None
) -> Sequence[EncodedPair]:
    """Return the sequences of a pair: one, or one per chunk of its title."""
    if long_titles is None:
        return tokenizer.encode(texts)
    (chunked,) = encode_chunks(tokenizer, texts, long_titles)
    return chunked.rows

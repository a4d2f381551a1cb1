"""Condenses queries: each step of the search is queued as a request of its own, so others take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, TypeVar

import numpy as np

from models.checkpoint.tokenizer import EncodedPair
from models.condense.loss import Floats, distributions
from models.condense.search import Condensed, Steps, Task, search
from models.condense.titles import Titles, with_unknown
from models.condense.words import read_words
from service.config.settings import Settings
from service.engine.deadline import Deadline
from service.engine.threads import PairRow
from service.errors import InvalidRequest
from service.observe.record import current
from service.schemas.condense import CondenseRequest, CondenseResponse, QueryOfLength, WordOfQuery
from service.schemas.responses import Usage
from service.scoring.catalog import Catalog, Variant
from service.scoring.listings import mask_info
from service.scoring.score import Computed, Scorer, asks_for
from service.scoring.tokens import Encoder

T = TypeVar("T")


class Condenser:
    """Answers POST /v1/condense. It raises what `Scorer` does, and is cancelled in the same way."""

    def __init__(self, scorer: Scorer, encoder: Encoder) -> None:
        self.scorer = scorer
        self.encoder = encoder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="condense")

    async def condense(
        self,
        request: CondenseRequest,
        catalog: Catalog,
        deadline: Deadline,
        count_pairs: Callable[[int], None],
    ) -> CondenseResponse:
        """Choose the words under one variant and mask.

        count_pairs: called with the number of pairs of each portion of a step, once they are scored.
        """
        variant = catalog.choose(request.variant, request.head_mask)
        asks_for(request, [variant])
        return await _Run(self, request, variant, deadline, count_pairs).answer()

    def close(self) -> None:
        """End the thread after the step in hand."""
        self._thread.shutdown(wait=False)

    async def off_loop(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a call on the thread, so that a large request does not hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)


class _Run:
    """One request on its way through the steps of the search."""

    def __init__(
        self,
        condenser: Condenser,
        request: CondenseRequest,
        variant: Variant,
        deadline: Deadline,
        count_pairs: Callable[[int], None],
    ) -> None:
        self._scorer = condenser.scorer
        self._encoder = condenser.encoder
        self._off_loop = condenser.off_loop
        self._request = request
        self._variant = variant
        self._classifier = variant.classifier
        self._deadline = deadline
        self._count_pairs = count_pairs
        self._titles = Titles(self._classifier.tokenizer, request.titles)
        self._total = Computed()
        self._usage = Usage(0, 0)

    async def answer(self) -> CondenseResponse:
        """Drive the search to its end, and build the answer."""
        request, classifier = self._request, self._classifier
        task = Task(
            request.query,
            await self._off_loop(read_words, request.query),
            request.method,
            None if request.grades is None else tuple(request.grades),
            request.max_words,
            request.max_loss,
        )
        started = time.monotonic()
        self._titles.encoded = await self._encoder.encode_texts(classifier.tokenizer, self._titles.distinct)
        self._total.tokenize_s += time.monotonic() - started
        steps = search(task)
        step = await self._off_loop(_advance, steps, None)
        while not isinstance(step, Condensed):
            step = await self._off_loop(_advance, steps, await self._judge(step))
        condensed = await self._off_loop(with_unknown, classifier.tokenizer, task.query, step)
        columns = zip(task.words, condensed.kept, condensed.importance, strict=True)
        return CondenseResponse(
            model=classifier.name,
            variant=self._variant.name,
            head_mask=mask_info(self._variant.mask, classifier),
            method=task.method,
            measure=task.measure,
            condensed=condensed.query,
            loss=condensed.loss,
            words=[WordOfQuery(word.text, word.form, kept, value) for word, kept, value in columns],
            path=[
                QueryOfLength(length.words, length.query, length.left_out, length.loss, length.measured)
                for length in condensed.path
            ],
            note=condensed.note,
            usage=self._usage,
            timing_ms=self._total.timing(self._deadline),
        )

    async def _judge(self, queries: Sequence[str]) -> Floats:
        """Return the distributions over the grades, (queries, titles, grades)."""
        pairs = await self._pairs(queries)
        lane, mask = self._variant.lane(), self._variant.mask
        results = await self._results([PairRow(pair, mask, lane) for pair in pairs])
        logits = np.array([result.logits for result in results])
        return self._titles.spread(distributions(self._classifier.scores(logits)), len(queries))

    async def _pairs(self, queries: Sequence[str]) -> list[EncodedPair]:
        """Return each query with each distinct title. Raises InvalidRequest if the query has no token."""
        started = time.monotonic()
        pairs = await self._off_loop(self._titles.encode, queries)
        ended = time.monotonic()
        current().stage("tokenize", started, ended)
        self._total.tokenize_s += ended - started
        if queries[0] == self._request.query and not pairs[0].query_tokens:
            raise InvalidRequest("holds no character that the model can read", param="query")
        return pairs

    async def _results(self, rows: Sequence[PairRow]) -> list[Any]:
        """Return what the network makes of rows, in their order. Raises the first error among the results.

        What was computed is counted, whatever ends the wait for the rest.
        """
        for portion in _portions(rows, self._scorer.settings):
            computed = Computed()
            try:
                await self._scorer.run(portion, self._deadline, computed)
            finally:
                self._count_pairs(
                    sum(row.result is not None and not isinstance(row.result, Exception) for row in portion)
                )
            self._total.queue_s += computed.queue_s
            self._total.inference_s += computed.inference_s
            seconds = computed.queue_s + computed.inference_s
            self._scorer.metrics.scored(self._variant.label, pairs=len(portion), seconds=seconds)
        self._usage.pairs += len(rows)
        self._usage.tokens += sum(row.tokens for row in rows)
        return [row.result for row in rows]


def _portions(rows: Sequence[PairRow], settings: Settings) -> Iterator[Sequence[PairRow]]:
    """Cut a step into portions, each with at most the rows and tokens that one request may have.

    Raises InvalidRequest if one pair alone has more tokens than a request may.
    """
    max_rows, max_tokens = settings.max_compare_rows, settings.max_request_tokens or inf
    start = tokens = 0
    for end, row in enumerate(rows):
        if row.tokens > max_tokens:
            raise InvalidRequest(
                f"{row.tokens} tokens are more than the {max_tokens} of one request", param="titles"
            )
        if end - start == max_rows or tokens + row.tokens > max_tokens:
            yield rows[start:end]
            start, tokens = end, 0
        tokens += row.tokens
    yield rows[start:]


def _advance(steps: Steps, judged: Floats | None) -> list[str] | Condensed:
    """Send judgments, None at first, into a search; return the queries that it wants next, or its result."""
    try:
        return next(steps) if judged is None else steps.send(judged)
    except StopIteration as end:
        result: Condensed = end.value
        return result

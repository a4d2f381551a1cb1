"""Condenses queries: each step of the search is queued as a request of its own, so others take turns."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.condense.local import Titles, distributions, with_unknown
from headroom.models.condense.search import Condensed, Steps, Task, search
from headroom.models.condense.words import read_words
from headroom.service.engine.request import Deadline
from headroom.service.engine.threads import PairRow, mark_prefixes
from headroom.service.errors import InvalidRequest
from headroom.service.observe.access_log import current
from headroom.service.off_loop import in_thread
from headroom.service.schemas.condense import CondenseRequest, CondenseResponse, QueryOfLength, WordOfQuery
from headroom.service.schemas.responses import Usage
from headroom.service.scoring.catalog import Catalog, Variant
from headroom.service.scoring.computed import Computed
from headroom.service.scoring.score import Scorer, with_instruction
from headroom.service.scoring.tokens import Encoder

T = TypeVar("T")


class Condenser:
    """Answers POST /v1/condense. It raises what `Scorer` does, and is cancelled in the same way."""

    def __init__(self, scorer: Scorer, encoder: Encoder) -> None:
        self.scorer = scorer
        self.encoder = encoder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="condense")

    async def condense(
        self, request: CondenseRequest, catalog: Catalog, deadline: Deadline
    ) -> CondenseResponse:
        """Choose the words under one variant and mask."""
        variant = await self.scorer.choose(catalog, request.variant, request.head_mask)
        current().set_columns([variant.names], len(request.titles))
        return await _Run(self, request, variant, deadline).answer()

    def close(self) -> None:
        """End the thread after its current step."""
        self._thread.shutdown(wait=False)

    async def off_loop(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a call on the thread, so that a large request does not hold up the event loop."""
        return await in_thread(self._thread, call, *arguments)


@dataclass
class _Run:
    """One request on its way through the steps of the search."""

    condenser: Condenser
    request: CondenseRequest
    variant: Variant
    deadline: Deadline

    async def answer(self) -> CondenseResponse:
        """Drive the search to its end, and build the answer."""
        request = self.request
        classifier = self.variant.classifier
        off_loop = self.condenser.off_loop
        self.total = Computed()
        self.usage = Usage(0, 0)
        self.titles = Titles(with_instruction(classifier.tokenizer, request.instruction), request.titles)
        task = Task(
            request.query,
            await off_loop(read_words, request.query),
            request.method,
            request.max_words,
            request.max_loss,
        )
        started = time.monotonic()
        self.titles.encoded = await self.condenser.encoder.encode_texts(
            classifier.tokenizer, self.titles.texts
        )
        self.total.tokenize_s += time.monotonic() - started
        steps = search(task)
        step = await off_loop(_advance, steps, None)
        while not isinstance(step, Condensed):
            step = await off_loop(_advance, steps, await self._judge(step))
        condensed = await off_loop(with_unknown, classifier.tokenizer, task.query, step)
        columns = zip(task.words, condensed.kept, condensed.importance, strict=True)
        return CondenseResponse(
            model=classifier.name,
            variant=self.variant.name,
            head_mask=self.variant.info,
            method=task.method,
            condensed=condensed.query,
            loss=condensed.loss,
            words=[WordOfQuery(word.text, word.form, kept, value) for word, kept, value in columns],
            path=[
                QueryOfLength(length.words, length.query, length.left_out, length.loss, length.measured)
                for length in condensed.path
            ],
            note=condensed.note,
            usage=self.usage,
            timing_ms=self.total.timing(self.deadline),
        )

    async def _judge(self, queries: Sequence[str]) -> Floats:
        """Score each query with each distinct title, and return the distributions over the grades.

        (queries, titles, grades). Raises InvalidRequest if the query has no token, else the first error among
        the results.
        """
        started = time.monotonic()
        pairs = await self.condenser.off_loop(self.titles.encode, queries)
        self.total.tokenize_s += time.monotonic() - started
        if queries[0] == self.request.query and not pairs[0].query_tokens:
            raise InvalidRequest("holds no character that the model can read", param="query")
        lane = self.variant.lane
        mask = self.variant.mask
        scorer = self.condenser.scorer
        rows = [PairRow(len(pair), lane, pair, mask) for pair in pairs]
        mark_prefixes(rows)
        max_rows = scorer.settings.max_compare_rows
        for portion in (rows[start : start + max_rows] for start in range(0, len(rows), max_rows)):
            computed = Computed()
            await scorer.run(portion, self.deadline, computed)
            self.total.queue_s += computed.queue_s
            self.total.inference_s += computed.inference_s
            seconds = computed.queue_s + computed.inference_s
            scorer.metrics.scored(
                self.variant.label,
                pairs=len(portion),
                seconds=seconds,
                is_from_playground=current().is_from_playground,
            )
        self.usage.pairs += len(rows)
        self.usage.tokens += sum(row.tokens for row in rows)
        logits = np.array([row.result.logits for row in rows])
        judged = distributions(self.variant.classifier.scores(logits))
        return self.titles.spread(judged, len(queries))


def _advance(steps: Steps, judged: Floats | None) -> list[str] | Condensed:
    """Send judgments, None at first, into a search; return the queries that it wants next, or its result."""
    try:
        return next(steps) if judged is None else steps.send(judged)
    except StopIteration as end:
        result: Condensed = end.value
        return result

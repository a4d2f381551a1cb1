"""Condenses queries: each step of the search is queued as a request of its own, so others take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.condense.loss import Floats, distributions
from models.condense.search import Condensed, Steps, Task, search
from models.condense.titles import Titles, with_unknown
from models.condense.words import read_words
from service.config.settings import Settings
from service.engine.deadline import Deadline
from service.engine.scheduler import Item, Scheduler
from service.engine.threads import Outcome, Row, RowScore, Work
from service.errors import InvalidRequest
from service.observe.metrics import Metrics
from service.schemas.condense import CondenseRequest, CondenseResponse, QueryOfLength, WordOfQuery
from service.schemas.responses import Timing, Usage
from service.scoring import following
from service.scoring.catalog import Catalog, Choice
from service.scoring.encoding import Encoder
from service.scoring.listings import mask_info

T = TypeVar("T")


class Condenser:
    """Answers POST /v1/condense. It raises what `Scorer` does, and is cancelled in the same way."""

    def __init__(
        self, scheduler: Scheduler[Work, Outcome], settings: Settings, metrics: Metrics, encoder: Encoder
    ) -> None:
        self.encoder = encoder
        self._scheduler = scheduler
        self._settings = settings
        self._metrics = metrics
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
        choice = catalog.choose(request.variant, request.head_mask)
        following.asks_for(request, [choice])
        task = Task(
            request.query,
            await self.off_loop(read_words, request.query),
            request.method,
            None if request.grades is None else tuple(request.grades),
            request.max_words,
            request.max_loss,
        )
        run = _Run(self, request, choice, deadline, count_pairs)
        condensed = await run.search(task)
        return run.answer(task, condensed)

    def close(self) -> None:
        """End the thread after the step in hand."""
        self._thread.shutdown(wait=False)

    async def off_loop(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a call on the thread, so that a large request does not hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def portions(self, items: Sequence[Item[Work]]) -> Iterator[Sequence[Item[Work]]]:
        """Cut a step into portions, each with at most the rows and tokens that one request may have.

        Raises InvalidRequest if one pair alone has more tokens than a request may.
        """
        rows, tokens = self._settings.max_compare_rows, self._settings.max_request_tokens
        start = held = 0
        for end, item in enumerate(items):
            if tokens is not None and item.tokens > tokens:
                raise InvalidRequest(
                    f"{item.tokens} tokens are more than the {tokens} of one request", param="titles"
                )
            if end - start == rows or (tokens is not None and held + item.tokens > tokens):
                yield items[start:end]
                start, held = end, 0
            held += item.tokens
        yield items[start:]

    async def outcomes(
        self, items: Sequence[Item[Work]], label: str, deadline: Deadline, count_pairs: Callable[[int], None]
    ) -> tuple[list[Outcome], float, float]:
        """Queue the items of a step; return their outcomes and the seconds of waiting and of computing.

        count_pairs: called with the number of items of each portion that were computed, whatever ends the
            wait for them.
        Raises the first error among the outcomes.
        """
        outcomes: list[Outcome] = []
        queue_s = inference_s = 0.0
        for portion in self.portions(items):
            ticket = self._scheduler.submit(portion, deadline=deadline.expires, trail=following.trail())
            try:
                results = await ticket.result()
            finally:
                count_pairs(sum(isinstance(result, Outcome) for result in ticket.results))
            for outcome in results:
                if isinstance(outcome, Exception):
                    raise outcome
                outcomes.append(outcome)
            queue_s += ticket.queue_s
            inference_s += ticket.inference_s
            self._metrics.scored(label, pairs=len(portion), seconds=ticket.queue_s + ticket.inference_s)
        return outcomes, queue_s, inference_s


class _Run:
    """One request on its way through the steps of the search."""

    def __init__(
        self,
        condenser: Condenser,
        request: CondenseRequest,
        choice: Choice,
        deadline: Deadline,
        count_pairs: Callable[[int], None],
    ) -> None:
        self._condenser = condenser
        self._request = request
        self._choice = choice
        self._deadline = deadline
        self._count_pairs = count_pairs
        self._titles = Titles(choice.variant.classifier.tokenizer, request.titles)
        self._seconds = {"tokenize": 0.0, "queue": 0.0, "inference": 0.0}
        self._pairs = self._tokens = 0

    @property
    def _classifier(self) -> Classifier:
        return self._choice.variant.classifier

    async def search(self, task: Task) -> Condensed:
        """Drive the search to its end."""
        await self._read_titles()
        steps = search(task)
        queries = await self._condenser.off_loop(_begin, steps)
        while True:
            judged = await self._judge(queries)
            step = await self._condenser.off_loop(_advance, steps, judged)
            if isinstance(step, Condensed):
                return await self._condenser.off_loop(
                    with_unknown, self._classifier.tokenizer, task.query, step
                )
            queries = step

    def answer(self, task: Task, condensed: Condensed) -> CondenseResponse:
        """Build the answer."""
        choice = self._choice
        columns = zip(task.words, condensed.kept, condensed.importance, strict=True)
        return CondenseResponse(
            model=self._classifier.name,
            variant=choice.variant.name,
            head_mask=mask_info(choice.mask, self._classifier),
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
            usage=Usage(self._pairs, self._tokens),
            timing_ms=Timing(
                **{stage: seconds * 1000 for stage, seconds in self._seconds.items()},
                total=self._deadline.elapsed() * 1000,
            ),
        )

    async def _judge(self, queries: Sequence[str]) -> Floats:
        """Return the distributions over the grades, (queries, titles, grades)."""
        rows = await self._rows(queries)
        lane, mask = self._choice.lane, self._choice.mask
        outcomes = await self._outcomes([Item(len(row), lane, Row(row, mask)) for row in rows])
        logits = np.array([outcome.logits for outcome in outcomes if isinstance(outcome, RowScore)])
        return self._titles.spread(distributions(self._classifier.scores(logits)), len(queries))

    async def _outcomes(self, items: Sequence[Item[Work]]) -> list[Outcome]:
        outcomes, queue_s, inference_s = await self._condenser.outcomes(
            items, self._choice.label, self._deadline, self._count_pairs
        )
        self._seconds["queue"] += queue_s
        self._seconds["inference"] += inference_s
        self._pairs += len(items)
        self._tokens += sum(item.tokens for item in items)
        return outcomes

    async def _read_titles(self) -> None:
        started = time.monotonic()
        titles = self._titles
        titles.encoded = await self._condenser.encoder.encode_texts(titles.tokenizer, titles.distinct)
        self._seconds["tokenize"] += time.monotonic() - started

    async def _rows(self, queries: Sequence[str]) -> list[EncodedPair]:
        """Return each query with each distinct title. Raises InvalidRequest if the query has no token."""
        started = time.monotonic()
        rows = await self._condenser.off_loop(self._titles.encode, queries)
        ended = time.monotonic()
        following.tokenized(started, ended)
        self._seconds["tokenize"] += ended - started
        if queries[0] == self._request.query and not rows[0].query_tokens:
            raise InvalidRequest("holds no character that the model can read", param="query")
        return rows


def _begin(steps: Steps) -> list[str]:
    """Return the queries that a search wants first."""
    return next(steps)


def _advance(steps: Steps, judged: Floats) -> list[str] | Condensed:
    """Send judgments into a search; return the queries that it wants next, or its result."""
    try:
        return steps.send(judged)
    except StopIteration as end:
        result: Condensed = end.value
        return result

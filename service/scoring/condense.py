"""Condenses queries: each step of the search is queued as a request of its own, so others take turns; a
query that is written is one row of a batch."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.condense.local import Titles, distributions, with_unknown
from headroom.models.condense.search import Condensed, Steps, Task, search
from headroom.models.condense.words import read_words
from headroom.models.errors import InvalidMask, ModelError
from headroom.models.generate.generator import Alignment
from headroom.models.masks.generation import GenerationMask, SpecParts, generator_masks, split_spec
from headroom.models.masks.head_mask import heads_of
from headroom.service.engine.request import Deadline
from headroom.service.engine.threads import Lane, PairRow, QuestionRow, mark_prefixes
from headroom.service.errors import InvalidRequest
from headroom.service.observe.access_log import current
from headroom.service.off_loop import in_thread
from headroom.service.schemas.condense import (
    DEFAULT_BEAMS,
    GENERATE,
    CondenseRequest,
    CondenseResponse,
    GenerateResponse,
    QueryAttention,
    QueryOfLength,
    WordOfQuery,
    WrittenQuery,
)
from headroom.service.schemas.responses import HeadAttention, Usage
from headroom.service.scoring.catalog import Catalog, Variant
from headroom.service.scoring.column import Computed
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
    ) -> CondenseResponse | GenerateResponse:
        """Choose the words, or write the query, under one variant and mask."""
        if request.method == GENERATE:
            return await self._generate(request, catalog, deadline)
        assert request.titles is not None  # as CondenseRequest.check has found
        variant = await self.scorer.choose(
            catalog, catalog.name_of_network(request.variant), request.head_mask
        )
        current().set_columns([variant.names], len(request.titles))
        return await _Run(self, request, variant, deadline).answer()

    async def _generate(
        self, request: CondenseRequest, catalog: Catalog, deadline: Deadline
    ) -> GenerateResponse:
        """Write the short query under one variant and mask."""
        form = request.head_mask
        parts = SpecParts(None, {})
        if isinstance(form, str):
            parts = split_spec(form)
            form = parts.encoder
        variant = await self.scorer.choose(catalog, catalog.name_of_network(request.variant), form)
        current().set_columns([variant.names], 1)
        classifier = variant.classifier
        if classifier.generator is None:
            raise InvalidRequest(
                f"generate needs a query generator, which the checkpoint {classifier.name} does not have",
                param="method",
            )
        computed = Computed()
        started = time.monotonic()
        row = await self.off_loop(_question_row, request, variant, parts.generator)
        computed.tokenize_s = time.monotonic() - started
        await self.scorer.run([row], deadline, computed)
        queries, alignment = row.result
        self.scorer.metrics.scored(
            variant.label,
            pairs=1,
            seconds=computed.queue_s + computed.inference_s,
        )
        attention = None
        if alignment is not None:
            attention = await self.off_loop(_attention_of, alignment, row.heads)
        return GenerateResponse(
            model=classifier.name,
            variant=variant.name,
            head_mask=variant.info,
            generator_mask=row.ask.mask.generator_spec,
            method=GENERATE,
            condensed=queries[0].query,
            queries=[WrittenQuery(one.query, one.score) for one in queries],
            attention=attention,
            usage=Usage(1, row.tokens),
            timing_ms=computed.timing(deadline),
        )

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
        assert request.titles is not None
        self.titles = Titles(with_instruction(classifier.tokenizer, request.instruction), request.titles)
        task = Task(
            request.query,
            await off_loop(read_words, request.query),
            request.selection,
            request.max_words,
            request.max_loss,
        )
        started = time.monotonic()
        self.titles.encoded = await self.condenser.encoder.encode_texts(
            classifier.tokenizer, self.titles.texts
        )
        self.total.tokenize_s += time.monotonic() - started
        steps = search(task, self.titles.repeats)
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
            )
        self.usage.pairs += len(rows)
        self.usage.tokens += sum(row.tokens for row in rows)
        logits = np.array([row.result.logits for row in rows])
        judged = distributions(self.variant.classifier.scores(logits))
        return judged.reshape(len(queries), len(self.titles.distinct), -1)


def _advance(steps: Steps, judged: Floats | None) -> list[str] | Condensed:
    """Send judgments, None at first, into a search; return the queries that it wants next, or its result."""
    try:
        return next(steps) if judged is None else steps.send(judged)
    except StopIteration as end:
        result: Condensed = end.value
        return result


def _question_row(request: CondenseRequest, variant: Variant, generator: Mapping[str, str]) -> QuestionRow:
    """Return the row of a request. generator: the masks of the generator's parts, as specs.

    Raises InvalidRequest for a question that cannot be read, InvalidMask for a wrong mask.
    """
    classifier = variant.classifier
    writer = classifier.checked_generator()
    mask = GenerationMask(variant.mask, *generator_masks(generator, writer.shape))
    heads: tuple[tuple[int, int], ...] = ()
    if request.heads is not None:
        try:
            heads = heads_of(request.heads, *writer.shape)
        except InvalidMask as error:
            raise InvalidRequest(str(error), param="heads") from None
    try:
        ask = writer.ask(request.query, request.beams or DEFAULT_BEAMS, mask)
    except ModelError as error:
        raise InvalidRequest(str(error), param="query") from None
    lane = Lane(classifier, variant.mask.structure, kind="generate")
    return QuestionRow(ask.tokens, lane, ask.question, variant.mask, heads, ask=ask)


def _attention_of(alignment: Alignment, heads: Sequence[tuple[int, int]]) -> QueryAttention:
    """Return the maps of these heads as answers hold them."""
    maps = alignment.probabilities
    return QueryAttention(
        question=list(alignment.question),
        pieces=list(alignment.pieces),
        heads=[HeadAttention(layer, head, np.ascontiguousarray(maps[layer, head])) for layer, head in heads],
    )

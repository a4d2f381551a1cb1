"""Scores requests: reads their tokens, has their rows computed, counts them, and builds the answer."""

import math
import time
from collections import Counter
from collections.abc import Generator, Sequence
from itertools import zip_longest
from typing import TypeVar

from headroom.models.checkpoint.chunks import LongTitles
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.service.config.keys import allowance
from headroom.service.config.settings import Settings
from headroom.service.config.variants import MaskForm
from headroom.service.engine.request import Deadline, added_tokens
from headroom.service.engine.scheduler import Scheduler
from headroom.service.engine.threads import PairRow
from headroom.service.errors import DeviceFailed, InvalidRequest, QueueFull, RateLimited
from headroom.service.experiments.assignment import Assigned
from headroom.service.observe.access_log import current
from headroom.service.observe.metrics import Metrics
from headroom.service.schemas.requests import (
    MAX_SPEC_CHARS,
    AttentionRequest,
    CompareRequest,
    DocumentsRequest,
    ScoreRequest,
)
from headroom.service.schemas.responses import Assignment, ScoreResponse, ScoreResult, Usage
from headroom.service.scoring.cache import Missing, ScoreCache
from headroom.service.scoring.catalog import CACHED_SPEC_CHARS, Catalog, Variant
from headroom.service.scoring.column import CascadeColumn, Column, Computed
from headroom.service.scoring.cutoff import check_cutoff
from headroom.service.scoring.original import AnyColumn, OriginalColumn
from headroom.service.scoring.tokens import INLINE_CHARS, Encoder, Pair, TooManyRows

T = TypeVar("T")
AnyRequest = ScoreRequest | CompareRequest | AttentionRequest

TOKENS_OF_ONE = 128
"""Tokens of a row for which one is charged to its caller's key."""


def cost(row: PairRow) -> int:
    """Return what a row costs its caller's key: one per TOKENS_OF_ONE tokens, and per head shown."""
    return math.ceil(row.tokens / TOKENS_OF_ONE) * max(1, len(row.heads))


def characters_of_mask(form: MaskForm) -> int:
    """Return about how many characters of a spec would take as long to parse as a mask."""
    return len(form) if isinstance(form, str) else MAX_SPEC_CHARS


def _chosen(catalog: Catalog, name: str | None, form: MaskForm | None) -> Generator[None, None, Variant]:
    yield
    return catalog.choose(name, form)


def with_instruction(tokenizer: PairTokenizer, instruction: str | None) -> PairTokenizer:
    """Return a model's tokenizer for a request's instruction. Raises InvalidRequest if that is too long."""
    try:
        return tokenizer.instructed(instruction)
    except ModelError as error:
        raise InvalidRequest(str(error), param="instruction") from None


class Scorer:
    """Answers scoring requests with the variants and masks that they name.

    Each call raises a ServiceError or InvalidMask if the request is refused or fails; if it is cancelled, its
    work that has not begun leaves the queue.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        metrics: Metrics,
        encoder: Encoder,
        cache: ScoreCache | None = None,
    ) -> None:
        """Begin. cache: the scores that were computed before; None: they are not cached."""
        self.settings = settings
        self.metrics = metrics
        self._scheduler = scheduler
        self._encoder = encoder
        self._cache = cache

    async def score(
        self,
        request: ScoreRequest,
        variant: Variant,
        deadline: Deadline,
        assigned: Assigned | None = None,
        *,
        degraded: bool = False,
    ) -> ScoreResponse:
        """Score the pairs under one variant and mask.

        assigned: the experiment's arm that the request's unit is in, which the answer and the metrics name.
            If `variant` is another variant than the arm's, the answer says that it is a fallback. An arm's
            scores never come from the cache. It holds the default variant's scores more often than another's,
            so the arm with the default variant would look faster than it is.
        degraded: the variant stands in for the default because of the load, which the answer says.
        """
        if request.has_cutoff:
            check_cutoff(request, variant)
        assignment = None
        if assigned is not None:
            assignment = Assignment(
                experiment=assigned.experiment,
                arm=assigned.arm,
                bucket=assigned.bucket,
                fallback=variant.name != assigned.variant,
            )
        computed = Computed()
        columns = await self._unscored_columns(request, [variant], computed, shared=False)
        (column,) = columns
        await self._compute_columns(columns, deadline, computed, use_cache=assigned is None)
        results = column.results()
        self.count(column, results, computed, "" if assigned is None else assigned.arms[0])
        return self.answer(results, columns, computed, deadline, assignment, degraded=degraded)

    def answer(
        self,
        results: list[ScoreResult],
        columns: Sequence[AnyColumn],
        computed: Computed,
        deadline: Deadline,
        assignment: Assignment | None,
        *,
        degraded: bool = False,
    ) -> ScoreResponse:
        """Return the answer with these results, which were made of the columns; the first one names it."""
        variant = columns[0].variant
        stages = [stage for column in columns for stage in column.stages or ()]
        usages = [column.usage for column in columns]
        if degraded := degraded or any(column.is_cut_short for column in columns):
            self.metrics.count("degraded_total")
        current().cache = computed.cache
        return ScoreResponse(
            model=variant.classifier.name,
            variant=variant.name,
            head_mask=variant.info,
            assignment=assignment,
            degraded=degraded,
            results=results,
            usage=Usage(
                pairs=sum(usage.pairs for usage in usages), tokens=sum(usage.tokens for usage in usages)
            ),
            timing_ms=computed.timing(deadline),
            stages=stages or None,
            _labels=variant.classifier.config.labels,
        )

    async def columns(
        self,
        request: ScoreRequest | CompareRequest,
        variants: Sequence[Variant],
        deadline: Deadline,
        *,
        shared: bool = False,
        background: bool = False,
        may_fail: bool = False,
    ) -> tuple[list[AnyColumn], Computed]:
        """Score the pairs under each variant, pair by pair in the same batches, without the score cache.

        A later stage of a cascade that would not be done by the deadline is left out, and one for which there
        is no room although all scores before it were cached. The request is admitted once.

        shared: whether sliced variants multiply their masks, so that all rows share batches.
        background: whether the rows run only while nothing else waits.
        may_fail: whether results may be errors other than DeviceFailed; each column then has its `error`.
        Raises the first error among the results, or InvalidRequest if the request has too many rows.
        """
        computed = Computed()
        columns = await self._unscored_columns(request, variants, computed, shared=shared)
        await self._compute_columns(
            columns, deadline, computed, use_cache=False, background=background, may_fail=may_fail
        )
        return columns, computed

    async def _compute_columns(
        self,
        columns: Sequence[AnyColumn],
        deadline: Deadline,
        computed: Computed,
        *,
        use_cache: bool,
        **options: bool,
    ) -> None:
        """Have the rows of the columns computed, stage by stage. options: `background` and `may_fail`."""
        # Another checkpoint's tokenizer may cut a title into another number of chunks.
        rows_by_pair = zip_longest(*(column.rows for column in columns))
        rows = [row for rows_of_pair in rows_by_pair for row in rows_of_pair if row is not None]
        if not rows:  # the order that the titles have needs no computing
            return
        cascades = [column for column in columns if isinstance(column, CascadeColumn)]
        cache = self._cache if use_cache else None
        computed.is_cached = self._cache is not None
        is_first_stage = True
        while rows:
            missing = Missing(rows, []) if cache is None else await cache.recall(rows)
            if not is_first_stage:
                tokens = sum(added_tokens(missing.rows))
                if tokens and not self._scheduler.is_in_time(tokens, deadline.expires):
                    break
            try:
                await self.run(missing.rows, deadline, computed, **options)
            except (QueueFull, RateLimited):
                if is_first_stage:
                    raise
                break  # all rows of the stages before were cached: nobody has admitted the request yet
            if cache is not None:
                computed.count(asked=len(rows), misses=len(missing.rows))
                cache.keep(missing)
            rows = [row for cascade in cascades if cascade.error is None for row in cascade.advance()]
            is_first_stage = False

    async def _unscored_columns(
        self,
        request: ScoreRequest | CompareRequest,
        variants: Sequence[Variant],
        computed: Computed,
        *,
        shared: bool,
    ) -> list[AnyColumn]:
        """Read the pairs' tokens, and return one column per variant. Raises InvalidRequest."""
        texts = request.texts()
        record = current()
        record.set_columns([variant.names for variant in variants], len(texts))
        record.top_n = request.titles_shown if isinstance(request, ScoreRequest) else None
        networks = [variant for variant in variants if not variant.is_original]
        stages = [stage for variant in networks for stage in variant.stages or (variant,)]
        encoded = {
            classifier: await self.encode(classifier, texts, request, computed, request.long_titles)
            for classifier in dict.fromkeys(stage.classifier for stage in stages)
        }
        queries = [query for query, _ in texts]
        columns: list[AnyColumn] = []
        rows = 0
        max_rows = max(self.settings.max_compare_rows, len(variants) * len(texts))
        if isinstance(request, ScoreRequest):  # an experiment added the other variants, not the caller
            max_rows *= len(variants)
        for variant in variants:
            column: AnyColumn
            if variant.is_original:
                column = OriginalColumn(variant, len(texts))
            elif variant.stages:
                column = CascadeColumn(variant, queries, encoded, shared=shared)
            else:
                column = Column(variant, encoded[variant.classifier], shared=shared)
            columns.append(column)
            rows += len(column.rows)
            if rows > max_rows:
                raise self._too_many_rows(rows, request.texts_field)
        return columns

    async def encode(
        self,
        classifier: Classifier,
        texts: Sequence[tuple[str, str]],
        request: AnyRequest,
        computed: Computed,
        long_titles: LongTitles | None = None,
    ) -> Sequence[Pair]:
        """Return the tokens of the pairs, and add the seconds it took to read them to `computed`.

        Raises InvalidRequest if a query has no token, if a text that is wanted whole does not fit the window,
        or if long titles are cut into too many chunks.
        """
        started = time.monotonic()
        tokenizer = classifier.tokenizer
        only_whole = False
        if request.instruction:
            tokenizer = with_instruction(tokenizer, request.instruction)
        if isinstance(request, DocumentsRequest):
            only_whole = request.keep == "all"
            if request.keep == "end" or request.alone:
                tokenizer = tokenizer.reading_as(keep_end=request.keep == "end", alone=request.alone)
        distinct = {text for pair in texts for text in pair}
        characters = sum([len(text) if text.isascii() else 2 * len(text) for text in distinct])
        pairs: Sequence[Pair]
        if characters <= INLINE_CHARS and long_titles is None:
            pairs = tokenizer.encode(texts)
        else:
            max_rows = max(self.settings.max_compare_rows, len(texts))
            try:
                pairs = await self._encoder.encode(tokenizer, texts, long_titles, max_rows)
            except TooManyRows as error:
                raise self._too_many_rows(error.rows, request.texts_field) from None
        for number, pair in enumerate(pairs):
            if not pair.query_tokens:
                param = f"pairs[{number}][0]" if request.texts_field == "pairs" else "query"
                raise InvalidRequest("holds no character that the model can read", param=param)
            if only_whole and pair.truncated:
                raise InvalidRequest(
                    f"does not fit into the window of {classifier.max_tokens} tokens; send shorter texts, or "
                    "allow truncation",
                    param=f"{request.texts_field}[{number}]",
                )
        computed.tokenize_s += time.monotonic() - started
        return pairs

    def _too_many_rows(self, rows: int, param: str) -> InvalidRequest:
        limit = self.settings.max_compare_rows
        return InvalidRequest(
            f"{rows} rows, chunks of long titles included, are more than the {limit} of one request",
            param=param,
        )

    async def choose(self, catalog: Catalog, name: str | None, form: MaskForm | None) -> Variant:
        """Return the variant of this name, under the mask of a form. A long mask is read on a thread."""
        if form is None or (isinstance(form, str) and len(form) <= CACHED_SPEC_CHARS):
            return catalog.choose(name, form)
        return await self.off_loop(_chosen(catalog, name, form), characters_of_mask(form))

    async def off_loop(self, portions: Generator[object, None, T], chars: int) -> T:
        """Return what a generator returns. It runs on a thread, where it takes turns with long texts.

        chars: about how many characters it reads.
        """
        return await self._encoder.read(portions, chars)

    async def run(
        self,
        rows: Sequence[PairRow],
        deadline: Deadline,
        computed: Computed,
        *,
        background: bool = False,
        may_fail: bool = False,
    ) -> None:
        """Have rows computed, and add their times to `computed`.

        Raises the first error among their results, unless they `may_fail`, and DeviceFailed in any case.

        If `computed.is_admitted`, the rows belong to a request that was let into the queue before.
        Raises RateLimited if the caller's key has nothing left.
        """
        if not rows:
            return
        account = allowance.get()
        if account is not None:
            account.check()
        submission = self._scheduler.submit(
            rows,
            deadline=deadline.expires,
            admitted=computed.is_admitted,
            background=background,
        )
        if account is not None:
            account.add(sum(map(cost, rows)))
        computed.is_admitted = True
        await self._scheduler.result(submission)
        computed.queue_s += submission.queue_s
        computed.inference_s += submission.inference_s
        raised = DeviceFailed if may_fail else Exception
        for row in rows:
            if isinstance(row.result, raised):
                raise row.result

    def count(
        self,
        column: AnyColumn,
        results: Sequence[ScoreResult],
        computed: Computed,
        arm: str = "",
    ) -> None:
        """Add one request, or one column of a compare, to the metrics."""
        variant = column.variant
        pairs_by_grade = Counter([result.grade for result in results])
        self.metrics.scored(
            variant.label,
            pairs=len(results),
            seconds=computed.queue_s + computed.inference_s,
            arm=arm,
            grades=[pairs_by_grade[grade] for grade in range(len(variant.classifier.grades))],
            truncated=[result.truncated for result in results].count(True),
            cached=0 if computed.misses is None else max(0, len(results) - computed.misses),
        )
        if column.stages is not None:
            for stage in column.stages:
                self.metrics.count("cascade_pairs_total", variant.label, stage.variant, by=stage.pairs)

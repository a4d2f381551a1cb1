"""Scores requests: reads their tokens, has their rows computed, counts them, and builds the answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from models.checkpoint.chunks import LongTitles
from models.classifier import Classifier
from service.config.settings import Settings
from service.engine.request import Deadline
from service.engine.scheduler import Scheduler
from service.engine.threads import PairRow
from service.errors import InvalidRequest
from service.experiments.assignment import Assigned
from service.observe.metrics import Metrics
from service.observe.record import current
from service.schemas.condense import CondenseRequest
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import Assignment, ScoreResponse, ScoreResult, StageInfo, Timing
from service.scoring.cache import ScoreCache
from service.scoring.catalog import Variant, mask_info
from service.scoring.column import ScoredColumn
from service.scoring.tokens import Encoder, Pair, check_whole, tokenizer_for

AnyRequest = ScoreRequest | CompareRequest | AttentionRequest | CondenseRequest


@dataclass(slots=True)
class Computed:
    """The costs of the rows of one request so far.

    is_admitted: whether some of them were let into the queue.
    misses: how many rows the score cache lacked; None if it was not asked.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    is_admitted: bool = False
    misses: int | None = None

    def timing(self, deadline: Deadline) -> Timing:
        """Return the times as answers hold them."""
        return Timing(
            tokenize=self.tokenize_s * 1000,
            queue=self.queue_s * 1000,
            inference=self.inference_s * 1000,
            total=deadline.elapsed() * 1000,
        )


class Scorer:
    """Answers scoring requests with the variants and masks that they name.

    Each call raises a ServiceError or InvalidMask if the request is refused or fails; if it is cancelled, its
    work that has not begun leaves the queue.
    """

    def __init__(self, scheduler: Scheduler, settings: Settings, metrics: Metrics, encoder: Encoder) -> None:
        self.settings = settings
        self.metrics = metrics
        self._scheduler = scheduler
        self._encoder = encoder
        self._cache = ScoreCache(settings.score_cache_size) if settings.score_cache_size else None

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
        asks_for(request, [variant])
        (column,), computed = await self.columns(request, [variant], deadline, use_cache=assigned is None)
        results, stages = column.results(), column.stages()
        self.count(variant, results, computed, "" if assigned is None else assigned.arm, stages)
        if degraded := degraded or column.is_cut_short:
            self.metrics.degraded()
        return ScoreResponse(
            model=variant.classifier.name,
            variant=variant.name,
            head_mask=mask_info(variant.mask, variant.classifier),
            assignment=None
            if assigned is None
            else Assignment(
                experiment=assigned.experiment,
                arm=assigned.arm,
                bucket=assigned.bucket,
                fallback=variant.name != assigned.variant,
            ),
            degraded=degraded,
            results=results,
            usage=column.usage,
            timing_ms=computed.timing(deadline),
            stages=stages,
            _labels=variant.classifier.config.labels,
        )

    async def columns(
        self,
        request: ScoreRequest | CompareRequest,
        variants: Sequence[Variant],
        deadline: Deadline,
        *,
        shared: bool = False,
        use_cache: bool = False,
        background: bool = False,
    ) -> tuple[list[ScoredColumn], Computed]:
        """Score the pairs under each variant, stage by stage, pair by pair in the same batches.

        A later stage that would not be done by the deadline is left out. The request is admitted once.

        shared: as `Column` takes it. background: as `Scheduler.submit` takes it.
        use_cache: whether results may come from the score cache.
        Raises the first error among the results, or InvalidRequest if the request has too many rows or
        tokens.
        """
        texts, computed = request.texts(), Computed()
        stages = [stage for variant in variants for stage in variant.stages or (variant,)]
        encoded = {
            classifier: await self.encode(classifier, texts, request, computed, request.long_titles)
            for classifier in dict.fromkeys(stage.classifier for stage in stages)
        }
        queries = [query for query, _ in texts]
        columns = [ScoredColumn(variant, queries, encoded, shared=shared) for variant in variants]
        # Another checkpoint's tokenizer may cut a title into another number of chunks.
        rows = [
            row for of_pair in zip_longest(*(c.due for c in columns)) for row in of_pair if row is not None
        ]
        limit = self.settings.max_compare_rows
        if len(rows) > limit and len(rows) > len(columns) * len(texts):
            raise InvalidRequest(
                f"{len(rows)} rows, chunks of long titles included, are more than the {limit} of one request",
                param=_texts_field(request),
            )
        tokens = sum([row.tokens for row in rows])
        self.check_tokens(tokens + sum(column.later_tokens for column in columns), request)
        while rows:
            if computed.is_admitted and not self._scheduler.is_in_time(tokens, deadline.expires):
                break
            if use_cache and self._cache is not None:
                missing = self._cache.recall(rows)
                await self.run([row for _, row in missing], deadline, computed)
                self._cache.keep(missing)
                computed.misses = (computed.misses or 0) + len(missing)
                self.metrics.looked_up(hits=len(rows) - len(missing), misses=len(missing))
            else:
                await self.run(rows, deadline, computed, background=background)
            for column in columns:
                column.advance()
            rows = [row for column in columns for row in column.due]
            tokens = sum([row.tokens for row in rows])
        return columns, computed

    async def encode(
        self,
        classifier: Classifier,
        texts: Sequence[tuple[str, str]],
        request: ScoreRequest | CompareRequest | AttentionRequest,
        computed: Computed,
        long_titles: LongTitles | None = None,
    ) -> Sequence[Pair]:
        """Return the tokens of the pairs, and add the seconds it took to read them to `computed`.

        Raises InvalidRequest if a query has no token.
        """
        started = time.monotonic()
        tokenizer = tokenizer_for(request, classifier.tokenizer)
        pairs = await self._encoder.encode(tokenizer, texts, long_titles)
        check_whole(request, pairs, classifier.max_tokens)
        for number, pair in enumerate(pairs):
            if not pair.query_tokens:
                in_pairs = not isinstance(request, AttentionRequest) and request.pairs is not None
                param = f"pairs[{number}][0]" if in_pairs else "query"
                raise InvalidRequest("holds no character that the model can read", param=param)
        ended = time.monotonic()
        current().stage("tokenize", started, ended)
        computed.tokenize_s += ended - started
        return pairs

    async def run(
        self, rows: Sequence[PairRow], deadline: Deadline, computed: Computed, *, background: bool = False
    ) -> None:
        """Have rows computed, and add their times to `computed`. Raises the first error among their results.

        If `computed.is_admitted`, the rows belong to a request that was let into the queue before.
        """
        if not rows:
            return
        submission = self._scheduler.submit(
            rows,
            deadline=deadline.expires,
            admitted=computed.is_admitted,
            background=background,
            trace=current().trace,
        )
        computed.is_admitted = True
        await self._scheduler.result(submission)
        computed.queue_s += submission.queue_s
        computed.inference_s += submission.inference_s
        for row in rows:
            if isinstance(row.result, Exception):
                raise row.result

    def check_tokens(self, tokens: int, request: AnyRequest) -> None:
        """Raise InvalidRequest if a request has more tokens than one may have."""
        limit = self.settings.max_request_tokens
        if limit is not None and tokens > limit:
            raise InvalidRequest(
                f"{tokens} tokens are more than the {limit} of one request", param=_texts_field(request)
            )

    def count(
        self,
        variant: Variant,
        results: Sequence[ScoreResult],
        computed: Computed,
        arm: str = "",
        stages: Sequence[StageInfo] | None = None,
    ) -> None:
        """Add one request, or one column of a compare, to the metrics."""
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
        if stages is not None:
            self.metrics.cascade(variant.label, {stage.variant: stage.pairs for stage in stages})


def asks_for(request: AnyRequest, variants: Sequence[Variant]) -> None:
    """Note in the log line and the trace of a request what it asks for."""
    if isinstance(request, AttentionRequest):
        query, pairs = request.query, 1
    elif isinstance(request, CondenseRequest) or request.pairs is None:
        query, pairs = request.query or "", len(request.titles or ())
    else:
        query, pairs = request.pairs[0][0], len(request.pairs)
    current().asks_for([(variant.name, variant.mask.id) for variant in variants], pairs, query)


def _texts_field(request: AnyRequest) -> str:
    """Return the name of the field that holds most of a request's text."""
    if isinstance(request, AttentionRequest):
        return "title"
    return "titles" if isinstance(request, CondenseRequest) or request.pairs is None else "pairs"

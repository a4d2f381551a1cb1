"""The way of every scoring request: limits, the score cache, the scheduler, and the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from service.config.settings import Settings
from service.engine.deadline import Deadline
from service.engine.scheduler import Item, Round, Scheduler, Ticket
from service.engine.threads import Outcome, Work
from service.engine.ticket import NextRound
from service.errors import InvalidRequest
from service.observe.metrics import Metrics
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import ScoreResult, StageInfo
from service.scoring import following
from service.scoring.answers import Computed
from service.scoring.catalog import Choice
from service.scoring.score_cache import Recalled, ScoreCache
from service.scoring.stages import Rounds

AnyRequest = ScoreRequest | CompareRequest | AttentionRequest


class Computing:
    """Has the rows of requests computed, as far as the score cache does not have them, and counts them."""

    def __init__(self, scheduler: Scheduler[Work, Outcome], settings: Settings, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._metrics = metrics
        self._cache = ScoreCache(settings.score_cache_size) if settings.score_cache_size else None

    async def compute(
        self,
        items: Sequence[Item[Work]],
        request: AnyRequest,
        deadline: Deadline,
        tokenize_s: float,
        rounds: Rounds | None = None,
        cached: Choice | None = None,
    ) -> Computed:
        """Queue the items of one request and wait for all of them.

        rounds: those after them, of cascades.
        cached: the variant and mask of all items, if their results may come from the score cache; else None.
        Raises the first error among their outcomes, or InvalidRequest if they hold more tokens than one
        request may.
        """
        later_tokens = 0 if rounds is None else rounds.later_tokens
        tokens, limit = sum([item.tokens for item in items]) + later_tokens, self._settings.max_request_tokens
        if limit is not None and tokens > limit:
            raise InvalidRequest(
                f"{tokens} tokens are more than the {limit} of one request", param=texts_field(request)
            )
        next_round: NextRound | None = rounds
        recalled: Recalled | None = None
        if self._cache is not None and cached is not None:
            variants = [stage.variant for stage in cached.stages or (cached,)]
            classifiers = {variant.checkpoint: variant.classifier for variant in variants}
            recalled = Recalled(self._cache, classifiers, rounds)
            items, later_tokens = recalled.lacking(Round(items, later_tokens))
            next_round = recalled
        ticket: Ticket[Outcome] = self._scheduler.submit(
            items,
            deadline=deadline.expires,
            next_round=next_round,
            later_tokens=later_tokens,
            trail=following.trail(),
        )
        results = await ticket.result()
        hits = misses = 0
        if recalled is not None:
            results, hits, misses = recalled.results, recalled.hits, recalled.misses
            self._metrics.looked_up(hits=hits, misses=misses)
        outcomes = []
        for outcome in results:
            if isinstance(outcome, Exception):
                raise outcome
            outcomes.append(outcome)
        times = tokenize_s, ticket.queue_s, ticket.inference_s
        return Computed(outcomes, *times, ticket.is_cut_short, hits, misses)

    def count(
        self,
        choice: Choice,
        results: Sequence[ScoreResult],
        computed: Computed,
        arm: str = "",
        stages: Sequence[StageInfo] | None = None,
    ) -> None:
        """Add one request, or one column of a compare, to the metrics."""
        pairs_by_grade = Counter([result.grade for result in results])
        self._metrics.scored(
            choice.label,
            pairs=len(results),
            seconds=computed.queue_s + computed.inference_s,
            arm=arm,
            grades=[pairs_by_grade[grade] for grade in range(len(choice.variant.classifier.grades))],
            truncated=[result.truncated for result in results].count(True),
            cached=max(0, len(results) - computed.misses) if computed.hits else 0,
        )
        if stages is not None:
            pairs_by_stage = {stage.variant: stage.pairs for stage in stages}
            self._metrics.cascade(choice.label, pairs_by_stage)


def texts_field(request: AnyRequest) -> str:
    """Return the name of the field that holds most of a request's text."""
    if isinstance(request, AttentionRequest):
        return "title"
    return "titles" if request.pairs is None else "pairs"

"""Scores requests: reads their tokens, queues their rows, waits for the engine, and builds the answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from models.checkpoint.chunks import LongTitles
from models.classifier import Classifier
from models.errors import InvalidMask
from service.config.settings import Settings
from service.config.variants import MaskForm
from service.engine.deadline import Deadline
from service.engine.scheduler import Item, Scheduler
from service.engine.threads import AttentionRow, Lane, Outcome, Row, Work
from service.errors import InvalidRequest
from service.experiments.definition.assignment import Assigned
from service.observe.metrics import Metrics
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import (
    AttentionResponse,
    Column,
    CompareResponse,
    ScoreResponse,
)
from service.scoring import following
from service.scoring.answers import (
    attention_response,
    compare_response,
    score_response,
    score_results,
)
from service.scoring.catalog import Catalog, Choice
from service.scoring.computing import AnyRequest, Computing, texts_field
from service.scoring.encoding import Encoded, Encoder
from service.scoring.heads import heads_of
from service.scoring.listings import mask_info
from service.scoring.reading import check_whole, tokenizer_for
from service.scoring.stages import Rounds, Staged

MAX_ATTENTION_VALUES = 4_000_000
"""Maximum values of one `/v1/attention`: heads times tokens squared."""


class Scorer:
    """Answers scoring requests with the variants and masks that they name.

    Each call raises a ServiceError or InvalidMask if the request is refused or fails; if it is cancelled, its
    work that has not begun leaves the queue.
    """

    def __init__(
        self, scheduler: Scheduler[Work, Outcome], settings: Settings, metrics: Metrics, encoder: Encoder
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._encoder = encoder
        self._computing = Computing(scheduler, settings, metrics)

    async def score(
        self,
        request: ScoreRequest,
        choice: Choice,
        deadline: Deadline,
        assigned: Assigned | None = None,
        *,
        degraded: bool = False,
    ) -> ScoreResponse:
        """Score the pairs under one variant and mask.

        assigned: the experiment's arm that the request's unit is in, which the answer and the metrics name.
            An arm's scores never come from the cache. It holds the default variant's scores more often than
            another's, so the arm with the default variant would look faster than it is.
        degraded: the variant stands in for the default because of the load, which the answer says.
        """
        following.asks_for(request, [choice])
        if choice.stages:
            return await self._score_in_stages(request, choice, deadline, assigned, degraded)
        encoded, tokenize_s = await self._encode(
            choice.variant.classifier, request.texts(), request, request.long_titles
        )
        self._check_rows([encoded], request)
        items: list[Item[Work]] = [Item(len(row), choice.lane, Row(row, choice.mask)) for row in encoded.rows]
        computed = await self._computing.compute(
            items, request, deadline, tokenize_s, cached=choice if assigned is None else None
        )
        results = score_results(choice, encoded, computed.outcomes)
        self._computing.count(choice, results, computed, arm="" if assigned is None else assigned.arm)
        if degraded:
            self._metrics.degraded()
        return score_response(choice, assigned, [encoded], results, computed, deadline, degraded=degraded)

    async def _score_in_stages(
        self,
        request: ScoreRequest,
        choice: Choice,
        deadline: Deadline,
        assigned: Assigned | None,
        degraded: bool,
    ) -> ScoreResponse:
        """Score the pairs by a cascade."""
        encoded, tokenize_s = await self._encode_for(choice.stages, request)
        self._check_rows([encoded[choice.stages[0].variant.checkpoint]], request)
        cascade = Staged(choice, _queries(request), encoded, lambda stage: stage.lane)
        rounds = Rounds([cascade])
        computed = await self._computing.compute(
            cascade.items(), request, deadline, tokenize_s, rounds, choice if assigned is None else None
        )
        results, stages = cascade.results(), cascade.stages()
        arm = "" if assigned is None else assigned.arm
        self._computing.count(choice, results, computed, arm, stages)
        if degraded or computed.is_cut_short:
            self._metrics.degraded()
        return score_response(
            choice, assigned, cascade.scored, results, computed, deadline, stages, degraded=degraded
        )

    async def compare(self, request: CompareRequest, catalog: Catalog, deadline: Deadline) -> CompareResponse:
        """Score the pairs under every mask and variant, pair by pair in the same batches."""
        choices = [_column(f"masks[{i}]", catalog, None, mask) for i, mask in enumerate(request.masks)]
        choices += [_column(f"variants[{i}]", catalog, name, None) for i, name in enumerate(request.variants)]
        following.asks_for(request, choices)
        encoded, tokenize_s = await self._encode_for(
            [stage for choice in choices for stage in choice.stages or (choice,)], request
        )
        columns = [encoded[choice.variant.checkpoint] for choice in choices]
        self._check_rows(columns, request)
        # The masks of sliced variants are multiplied here, so that their rows share the others' batches.
        cascades = {
            number: Staged(choice, _queries(request), encoded, _shared_lane)
            for number, choice in enumerate(choices)
            if choice.stages
        }
        # Another checkpoint's tokenizer may cut a title into another number of chunks.
        items: list[Item[Work]] = []
        columns_of_items: list[int] = []
        for rows in zip_longest(*(column.rows for column in columns)):
            for number, (choice, row) in enumerate(zip(choices, rows, strict=True)):
                if row is not None and number not in cascades:
                    items.append(Item(len(row), _shared_lane(choice), Row(row, choice.mask)))
                    columns_of_items.append(number)
        rounds = Rounds(list(cascades.values()), plain=len(items)) if cascades else None
        staged = [item for cascade in cascades.values() for item in cascade.items()]
        computed = await self._computing.compute(items + staged, request, deadline, tokenize_s, rounds=rounds)
        outcomes: list[list[Outcome]] = [[] for _ in choices]
        for number, outcome in zip(columns_of_items, computed.outcomes, strict=False):
            outcomes[number].append(outcome)
        answer = []
        scored: list[Encoded] = []
        for number, (choice, column) in enumerate(zip(choices, columns, strict=True)):
            cascade = cascades.get(number)
            results = (
                score_results(choice, column, outcomes[number]) if cascade is None else cascade.results()
            )
            stages = None if cascade is None else cascade.stages()
            self._computing.count(choice, results, computed, stages=stages)
            scored += [column] if cascade is None else cascade.scored
            is_cut_short = computed.is_cut_short and cascade is not None and not cascade.is_done
            if is_cut_short:
                self._metrics.degraded()
            mask = mask_info(choice.mask, choice.variant.classifier)
            answer.append(Column(mask, choice.variant.name, results, stages, is_cut_short))
        return compare_response(catalog.base.name, answer, scored, computed, deadline)

    async def attention(
        self, request: AttentionRequest, catalog: Catalog, deadline: Deadline
    ) -> AttentionResponse:
        """Return the attention of the wanted heads over one pair."""
        choice = catalog.choose(request.variant, request.head_mask)
        following.asks_for(request, [choice])
        classifier = choice.variant.classifier
        encoded, tokenize_s = await self._encode(classifier, [(request.query, request.title)], request)
        (pair,) = encoded.rows
        heads = self._wanted_heads(request.heads, classifier, len(pair))
        lane = Lane(choice.variant.checkpoint, kind="attention")
        items: list[Item[Work]] = [Item(len(pair), lane, AttentionRow(pair, choice.mask, heads))]
        computed = await self._computing.compute(items, request, deadline, tokenize_s)
        return attention_response(choice, pair, heads, computed, deadline)

    async def _encode(
        self,
        classifier: Classifier,
        texts: Sequence[tuple[str, str]],
        request: AnyRequest,
        long_titles: LongTitles | None = None,
    ) -> tuple[Encoded, float]:
        """Return the tokens of the pairs and the seconds it took to read them.

        Raises InvalidRequest if a query has no token.
        """
        started = time.monotonic()
        tokenizer = tokenizer_for(request, classifier.tokenizer)
        encoded = await self._encoder.encode(tokenizer, texts, long_titles)
        check_whole(request, encoded.rows, classifier.max_tokens)
        for number, pair in enumerate(encoded.pairs):
            if not pair.query_tokens:
                in_pairs = not isinstance(request, AttentionRequest) and request.pairs is not None
                param = f"pairs[{number}][0]" if in_pairs else "query"
                raise InvalidRequest("holds no character that the model can read", param=param)
        ended = time.monotonic()
        following.tokenized(started, ended)
        return encoded, ended - started

    async def _encode_for(
        self, choices: Iterable[Choice], request: ScoreRequest | CompareRequest
    ) -> tuple[dict[str, Encoded], float]:
        """Return the tokens of the pairs by checkpoint, and the seconds it took to read them."""
        encoded: dict[str, Encoded] = {}
        tokenize_s = 0.0
        for variant in {choice.variant.checkpoint: choice.variant for choice in choices}.values():
            encoded[variant.checkpoint], seconds = await self._encode(
                variant.classifier, request.texts(), request, request.long_titles
            )
            tokenize_s += seconds
        return encoded, tokenize_s

    def _check_rows(self, columns: Sequence[Encoded], request: ScoreRequest | CompareRequest) -> None:
        """Raise InvalidRequest if chunks make more rows of a request than one may have."""
        rows, limit = sum(len(column.rows) for column in columns), self._settings.max_compare_rows
        if rows > limit and rows > sum(len(column.pairs) for column in columns):
            raise InvalidRequest(
                f"{rows} rows, chunks of long titles included, are more than the {limit} of one request",
                param=texts_field(request),
            )

    def _wanted_heads(self, spec: str, classifier: Classifier, tokens: int) -> tuple[tuple[int, int], ...]:
        """Return the heads of a list such as `2.3,4.*`, if their values fit into one answer."""
        heads = heads_of(spec, classifier)
        values = len(heads) * tokens**2
        if values > MAX_ATTENTION_VALUES:
            raise InvalidRequest(
                f"{len(heads)} heads of {tokens} tokens are {values} values; "
                f"one answer holds {MAX_ATTENTION_VALUES}",
                param="heads",
            )
        return heads


def _column(place: str, catalog: Catalog, name: str | None, form: MaskForm | None) -> Choice:
    """Choose the variant and mask of one column of a compare; errors name the column."""
    try:
        return catalog.choose(name, form)
    except (InvalidRequest, InvalidMask) as error:
        raise InvalidRequest(str(error).removeprefix("variant: "), param=place) from None


def _shared_lane(choice: Choice) -> Lane:
    """Return the lane in which rows of different masks share batches."""
    return Lane(choice.variant.checkpoint)


def _queries(request: ScoreRequest | CompareRequest) -> list[str]:
    return [query for query, _ in request.texts()]

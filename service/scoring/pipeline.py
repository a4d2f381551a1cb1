"""The way of one request below HTTP: variant and mask, tokens, queue, forward pass, answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

import numpy as np
import torch

from models.checkpoint.tokenizer import EncodedPair, EncodedText
from models.classifier import Classifier
from models.device import describe
from models.errors import InvalidMask
from models.head_mask import HeadMask
from service.batching.scheduler import Item, Observer, Scheduler, Ticket
from service.engine import AttentionRow, Engine, Lane, Outcome, Row, RowScore, Work
from service.errors import (
    DeadlineExceeded,
    DeviceFailed,
    Draining,
    InvalidRequest,
    QueueFull,
    as_service_error,
)
from service.experiments.definition.assignment import Assigned
from service.experiments.online.admin import ExperimentAdmin
from service.experiments.online.live import LiveExperiments
from service.experiments.online.router import Route
from service.experiments.storage.connection import reason_of
from service.experiments.storage.store import Store
from service.metrics import Metrics
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import (
    Assignment,
    AttentionResponse,
    Column,
    CompareResponse,
    HeadAttention,
    MasksResponse,
    ModelsResponse,
    ScoreResponse,
    ScoreResult,
    Timing,
    Usage,
    VariantsResponse,
)
from service.scoring import listings
from service.scoring.catalog import BASE, Catalog, Choice, build_catalog
from service.scoring.listings import mask_info
from service.scoring.shadow import Shadow
from service.settings import InvalidConfig, LiveConfig, MaskForm, Settings

INLINE_CHARS = 4_000
"""Texts up to this long together are tokenised at once; more would hold up the event loop."""

PORTION_CHARS = 65_536
"""Longer ones are tokenised in portions of this size on a thread, where requests take turns."""

EXPOSURES_SECONDS = 5.0
"""How long the end waits for exposures to reach the database."""

GAUGE_SECONDS = 0.5
"""How often the queue's gauges are brought up to date between batches."""

# Errors that no arm causes and that another attempt would make worse; such a request exposes nobody.
_EVERY_ARMS_FAULT = (QueueFull, Draining, DeviceFailed)

T = TypeVar("T", Row, AttentionRow)


@dataclass(frozen=True, slots=True)
class _Answered:
    """What came back for the items of one request, in their order, and the seconds it took."""

    outcomes: list[Outcome]
    queue_s: float
    inference_s: float


class Pipeline:
    """Everything of a replica but HTTP and Ray. Build it with `load`, then `start` it on the event loop."""

    def __init__(self, settings: Settings, engine: Engine, catalog: Catalog, metrics: Metrics) -> None:
        self._settings = settings
        self._engine = engine
        self._catalog = catalog
        self._metrics = metrics
        self._base = engine.classifiers[BASE]
        self._device = self._base.network.device.type
        self._budget = settings.batch_tokens(self._device)
        self._tokenize_thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False
        self._checked: Catalog | None = None  # checked last, so that applying it loads nothing twice
        self._live = LiveExperiments(
            Store(settings.database_url), metrics.experiments, retention_days=settings.retention_days
        )
        self.experiments = ExperimentAdmin(self._live)

    @classmethod
    def load(cls, settings: Settings, config: LiveConfig, metrics: Metrics, *, threads: int) -> Pipeline:
        """Loads the models that settings and config name and warms them up; takes seconds.

        threads: torch threads of the forward pass on a CPU.
        Raises ModelError or InvalidConfig.
        """
        base = load_classifier(settings, settings.model)
        catalog = build_catalog(config, {BASE: base}, lambda path: load_classifier(settings, path))
        engine = Engine(
            {BASE: base} | catalog.classifiers, threads=threads, on_failure=metrics.device_failure
        )
        pipeline = cls(settings, engine, catalog, metrics)
        pipeline._warm_up(catalog)
        pipeline._apply_experiments(config)
        pipeline._publish()
        metrics.build_info(
            version=version("headroom"),
            torch=torch.__version__,
            model=base.name,
            device=describe(base.network.device),
            dtype=base.network.number_format,
        )
        return pipeline

    def check(self, config: LiveConfig) -> None:
        """Whether `apply` would take this config; changes nothing. Raises InvalidConfig."""
        try:
            self._live.check(config.assigner)
        except ValueError as error:
            raise InvalidConfig(str(error)) from None
        self._build(config)

    def apply(self, config: LiveConfig) -> None:
        """Puts another live config in force; requests under way finish under the old one.

        May load checkpoints: call it off the event loop. Raises InvalidConfig, or what the device has against
        it, and leaves all as it was.
        """
        if config.version == self._catalog.config.version:
            self._checked = None
            return
        before = self._engine.classifiers
        try:
            self.check(config)
            catalog = self._build(config)
            # Rows of the config before may still be queued, so its checkpoints stay until the next change.
            self._engine.classifiers = {BASE: self._base} | self._catalog.classifiers | catalog.classifiers
            self._warm_up(catalog, warm=self._catalog)
            self._apply_experiments(config)
        except BaseException:
            self._engine.classifiers = before
            self._make_room(self._catalog)
            raise
        finally:
            self._checked = None
        self._catalog = catalog
        self._publish()

    async def start(self) -> None:
        """Begins to take requests."""
        self._scheduler: Scheduler[Work, Outcome] = Scheduler(
            self._engine.run,
            max_batch_tokens=self._budget,
            max_queue_tokens=self._settings.queue_tokens(self._device),
            max_request_tokens=self._settings.request_tokens(self._base.max_tokens),
            max_age_s=self._settings.max_age_s,
            max_wait_s=self._settings.max_queue_s,
            tokens_per_second=self._engine.tokens_per_second,
            slots=self._engine.slots,
            split_tokens=self._engine.split_tokens,
            observer=_Meter(self._metrics),
        )
        self._shadow = Shadow(self._live, self._scheduler, self._engine.run, self._budget)
        self._live.start()
        self._tasks = [
            asyncio.create_task(work) for work in (self._scheduler.run(), self._report(), self._shadow.run())
        ]
        self._metrics.ready(True)

    async def drain(self) -> None:
        """Stops being ready, answers what was admitted within the drain timeout, and ends."""
        self._draining = True
        self._metrics.ready(False)
        # What is left after the timeout is answered with 503 when the scheduler's task is cancelled.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await self._scheduler.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.experiments.close()
        await self._live.close(EXPOSURES_SECONDS)
        self._tokenize_thread.shutdown(wait=False)
        await asyncio.to_thread(self._engine.close)

    @property
    def config_version(self) -> str:
        """The live config's version, sent with every answer."""
        return self._catalog.config.version

    def ready(self) -> str | None:
        """None when requests are welcome, else why not."""
        if self._draining:
            return "draining"
        if self._engine.failure:
            return "the device failed"
        return "the scheduler stopped" if any(task.done() for task in self._tasks) else self._live.failure

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        """POST /v1/score. Where an experiment's arm fails a request, the control's variant answers it."""
        started = time.monotonic()
        catalog = self._catalog
        if request.variant is not None or request.head_mask is not None:
            return await self._score(request, catalog.choose(request.variant, request.head_mask), started)
        attributes = request.attributes or {}
        route = self._live.router.route(catalog.assigner, request.unit, attributes)
        answer = await self._score_assigned(request, catalog, route, started)
        if catalog.assigner.experiments:
            self._shadow.offer(catalog, request.texts(), attributes, request.grades)
        return answer

    async def _score_assigned(
        self, request: ScoreRequest, catalog: Catalog, route: Route, started: float
    ) -> ScoreResponse:
        assigned = route.assigned
        if assigned is None:
            return await self._score(request, catalog.choose(route.variant, None), started)
        try:
            answer = await self._score(request, catalog.choose(assigned.variant, None), started, assigned)
        except _EVERY_ARMS_FAULT:
            raise
        except (DeadlineExceeded, asyncio.CancelledError):
            late = request.deadline_ms is not None and _since(started) * 1000 > 0.95 * request.deadline_ms
            self._live.router.abandoned(route, _since(started), late=late)
            raise
        except Exception as error:
            answer = await self._fall_back(request, catalog, route, started, error)
            self._live.router.fell_back(route, _since(started), error)
            return answer
        self._live.router.succeeded(
            route,
            _since(started),
            lambda: np.array([result.score for result in answer.results], dtype=np.float32),
        )
        return answer

    async def _fall_back(
        self, request: ScoreRequest, catalog: Catalog, route: Route, started: float, error: Exception
    ) -> ScoreResponse:
        """The control's answer to a request that the arm's variant failed; raises where there is none."""
        assigned = route.assigned
        try:
            if assigned is None or assigned.fallback is None:
                raise error
            return await self._score(request, catalog.choose(assigned.fallback, None), started, assigned)
        except BaseException:
            if as_service_error(error).status >= 500:  # else a refusal, and the control's as well
                self._live.router.failed(route, _since(started))
            raise

    async def _score(
        self, request: ScoreRequest, choice: Choice, started: float, assigned: Assigned | None = None
    ) -> ScoreResponse:
        encoded, tokenize_s = await self._encode(choice.variant.classifier, request.texts(), request)
        rows = [(choice.lane, Row(pair, choice.mask)) for pair in encoded]
        answered = await self._run(rows, started, request)
        arm = "" if assigned is None else assigned.arm
        return ScoreResponse(
            model=choice.variant.classifier.name,
            variant=choice.variant.name,
            head_mask=mask_info(choice.mask),
            assignment=None if assigned is None else _assignment(assigned, choice),
            degraded=False,
            results=self._results(choice, encoded, answered.outcomes, answered, arm),
            usage=_usage(encoded),
            timing_ms=_timing(started, tokenize_s, answered),
        )

    async def compare(self, request: CompareRequest) -> CompareResponse:
        """POST /v1/compare: all columns in the same batches, pair by pair."""
        started = time.monotonic()
        catalog = self._catalog
        choices = [_named(f"masks[{i}]", catalog, None, mask) for i, mask in enumerate(request.masks)]
        choices += [_named(f"variants[{i}]", catalog, name, None) for i, name in enumerate(request.variants)]
        encoded: dict[str, list[EncodedPair]] = {}
        tokenize_s = 0.0
        for variant in {choice.variant.checkpoint: choice.variant for choice in choices}.values():
            encoded[variant.checkpoint], seconds = await self._encode(
                variant.classifier, request.texts(), request
            )
            tokenize_s += seconds
        columns = [encoded[choice.variant.checkpoint] for choice in choices]
        # Sliced variants are multiplied here: their columns then share the batches of the others.
        rows = [
            (Lane(choice.variant.checkpoint), Row(column[i], choice.mask))
            for i in range(len(columns[0]))
            for choice, column in zip(choices, columns, strict=True)
        ]
        answered = await self._run(rows, started, request)
        return CompareResponse(
            model=self._base.name,
            columns=[
                Column(
                    mask_info(choice.mask),
                    choice.variant.name,
                    self._results(choice, column, answered.outcomes[i :: len(choices)], answered),
                )
                for i, (choice, column) in enumerate(zip(choices, columns, strict=True))
            ],
            usage=_usage([pair for column in columns for pair in column]),
            timing_ms=_timing(started, tokenize_s, answered),
        )

    async def attention(self, request: AttentionRequest) -> AttentionResponse:
        """POST /v1/attention."""
        started = time.monotonic()
        choice = self._catalog.choose(request.variant, request.head_mask)
        classifier = choice.variant.classifier
        encoded, tokenize_s = await self._encode(classifier, [(request.query, request.title)], request)
        pair = encoded[0]
        heads = self._wanted_heads(request.heads, classifier, len(pair))
        lane = Lane(choice.variant.checkpoint, kind="attention")
        answered = await self._run([(lane, AttentionRow(pair, choice.mask, heads))], started, request)
        maps = answered.outcomes[0]
        assert isinstance(maps, np.ndarray)
        return AttentionResponse(
            model=classifier.name,
            variant=choice.variant.name,
            head_mask=mask_info(choice.mask),
            tokens=classifier.tokenizer.tokens(pair),
            segments=[0] * pair.first_segment + [1] * (len(pair) - pair.first_segment),
            heads=[HeadAttention(*head, matrix) for head, matrix in zip(heads, maps, strict=True)],
            timing_ms=_timing(started, tokenize_s, answered),
        )

    def models(self) -> ModelsResponse:
        """GET /v1/models."""
        return listings.models(self._engine.classifiers.values())

    def variants(self) -> VariantsResponse:
        """GET /v1/variants."""
        return listings.variants(self._catalog)

    def masks(self) -> MasksResponse:
        """GET /v1/masks."""
        return listings.masks(self._catalog)

    def _wanted_heads(self, spec: str, classifier: Classifier, tokens: int) -> tuple[tuple[int, int], ...]:
        """The heads of a list such as `2.3,4.*`: what the mask that lists them puts off."""
        try:
            heads = HeadMask.parse(spec, layers=classifier.num_layers, heads=classifier.num_heads).off
        except InvalidMask as error:
            raise InvalidRequest(str(error), param="heads") from None
        if not heads:
            raise InvalidRequest("names no head; list some, such as 2.3,4.*", param="heads")
        most = self._settings.max_attention_values
        if len(heads) * tokens**2 > most:
            raise InvalidRequest(
                f"{len(heads)} heads of {tokens} tokens are {len(heads) * tokens**2} values; "
                f"one answer holds {most}",
                param="heads",
            )
        return heads

    async def _encode(
        self,
        classifier: Classifier,
        texts: Sequence[tuple[str, str]],
        request: ScoreRequest | CompareRequest | AttentionRequest,
    ) -> tuple[list[EncodedPair], float]:
        """Tokens of the pairs, and the seconds it took. Raises InvalidRequest for a query without tokens."""
        started = time.monotonic()
        tokenizer = classifier.tokenizer
        if sum(len(query) + len(title) for query, title in texts) <= INLINE_CHARS:
            encoded = tokenizer.encode(texts)
        else:
            loop = asyncio.get_running_loop()
            known: dict[str, EncodedText] = {}
            for portion in _portions(text for pair in texts for text in pair):
                known |= await loop.run_in_executor(self._tokenize_thread, tokenizer.encode_texts, portion)
            encoded = await loop.run_in_executor(self._tokenize_thread, tokenizer.join, texts, known)
        for number, pair in enumerate(encoded):
            if not pair.query_tokens:
                in_pairs = not isinstance(request, AttentionRequest) and request.pairs is not None
                param = f"pairs[{number}][0]" if in_pairs else "query"
                raise InvalidRequest("holds no character that the model can read", param=param)
        return encoded, time.monotonic() - started

    async def _run(
        self,
        rows: Sequence[tuple[Lane, T]],
        started: float,
        request: ScoreRequest | CompareRequest | AttentionRequest,
    ) -> _Answered:
        """Queues the rows of one request and waits for all. Raises the first error among them, InvalidRequest
        where they hold more tokens than one request may."""
        deadline = None if request.deadline_ms is None else started + request.deadline_ms / 1000
        items: list[Item[Work]] = [Item(len(row.pair), lane, row) for lane, row in rows]
        tokens, limit = sum(item.tokens for item in items), self._settings.max_request_tokens
        if limit is not None and tokens > limit:
            raise InvalidRequest(
                f"{tokens} tokens are more than the {limit} of one request", param=_texts_field(request)
            )
        ticket: Ticket[Outcome] = self._scheduler.submit(items, deadline=deadline)
        outcomes = []
        for outcome in await ticket.result():
            if isinstance(outcome, Exception):
                raise outcome
            outcomes.append(outcome)
        return _Answered(outcomes, ticket.queue_s, ticket.inference_s)

    def _results(
        self,
        choice: Choice,
        encoded: Sequence[EncodedPair],
        outcomes: Sequence[Outcome],
        answered: _Answered,
        arm: str = "",
    ) -> list[ScoreResult]:
        labels = choice.variant.classifier.grades
        results = []
        for index, (pair, row) in enumerate(zip(encoded, outcomes, strict=True)):
            assert isinstance(row, RowScore)
            results.append(
                ScoreResult(
                    index=index,
                    grade=row.grade,
                    label=None if row.grade is None else labels[row.grade],
                    expected_grade=row.expected_grade,
                    score=row.score,
                    probabilities=row.probabilities,
                    tokens=len(pair),
                    unknown_tokens=pair.unknown_tokens,
                    truncated=pair.truncated,
                )
            )
        grades = Counter(result.grade for result in results)
        self._metrics.scored(
            choice.label,
            pairs=len(results),
            seconds=answered.queue_s + answered.inference_s,
            arm=arm,
            grades=[grades[grade] for grade in range(len(labels))],
            truncated=sum(result.truncated for result in results),
        )
        return results

    def _build(self, config: LiveConfig) -> Catalog:
        if self._checked is None or self._checked.config.version != config.version:
            self._checked = build_catalog(
                config, self._engine.classifiers, lambda path: load_classifier(self._settings, path)
            )
        return self._checked

    def _apply_experiments(self, config: LiveConfig) -> None:
        try:
            self._live.apply(config.assigner, config.version)
        except Exception as error:
            raise InvalidConfig(
                f"experiments: the database cannot start or read them: {reason_of(error)}"
            ) from error

    def _warm_up(self, catalog: Catalog, warm: Catalog | None = None) -> None:
        """Room for every sliced lane; then each mask of each checkpoint once, but what `warm` has already:
        traffic goes on beside it."""
        self._make_room(catalog)
        seen = set() if warm is None else {(v.lane, v.mask) for v in warm.variants.values()}
        for variant in catalog.variants.values():
            if (variant.lane, variant.mask) not in seen:
                seen.add((variant.lane, variant.mask))
                self._engine.warm_up(variant.lane, self._budget, variant.mask)

    def _make_room(self, catalog: Catalog) -> None:
        lanes = {variant.lane for variant in catalog.variants.values()}
        sliced = Counter(lane.checkpoint for lane in lanes if lane.sliced)
        for checkpoint, classifier in self._engine.classifiers.items():
            classifier.network.live_heads.make_room(sliced=sliced[checkpoint])

    def _publish(self) -> None:
        catalog = self._catalog
        self._metrics.config(
            catalog.config.version,
            {name: variant.mask.heads_on for name, variant in catalog.variants.items()},
        )

    async def _report(self) -> None:
        while True:
            self._metrics.queue(
                tokens=self._scheduler.queued_tokens,
                oldest_seconds=self._scheduler.oldest_age_s,
                in_flight_pairs=self._scheduler.in_flight_items,
            )
            await asyncio.sleep(GAUGE_SECONDS)


class _Meter(Observer):
    """Feeds the scheduler's reports to the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_batch(self, items: int, tokens: int, budget: int) -> None:
        self._metrics.batch(pairs=items, tokens=tokens, budget=budget)


def load_classifier(settings: Settings, path: str | None) -> Classifier:
    """A checkpoint on the device and in the number format of the settings. Raises ModelError.

    On one torch thread, so that the calling thread gets no helpers: OpenMP's stay awake between two products
    only while the process has no more of them than cores. With a second set of helpers a batch of 30 titles
    took 78 ms on two cores, without it 54.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Classifier.load(
            path,
            settings.device,
            settings.dtype,
            deterministic=settings.deterministic,
            tokenizer_cache=settings.tokenizer_cache_size,
        )
    finally:
        torch.set_num_threads(threads)


def _named(place: str, catalog: Catalog, name: str | None, form: MaskForm | None) -> Choice:
    """`Catalog.choose` for one column of a compare; errors name the column."""
    try:
        return catalog.choose(name, form)
    except (InvalidRequest, InvalidMask) as error:
        raise InvalidRequest(str(error), param=place) from None


def _portions(texts: Iterable[str]) -> Iterator[list[str]]:
    """The distinct ones among the texts, in lists of about PORTION_CHARS characters."""
    portion: list[str] = []
    chars = 0
    for text in dict.fromkeys(texts):
        portion.append(text)
        chars += len(text)
        if chars >= PORTION_CHARS:
            yield portion
            portion, chars = [], 0
    if portion:
        yield portion


def _texts_field(request: ScoreRequest | CompareRequest | AttentionRequest) -> str:
    """The field that holds most of a request's text."""
    if isinstance(request, AttentionRequest):
        return "title"
    return "titles" if request.pairs is None else "pairs"


def _since(started: float) -> float:
    return time.monotonic() - started


def _assignment(assigned: Assigned, choice: Choice) -> Assignment:
    return Assignment(
        experiment=assigned.experiment,
        arm=assigned.arm,
        bucket=assigned.bucket,
        forced=assigned.forced,
        fallback=choice.variant.name != assigned.variant,
    )


def _usage(encoded: Sequence[EncodedPair]) -> Usage:
    return Usage(len(encoded), sum(map(len, encoded)))


def _timing(started: float, tokenize_s: float, answered: _Answered) -> Timing:
    return Timing(
        tokenize_s * 1000, answered.queue_s * 1000, answered.inference_s * 1000, _since(started) * 1000
    )

"""A replica: one process's models, queue, experiments and background tasks, without HTTP and Ray.

It owns everything that lives: `Replica.start` loads and begins, `drain` ends it, and between the two `apply`
puts another live config in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial

import torch

from headroom.models.classifier import Classifier
from headroom.models.device import describe
from headroom.service.config.settings import InvalidConfig, LiveConfig, Settings
from headroom.service.engine.free_memory import release_memory_periodically
from headroom.service.engine.request import Deadline
from headroom.service.engine.scheduler import Scheduler
from headroom.service.engine.threads import Engine
from headroom.service.errors import Draining
from headroom.service.experiments.admin import ExperimentAdmin
from headroom.service.experiments.assignment import Flag
from headroom.service.experiments.database import reason_of
from headroom.service.experiments.definition import ScoreKinds
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.retention import Retention
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics
from headroom.service.schemas.condense import CondenseRequest, CondenseResponse, GenerateResponse
from headroom.service.schemas.listings import (
    HeadsResponse,
    MasksResponse,
    ModelInfo,
    ModelsResponse,
    VariantsResponse,
)
from headroom.service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from headroom.service.schemas.responses import AttentionResponse, CompareResponse, ScoreResponse
from headroom.service.scoring import listings
from headroom.service.scoring.cache import ScoreCache, score_cache
from headroom.service.scoring.catalog import BASE, Catalog, build_catalog, make_room
from headroom.service.scoring.compare import attention, compare
from headroom.service.scoring.condense import Condenser
from headroom.service.scoring.loading import drop_graphs, load, load_classifier, warm_up
from headroom.service.scoring.score import Scorer
from headroom.service.scoring.shadow import Shadow
from headroom.service.scoring.tokens import Encoder
from headroom.service.scoring.treatment import Treatment
from headroom.version import version

logger = logging.getLogger("headroom.replica")

RESTART_SECONDS = 1.0  # before a background task that failed is restarted
ERROR_SECONDS = 600.0  # the errors of one background task are logged once in this time
EXPOSURES_SECONDS = 5.0  # how long `drain` waits for exposures to reach the database
CLOSE_SECONDS = 10.0  # how long `drain` waits for each thing that it closes
MAX_AGE_S = 0.5  # requests that have waited longer get at least a sixteenth of each batch
GAUGE_SECONDS = 0.5  # between two updates of the gauges of the queue and of readiness

CONFIG_REFUSED = "the last edit of the config is refused, and the one before stays: the log says why"

Work = Callable[[], Coroutine[object, object, None]]
"""Work in the background, which does not end by itself."""


class Replica:
    """A replica that takes requests, checked against everything but the model. Make one with `start`.

    catalog: the config in force, resolved: what a request that comes now is scored under.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        engine: Engine,
        catalog: Catalog,
        live: LiveExperiments,
        cache: ScoreCache | None = None,
        background: Iterable[Work] = (),
    ) -> None:
        """Begin to take requests, on the running event loop, with what `start` has loaded."""
        self._settings = settings
        self._metrics = metrics
        self.engine = engine
        self.catalog = catalog
        self._checked: Catalog | None = None  # the last config checked, so that `apply` loads nothing twice
        self._draining = False
        self._was_ready = False
        self.config_is_refused = False  # the last edit
        self._in_hand = 0
        self._nothing_in_hand = asyncio.Event()
        self.live = live
        self._experiments = ExperimentAdmin(live)
        self.scheduler = _scheduler(settings, metrics, engine)
        self._encoder = Encoder(settings.max_queue_s, self.scheduler.load.ask_seconds)
        self._cache = cache
        self._scorer = Scorer(self.scheduler, settings, metrics, self._encoder, cache)
        self._condenser = Condenser(self._scorer, self._encoder)
        shadow = Shadow(live, self._scorer)
        self._treatment = Treatment(self._scorer, live, shadow, lambda: self.scheduler.queued_tokens)
        self._serving = asyncio.create_task(self.scheduler.run())
        # Tasks of their own: a database that hangs must not keep the guardrails from being watched.
        works: list[Work] = [
            self._report,
            shadow.run,
            live.ledger.follow,
            live.guard.run,
            live.windows.run,
            Retention(live.ledger, settings.outcome_days).run,
            release_memory_periodically,
            *background,
        ]
        if cache is not None and cache.shared is not None:
            works.append(cache.shared.run)
        self._background = [asyncio.create_task(_restart_forever(work)) for work in works]
        _tell_what_runs(metrics, catalog.base)
        self._publish()

    @classmethod
    async def start(
        cls,
        settings: Settings,
        config: LiveConfig,
        metrics: Metrics,
        *,
        threads: int,
        may_start: bool = True,
        nodes: Callable[[], int] = lambda: 1,
        background: Iterable[Work] = (),
    ) -> Replica:
        """Load the models that settings and config name, warm them up, and begin to take requests.

        It takes seconds, on a thread. threads: torch threads of the forward pass on a CPU.
        may_start: whether the config's new experiments start; if not, they do when `apply` is called.
        nodes: returns the number of nodes that serve together; raises TimeoutError if nobody can say now.
        background: more work to run meanwhile.
        Raises ModelError or InvalidConfig.
        """
        store = await asyncio.to_thread(Store, settings.database_url, settings.service_name)
        live = LiveExperiments(store, metrics, nodes=nodes)
        await asyncio.to_thread(_check_experiments, live, config)
        on_failure = partial(metrics.count, "device_failures_total")
        engine, catalog = await asyncio.to_thread(load, settings, config, threads, on_failure)
        await asyncio.to_thread(_apply_experiments, live, catalog, may_start)
        await asyncio.to_thread(version)  # which runs git once
        cache = score_cache(settings, metrics)
        if cache is not None:
            await asyncio.to_thread(cache.register, engine.classifiers.values())
        return cls(settings, metrics, engine, catalog, live, cache, background)

    def check(self, config: LiveConfig) -> None:
        """Raise InvalidConfig if `apply` would refuse this config; change nothing."""
        config.check_limits(self._settings.queue_tokens(self.engine.device_type))
        catalog = self._build(config)
        _check_experiments(self.live, config, catalog.score_kinds)

    def apply(self, config: LiveConfig, *, may_start: bool = True) -> None:
        """Put another live config in force; requests under way finish under the old one.

        It may load checkpoints: call it off the event loop. If it raises InvalidConfig, or an error of the
        device, nothing has changed.

        may_start: whether new experiments start; if not, they do when this is called again with True.
        """
        if config.version == self.catalog.config.version:
            self._checked = None
            _apply_experiments(self.live, self.catalog, may_start)
            return
        previous_classifiers = self.engine.classifiers
        try:
            self.check(config)
            catalog = self._build(config)
            # The old config's checkpoints stay until the next change, so that it is quickly in force again.
            self.engine.classifiers = {BASE: catalog.base} | self.catalog.classifiers | catalog.classifiers
            warm_up(self.engine, self._settings, catalog, warm=self.catalog)
            if self._cache is not None:
                self._cache.register(catalog.classifiers.values())
            _apply_experiments(self.live, catalog, may_start)
        except BaseException:
            self.engine.classifiers = previous_classifiers
            make_room(self.engine.classifiers.values(), self.catalog)
            drop_graphs(self.engine, [self.catalog])
            raise
        finally:
            self._checked = None
        self.catalog = catalog
        self._publish()

    async def drain(self) -> None:
        """Refuse new requests, answer those in hand within the drain timeout, and end."""
        self._draining = True
        self._metrics.set_gauge("ready", False)
        # Requests that are unfinished at the timeout get 503 when the scheduler's task is cancelled.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                if self._in_hand:
                    self._nothing_in_hand.clear()
                    await self._nothing_in_hand.wait()
                await self.scheduler.drain()
        tasks = [self._serving, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._experiments.close()
        self._encoder.close()
        self._condenser.close()
        await _wait_for("the experiments' database", self.live.close(EXPOSURES_SECONDS))
        if self._cache is not None and self._cache.shared is not None:
            await _wait_for("the shared score cache", self._cache.shared.close())
        await _wait_for("a forward pass", asyncio.to_thread(self.engine.close))

    @contextlib.contextmanager
    def experiments(self) -> Iterator[ExperimentAdmin]:
        """Give one request the experiments and their switches. Raises Draining once the replica drains."""
        with self._taken_in_hand():
            yield self._experiments

    @property
    def config_version(self) -> str:
        """The live config's version, sent with every answer."""
        return self.catalog.config.version

    def ready(self) -> str | None:
        """Return None if requests are welcome, else the reason why not.

        A database of another release is one until the replica has been ready, so that a rolling update back
        to an older release stops. Later it is none: all replicas of the older release would go at once.
        """
        if self._draining:
            return "draining"
        return self.failure or (None if self._was_ready else self.live.ledger.store.incompatible)

    @property
    def problem(self) -> str | None:
        """Return what does not work although requests are answered: the experiments, if their database is of
        another release, and the last edit of the config, if it was refused. None: nothing."""
        problems = [self.live.ledger.store.incompatible, CONFIG_REFUSED if self.config_is_refused else None]
        return "; ".join(problem for problem in problems if problem) or None

    @property
    def failure(self) -> str | None:
        """Why this replica cannot go on; None while it can, and once it drains."""
        if self._draining:
            return None
        if self.engine.failed_kind is not None:
            return "the device failed"
        if self.engine.hangs:
            return "a forward pass hangs"
        is_over = any(task.done() for task in (self._serving, *self._background))
        return "the scheduler or a background task stopped" if is_over else None

    async def score(self, request: ScoreRequest, deadline: Deadline) -> ScoreResponse:
        """Score a request."""
        with self._taken_in_hand():
            return await self._treatment.score(request, self.catalog, deadline)

    async def compare(self, request: CompareRequest, deadline: Deadline) -> CompareResponse:
        with self._taken_in_hand():
            return await compare(self._scorer, request, self.catalog, deadline)

    async def attention(self, request: AttentionRequest, deadline: Deadline) -> AttentionResponse:
        with self._taken_in_hand():
            return await attention(self._scorer, request, self.catalog, deadline)

    async def condense(
        self, request: CondenseRequest, deadline: Deadline
    ) -> CondenseResponse | GenerateResponse:
        with self._taken_in_hand():
            return await self._condenser.condense(request, self.catalog, deadline)

    def flag(self, experiment: str, unit: str) -> Flag:
        """Return a unit's arm as a flag; nobody is exposed. Raises NotFound."""
        default = self.catalog.config.default_variant
        return self.live.ledger.assigner.flag(experiment, unit, default)

    def flags(self, unit: str) -> list[Flag]:
        """Return a unit's arm in each experiment as a flag; nobody is exposed."""
        return [self.flag(each.config.name, unit) for each in self.live.ledger.assigner.experiments]

    def models(self) -> ModelsResponse:
        return listings.models(self._loaded())

    def default_model(self) -> ModelInfo:
        """Return the checkpoint that the default variant runs, or the last one of a cascade."""
        return listings.model(self.catalog.default.classifier)

    def variants(self) -> VariantsResponse:
        return listings.variants(self.catalog, self._loaded())

    def masks(self) -> MasksResponse:
        return listings.masks(self.catalog)

    def heads(self) -> HeadsResponse:
        return listings.heads(self.catalog.base)

    def _loaded(self) -> Iterable[Classifier]:
        """Return the loaded checkpoints, the service's own first: at least those of the catalog in force."""
        return dict.fromkeys(self.engine.classifiers.values())

    @contextlib.contextmanager
    def _taken_in_hand(self) -> Iterator[None]:
        """Count a request until it is answered, so that `drain` waits for it. Raises Draining."""
        if self._draining:
            raise Draining
        self._in_hand += 1
        try:
            yield
        finally:
            self._in_hand -= 1
            if not self._in_hand:
                self._nothing_in_hand.set()

    def _build(self, config: LiveConfig) -> Catalog:
        if self._checked is None or self._checked.config.version != config.version:
            self._checked = build_catalog(
                config, self.engine.classifiers, partial(load_classifier, self._settings)
            )
        return self._checked

    def _publish(self) -> None:
        heads_on = {name: variant.heads_on for name, variant in self.catalog.variants.items()}
        self._metrics.config(self.config_version, heads_on)

    async def _report(self) -> None:
        while True:
            self.live.show_gauges()
            self._metrics.set_gauge("load", self.scheduler.load.update())
            self._metrics.set_gauge("queue_tokens", self.scheduler.queued_tokens)
            self._metrics.set_gauge("queue_oldest_seconds", self.scheduler.oldest_age_s)
            self._metrics.set_gauge("in_flight_pairs", self.scheduler.in_flight_rows)
            self._metrics.set_gauge("unread_characters", self._encoder.waiting_chars)
            is_ready = self.ready() is None
            self._was_ready = self._was_ready or is_ready
            self._metrics.set_gauge("ready", is_ready)
            await asyncio.sleep(GAUGE_SECONDS)


def _tell_what_runs(metrics: Metrics, base: Classifier) -> None:
    """Set the metric whose labels say what runs. base: the service's own checkpoint."""
    network = base.network
    device = describe(network.device)
    metrics.set_gauge("build_info", 1, version(), torch.__version__, base.name, device, network.number_format)


async def _restart_forever(work: Work) -> None:
    """Run a background task; if it fails, log why and restart it. Requests do not depend on it."""
    next_log = -math.inf
    while True:
        try:
            await work()
        except Exception:
            if time.monotonic() >= next_log:
                next_log = time.monotonic() + ERROR_SECONDS
                logger.exception("a background task failed; it is restarted in %g s", RESTART_SECONDS)
        await asyncio.sleep(RESTART_SECONDS)


async def _wait_for(what: str, closing: Coroutine[object, object, object]) -> None:
    """Wait until something is closed, but not for ever: a disk or a device may hang. An error is logged."""
    task = asyncio.ensure_future(closing)
    await asyncio.wait([task], timeout=CLOSE_SECONDS)
    if not task.done():
        logger.warning("%s has not ended in %g s; the replica ends without", what, CLOSE_SECONDS)
    elif error := task.exception():
        logger.warning("%s could not be closed; the replica ends without", what, exc_info=error)


def _check_experiments(live: LiveExperiments, config: LiveConfig, variants: ScoreKinds | None = None) -> None:
    try:
        live.check(config.experiments, config.version, variants)
    except (ValueError, TimeoutError) as error:
        raise InvalidConfig(str(error)) from None


def _apply_experiments(live: LiveExperiments, catalog: Catalog, may_start: bool) -> None:
    config = catalog.config
    try:
        live.apply(
            config.experiments,
            config.version,
            variants=catalog.score_kinds,
            definitions=catalog.definitions,
            may_start=may_start,
        )
    except (ValueError, TimeoutError) as error:
        raise InvalidConfig(str(error)) from None
    except Exception as error:
        raise InvalidConfig(
            f"experiments: the database cannot start or read them: {reason_of(error)}"
        ) from error


def _scheduler(settings: Settings, metrics: Metrics, engine: Engine) -> Scheduler:
    return Scheduler(
        engine.run,
        max_batch_tokens=settings.batch_tokens(engine.device_type),
        first_batch_tokens=engine.batch_tokens,
        max_queue_tokens=settings.queue_tokens(engine.device_type),
        max_request_tokens=settings.request_tokens(engine.classifiers[BASE].max_tokens),
        max_age_s=MAX_AGE_S,
        max_wait_s=settings.max_queue_s,
        tokens_per_second=engine.tokens_per_second,
        slots=engine.slots,
        split_tokens=engine.split_tokens,
        observer=metrics,
        host_clock=time.process_time if engine.device_type == "cuda" else None,
    )

"""The Prometheus metrics of the service: names, labels, buckets, and the methods that update them.

If `PROMETHEUS_MULTIPROC_DIR` is set when the process starts, all replicas of a node share that directory and
each of them answers a scrape for all. Counters and histograms are summed over live and dead processes; gauges
come from live processes only (`service.observe.node_metrics`).

Label values come from the config and from fixed words, never from a request.
"""

from __future__ import annotations

import asyncio
import math
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)

from service.errors import ShedReason
from service.experiments.metrics import ExperimentMetrics
from service.observe import node_metrics
from service.observe.node_metrics import NodeGauge

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From half a millisecond to the request timeout, in factors of about 1.3 to 2.
_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0),
)
_STAGE_SECONDS = (0.00005, 0.0001, 0.0002, *_SECONDS)
_BUILD = ("version", "torch", "model", "device", "dtype")
_PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_STEPS = 2.0**24
_PAIR_STEPS = 2.0**14
_STAGES = ("tokenize", "queue", "inference", "respond")
M = TypeVar("M", Counter, Histogram)
_Labels = Sequence[str]
_Mode = Literal["livesum", "livemax", "liveall", "livemostrecent"]
"""How the values of a node's live processes become one."""
_CONFIG_REFUSED = ("config_refused", "1 while the last edit of the live config is refused, else 0.")
_SHED: tuple[ShedReason, ...] = ("queue_full", "deadline", "disconnect", "draining", "rate")


class Metrics:
    """All metrics of one process. Methods are cheap, do not block, and may be called from any thread.

    They have a registry of their own, so that two services can share a process.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # removes a series per counter and histogram that nobody uses
        own = self._registry = CollectorRegistry()
        self._directory = node_directory()
        self._scrapes = ThreadPoolExecutor(1, thread_name_prefix="scrape")
        self._variants: set[str] = set()
        self._children: dict[tuple[object, ...], object] = {}
        self.experiments = ExperimentMetrics(own)

        def counter(name: str, text: str, labels: _Labels = ()) -> Counter:
            return Counter(f"headroom_{name}", text, labels, registry=own)

        def histogram(name: str, text: str, buckets: Sequence[float], labels: _Labels = ()) -> Histogram:
            return Histogram(f"headroom_{name}", text, labels, buckets=buckets, registry=own)

        def gauge(name: str, text: str, mode: _Mode, labels: _Labels = ()) -> Gauge:
            return Gauge(f"headroom_{name}", text, labels, registry=own, multiprocess_mode=mode)

        self._requests = counter("requests_total", "Requests answered.", ["route", "status"])
        self._request_seconds = histogram(
            "request_seconds", "From a request's first byte to its answer's last.", _SECONDS, ["route"]
        )
        self._pairs = counter("pairs_total", "Pairs scored.", ["variant", "arm"])
        self._pair_seconds = histogram(
            "pair_seconds", "A pair's time from admission to result.", _SECONDS, ["variant", "arm"]
        )
        stage_seconds = histogram("stage_seconds", "A request's time by stage.", _STAGE_SECONDS, ["stage"])
        self._stages = {stage: stage_seconds.labels(stage) for stage in _STAGES}
        self._batch_pairs = histogram("batch_pairs", "Pairs of a batch.", _PAIRS)
        self._batch_tokens = histogram("batch_tokens", "Tokens of a batch.", _TOKENS)
        self._batch_fill = histogram("batch_fill_ratio", "A batch's tokens over the token budget.", _RATIOS)
        shed = counter("shed_total", "Requests not answered with a result, by reason.", ["reason"])
        self._shed = {reason: shed.labels(reason) for reason in _SHED}
        self._cascade_pairs = counter(
            "cascade_pairs_total", "Pairs scored by a stage of a cascade.", ["variant", "stage"]
        )
        self._degraded = counter(
            "degraded_total",
            "Requests answered by the variant of `degrade`, or by a cascade without its later stages.",
        )
        lookups = counter("cache_total", "Rows looked up in the score cache, by result.", ["result"])
        self._lookups = {result: lookups.labels(result) for result in ("hit", "miss")}
        self._truncated = counter("truncated_total", "Pairs cut to the model's window.")
        self._grades = counter("grade_total", "Pairs by the grade they got.", ["variant", "grade"])
        self._device_failures = counter("device_failures_total", "Failures of the device.", ["kind"])
        # Exists from the start, at 0: Prometheus sees no increase in a series whose first value is already 1.
        self._device_failures.labels("cuda")
        self._out_of_memory = counter("out_of_memory_total", "Batches too large for the device's memory.")

        self._queue_tokens = gauge("queue_tokens", "Tokens waiting.", "livesum")
        self._queue_oldest = gauge("queue_oldest_seconds", "Age of the oldest waiting pair.", "livemax")
        self._in_flight = gauge("in_flight_pairs", "Pairs on the device.", "livesum")
        self._unread = gauge("unread_characters", "Characters of texts waiting to be tokenized.", "livesum")
        self._ready = gauge("ready", "Replicas that take requests, of those on this node.", "livesum")
        # Each replica shows its own version, so that different values reveal an unfinished roll-out.
        self._config_version = gauge(
            "config_version", "The live config's version, its hexadecimal digits read as a number.", "liveall"
        )
        self._config_refused = gauge(*_CONFIG_REFUSED, "livemax")
        self._heads_on = gauge(
            "heads_on", "Attention heads that a variant keeps.", "livemostrecent", ["variant"]
        )
        self._build_info = gauge("build_info", "1, with what runs as labels.", "livemax", _BUILD)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request. `route` is the path's template, never the path."""
        self._child(self._requests, route, str(status)).inc()
        _observe(self._child(self._request_seconds, route), seconds)

    def _child(self, metric: M, *labels: str) -> M:
        """Return the series of a metric with these labels, without the library's checks and lock."""
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return cast(M, child)

    def shed(self, reason: ShedReason) -> None:
        """Count one request that got no result because of load, time, or its client."""
        self._shed[reason].inc()

    def stages(self, *, tokenize: float, queue: float, inference: float, respond: float) -> None:
        """Record the seconds that one request spent in each stage."""
        for stage, seconds in zip(_STAGES, (tokenize, queue, inference, respond), strict=True):
            _observe(self._stages[stage], seconds)

    def scored(
        self,
        variant: str,
        *,
        pairs: int,
        seconds: float,
        arm: str = "",
        grades: Sequence[int] = (),
        truncated: int = 0,
        cached: int = 0,
    ) -> None:
        """Record the scored pairs of one request and variant, at a cost that does not grow with their number.

        variant: a configured name, or `custom` for an ad hoc mask. seconds: from admission to result. arm: of
        the experiment; empty if there is none. grades: number of pairs with grade 0, 1, ... truncated: pairs
        that did not fit the window. cached: pairs whose scores the cache had; they took no time.
        """
        if pairs == 0:
            return
        self._child(self._pairs, variant, arm).inc(pairs)
        if timed := pairs - cached:
            _observe(self._child(self._pair_seconds, variant, arm), seconds, times=timed, steps=_PAIR_STEPS)
        for grade, count in enumerate(grades):
            if count:
                self._child(self._grades, variant, str(grade)).inc(count)
        if truncated:
            self._truncated.inc(truncated)

    def cascade(self, variant: str, pairs_by_stage: Mapping[str, int]) -> None:
        """Record what a cascade's stages scored of one request."""
        for stage, pairs in pairs_by_stage.items():
            self._cascade_pairs.labels(variant, stage).inc(pairs)

    def degraded(self) -> None:
        """Count one request that was answered by less than it would be without load."""
        self._degraded.inc()

    def looked_up(self, *, hits: int, misses: int) -> None:
        """Count the rows of one request that the score cache had, and those that it lacked."""
        self._lookups["hit"].inc(hits)
        self._lookups["miss"].inc(misses)

    def batch(self, *, pairs: int, tokens: int, budget: int) -> None:
        """Record one batch of `tokens` tokens; `budget` is the limit."""
        _observe(self._batch_pairs, pairs)
        _observe(self._batch_tokens, tokens)
        _observe(self._batch_fill, tokens / budget)

    def queue(
        self, *, tokens: int, oldest_seconds: float, in_flight_pairs: int, unread_characters: int
    ) -> None:
        """Record the current state of the scheduler, and of the tokenizer's thread before it."""
        self._queue_tokens.set(tokens)
        self._queue_oldest.set(oldest_seconds)
        self._in_flight.set(in_flight_pairs)
        self._unread.set(unread_characters)

    def device_failure(self, kind: str) -> None:
        """Count a failure of the device; `kind` is `cuda`."""
        self._device_failures.labels(kind).inc()

    def out_of_memory(self) -> None:
        """Count a batch that did not fit into the device's memory."""
        self._out_of_memory.inc()

    def ready(self, is_ready: bool) -> None:
        """Record whether this replica takes requests."""
        self._ready.set(1 if is_ready else 0)

    def config(self, version: str, heads_on: Mapping[str, int]) -> None:
        """Record a new live config.

        Args:
            version: up to 13 hexadecimal digits, which a double can represent exactly.
            heads_on: heads kept, by variant. Variants that the config no longer has become NaN, because
                multi-process mode cannot remove a series.
        """
        self._config_version.set(int(version, 16))
        for removed in self._variants - heads_on.keys():
            self._heads_on.labels(removed).set(math.nan)
        for variant, count in heads_on.items():
            self._heads_on.labels(variant).set(count)
        self._variants |= heads_on.keys()

    def config_refused(self, is_refused: bool) -> None:
        """Record whether this replica refused the last edit of the live config."""
        self._config_refused.set(1 if is_refused else 0)

    def build_info(self, *, version: str, torch: str, model: str, device: str, dtype: str) -> None:
        """Record what this replica runs."""
        self._build_info.labels(version, torch, model, device, dtype).set(1)

    async def scrape(self) -> bytes:
        """Call `render` in a thread, one call at a time, because it is slow with many replicas."""
        return await asyncio.get_running_loop().run_in_executor(self._scrapes, self.render)

    def render(self) -> bytes:
        """Return the metrics of this process, or of every replica that shares the multi-process directory."""
        if self._directory is None:
            return generate_latest(self._registry)
        return node_metrics.render(self._directory)


def refused_edits(directory: Path) -> NodeGauge:
    """Return the gauge `headroom_config_refused` for the process that checks edits before the replicas do."""
    name, text = _CONFIG_REFUSED
    return NodeGauge(directory, f"headroom_{name}", text)


def node_directory() -> Path | None:
    """Return the directory that the processes of this node share; None: this process is on its own."""
    # prometheus-client reads the variable when it is imported, so a later change has no effect.
    if values.ValueClass is values.MutexValue:
        return None
    return Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])


def _observe(histogram: Histogram, value: float, *, times: int = 1, steps: float = _STEPS) -> None:
    """Do `histogram.observe(value)` `times` times, faster than one call of it, which tries every bucket.

    prometheus-client has no public call for this; a test compares the result with single observations.
    The sum takes whole multiples of 1 / `steps`, whose sums are exact in any order up to 2^53 / `steps`: 62
    days with 100 requests under way at any time, 8 years with 2,000 pairs. With rounding, a node's sum would
    sometimes fall by its last bit, and Prometheus takes a counter that falls for one that began anew.
    """
    histogram._sum.inc(round(value * times * steps) / steps)
    histogram._buckets[bisect_left(histogram._upper_bounds, value)].inc(times)

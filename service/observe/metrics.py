"""The Prometheus metrics of the service: names, labels, buckets, and the methods that update them.

If `PROMETHEUS_MULTIPROC_DIR` is set when the process starts, all replicas of a node share that directory, and
each of them answers a scrape for all (`metric_files`).

Label values come from the config and from fixed words, never from a request.
"""

import asyncio
import math
import os
import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)

from headroom.service.observe import metric_files

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HISTORY_LENGTH = 150
HISTORY_STEP_S = 1.9  # the page scrapes every 2 s: five minutes of that, and longer of Prometheus's scrapes
_CHARTED = re.compile(
    r"^headroom_(?:requests_total|pairs_total|pair_seconds_\w+|stage_seconds_(?:sum|count)"
    r"|batch_fill_ratio_(?:sum|count)|queue_tokens|shed_total|ready|heads_on)\b.*$",
    re.MULTILINE,
)

# From half a millisecond to the request timeout, in factors of about 1.3 to 2.
_SECONDS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0),
)
_PAIRS = tuple(2**power for power in range(12))
_TOKENS = tuple(2**power for power in range(4, 17))
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_STEPS = 2.0**24
_PAIR_STEPS = 2.0**14

_COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {  # the text and the labels
    "requests_total": ("Requests answered.", ["route", "status"]),
    "pairs_total": ("Pairs scored.", ["variant", "arm"]),
    "shed_total": ("Requests not answered with a result, by reason.", ["reason"]),
    "unreranked_total": ("Requests answered in the caller's order (`on_failure`), by reason.", ["reason"]),
    "cascade_pairs_total": ("Pairs scored by a stage of a cascade.", ["variant", "stage"]),
    "degraded_total": (
        "Requests answered by the variant of `degrade`, or with a cascade without its later stages.",
        [],
    ),
    "cache_total": ("Rows looked up in the score cache, by result.", ["result"]),
    "shared_cache_total": ("Rows looked up in the shared score cache, by result.", ["result"]),
    "shared_cache_lost_total": ("Scores that the shared score cache could not be given.", []),
    "shared_cache_failures_total": (
        "Reads and writes that the shared score cache did not answer, by reason.",
        ["reason"],
    ),
    "truncated_total": ("Pairs cut to the model's window.", []),
    "grade_total": ("Pairs by the grade they got.", ["variant", "grade"]),
    "device_failures_total": ("Failures of the device.", ["kind"]),
    "out_of_memory_total": ("Batches too large for the device's memory.", []),
    "exposures_total": (
        "Units exposed, counted once each, when the database has them.",
        ["experiment", "arm"],
    ),
    "unit_requests_total": ("Requests that carry a unit, and are to be scored.", []),
    "experiment_requests_total": ("Requests that exposed their unit, new or not.", ["experiment"]),
    "exposures_written_total": ("Exposures that the database has.", []),
    "exposures_lost_total": (
        "Exposures that will not reach the database; each failed retry counts again.",
        [],
    ),
    "impressions_written_total": ("Interleaved lists that the database has.", []),
    "impressions_lost_total": ("Interleaved lists that will not reach the database.", []),
    "clicks_unmatched_total": (
        "Clicks on no shown title when they came: no list of this id yet, another unit's, or not shown.",
        ["reason"],
    ),
    "experiment_rollbacks_total": (
        "Arms that a guardrail took back to control, counted once the database has it.",
        ["experiment", "guardrail"],
    ),
    "experiment_fallbacks_total": (
        "Requests that an arm's variant failed and the control's answered.",
        ["experiment", "arm"],
    ),
    "interleaved_total": (
        "Lists drawn from both arms' rankings, by whether these differ in what is shown.",
        ["experiment", "rankings"],
    ),
    "shadow_requests_total": ("Requests drawn for shadow scoring.", ["experiment", "result"]),
    "shadow_results_lost_total": ("Shadow results not stored.", []),
    "experiment_database_errors_total": ("Calls of the experiments' database that failed.", []),
}
_HISTOGRAMS: Mapping[str, tuple[str, Sequence[str], Sequence[float]]] = {  # also the buckets
    "request_seconds": ("From a request's first byte to its answer's last.", ["route"], _SECONDS),
    "pair_seconds": ("A pair's time from admission to result.", ["variant", "arm"], _SECONDS),
    "stage_seconds": ("A request's time by stage.", ["stage"], (0.00005, 0.0001, 0.0002, *_SECONDS)),
    "batch_pairs": ("Pairs of a batch.", [], _PAIRS),
    "batch_tokens": ("Tokens of a batch.", [], _TOKENS),
    "batch_fill_ratio": ("A batch's tokens over the token budget.", [], _RATIOS),
}
_Mode = Literal["livesum", "livemax", "livemin", "liveall", "livemostrecent"]
_GAUGES: Mapping[str, tuple[str, Sequence[str], _Mode]] = {  # also how a node's values become one
    # Each replica shows its own: their mean says how busy a node is, their sum how many replicas it needs.
    "load": (
        "Computing that callers ask of a replica, refused requests included, in seconds per second.",
        [],
        "liveall",
    ),
    "queue_tokens": ("Tokens waiting.", [], "livesum"),
    "queue_oldest_seconds": ("Age of the oldest waiting pair.", [], "livemax"),
    "in_flight_pairs": ("Pairs on the device.", [], "livesum"),
    "unread_characters": ("Characters of texts waiting to be tokenized.", [], "livesum"),
    "ready": ("Replicas that take requests, of those on this node.", [], "livesum"),
    # Each replica shows its own version, so that different values reveal an unfinished roll-out.
    "config_version": (
        "1 for the live config's version, as in x-config-version; 0 for those before it.",
        ["version"],
        "liveall",
    ),
    "api_keys_refused": (
        "1 while `api_keys_file` is wrong and the keys before stay, else 0.",
        [],
        "livemax",
    ),
    "config_refused": ("1 while the last edit of the live config is refused, else 0.", [], "livemax"),
    "gpu_missing": ("1 if a replica computes on a CPU although a GPU was asked for, else 0.", [], "livemax"),
    "heads_on": ("Attention heads that take part in a variant.", ["variant"], "livemostrecent"),
    "build_info": (
        "1, with what runs as labels.",
        ["version", "torch", "model", "device", "dtype"],
        "livemax",
    ),
    "sample_ratio_p": (
        "Anytime-valid p-value of the sample-ratio check; NaN if there is none, as after a stop.",
        ["experiment"],
        "livemostrecent",
    ),
    "experiment_pending": (
        "1 while an experiment exposes nobody although it is not over: pending, paused or changed; else 0.",
        ["experiment"],
        "livemax",
    ),
    "experiment_share": (
        "Share of all units that a running experiment should expose; else 0.",
        ["experiment"],
        "livemax",
    ),
    "exposure_buffer_rows": (
        "Rows waiting for the database: what a kill of the replicas would lose now.",
        [],
        "livesum",
    ),
}
FAILURES = (
    *("deadline_exceeded", "queue_full", "rate_limited", "starting", "draining", "device_failed"),
    *("out_of_memory", "internal_error"),
)
"""The reasons why titles are not scored: types of errors."""

_FROM_THE_START: Mapping[str, Sequence[str]] = {
    "shed_total": ("queue_full", "deadline", "disconnect", "draining", "rate"),
    "unreranked_total": FAILURES,
    "cache_total": ("hit", "miss"),
    "shared_cache_total": ("hit", "miss"),
    "shared_cache_failures_total": ("timeout", "error"),
    "stage_seconds": ("tokenize", "queue", "inference", "respond"),
    "device_failures_total": ("cuda",),
}
"""Series that exist from the start, at 0: Prometheus sees no increase if the first value is already 1."""


class Metrics:
    """The metrics of one process. Methods are cheap, do not block, and may be called from any thread.

    They have a registry of their own, so that two services can share a process.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # removes a series per counter and histogram that nobody uses
        self._registry = CollectorRegistry()
        # The directory that the node's processes share; prometheus-client read the variable at its import.
        is_alone = values.ValueClass is values.MutexValue
        self._directory = None if is_alone else Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        if self._directory is not None:
            metric_files.fold(self._directory)
        self.history: deque[tuple[float, str]] = deque(maxlen=HISTORY_LENGTH)
        """The times and charted lines of the last scrapes, so that the page's charts do not begin empty."""
        self._scrapes = ThreadPoolExecutor(1, thread_name_prefix="scrape")
        self._variants: set[str] = set()
        self._config_version = ""
        self._series: dict[tuple[str, ...], Any] = {}
        self._metrics: dict[str, Any] = {}
        self.notify_operator: Callable[[str], None] = lambda _: None
        """Shows a line to the operator, once per line."""
        for name, (text, labels) in _COUNTERS.items():
            self._metrics[name] = Counter(f"headroom_{name}", text, labels, registry=self._registry)
        for name, (text, labels, buckets) in _HISTOGRAMS.items():
            self._metrics[name] = Histogram(
                f"headroom_{name}", text, labels, buckets=buckets, registry=self._registry
            )
        for name in _GAUGES:
            self._metrics[name] = self._gauge(name)
        for name, labels in _FROM_THE_START.items():
            for label in labels:
                self.series(name, label)

    def series(self, name: str, *labels: str) -> Any:
        """Return the series of a metric with these labels, without the library's checks and lock."""
        key = (name, *labels)
        series = self._series.get(key)
        if series is None:
            metric = self._metrics[name]
            series = self._series[key] = metric.labels(*labels) if labels else metric
        return series

    def _gauge(self, name: str) -> Gauge:
        text, labels, mode = _GAUGES[name]
        return Gauge(f"headroom_{name}", text, labels, registry=self._registry, multiprocess_mode=mode)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        self.series(name, *labels).inc(by)

    def set_gauge(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self.series(name, *labels).set(value)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request. `route` is the path's template, never the path."""
        self.series("requests_total", route, str(status)).inc()
        _observe(self.series("request_seconds", route), seconds)

    def stages(self, *, tokenize: float, queue: float, inference: float, respond: float) -> None:
        """Record the seconds that one request spent in each stage."""
        _observe(self.series("stage_seconds", "tokenize"), tokenize)
        _observe(self.series("stage_seconds", "queue"), queue)
        _observe(self.series("stage_seconds", "inference"), inference)
        _observe(self.series("stage_seconds", "respond"), respond)

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
        self.series("pairs_total", variant, arm).inc(pairs)
        timed = pairs - cached
        if timed:
            _observe(self.series("pair_seconds", variant, arm), seconds, times=timed, steps=_PAIR_STEPS)
        for grade, count in enumerate(grades):
            if count:
                self.series("grade_total", variant, str(grade)).inc(count)
        if truncated:
            self.series("truncated_total").inc(truncated)

    def batch(self, *, pairs: int, tokens: int, budget: int) -> None:
        """Record one batch of `tokens` tokens; `budget` is the limit."""
        _observe(self.series("batch_pairs"), pairs)
        _observe(self.series("batch_tokens"), tokens)
        _observe(self.series("batch_fill_ratio"), tokens / budget)

    def out_of_memory(self) -> None:
        """Count a batch that did not fit into the device's memory."""
        self.series("out_of_memory_total").inc()

    def config(self, version: str, heads_on: Mapping[str, int]) -> None:
        """Record a new live config.

        Args:
            version: as answers bring it in x-config-version.
            heads_on: heads kept, by variant. Variants that the config no longer has become NaN, because
                multi-process mode cannot remove a series.
        """
        if self._config_version not in ("", version):
            self.series("config_version", self._config_version).set(0)
        self._config_version = version
        self.series("config_version", version).set(1)
        for removed in self._variants - heads_on.keys():
            self.series("heads_on", removed).set(math.nan)
        for variant, count in heads_on.items():
            self.series("heads_on", variant).set(count)
        self._variants |= heads_on.keys()

    async def scrape(self) -> bytes:
        """Call `render` in a thread, one call at a time, because it is slow with many replicas."""
        return await asyncio.get_running_loop().run_in_executor(self._scrapes, self._scraped)

    def _scraped(self) -> bytes:
        """Return the metrics in the Prometheus text format, and keep the charted part of them."""
        text = self.render()
        now = time.time()
        while self.history and self.history[-1][0] > now:  # the clock was set back
            self.history.pop()
        if not self.history or now - self.history[-1][0] >= HISTORY_STEP_S:
            self.history.append((now, "\n".join(_CHARTED.findall(text.decode()))))
        return text

    def render(self) -> bytes:
        """Return the metrics of this process, or of every replica that shares the multi-process directory."""
        if self._directory is None:
            return generate_latest(self._registry)
        return metric_files.render(self._directory)


def _observe(histogram: Histogram, value: float, *, times: int = 1, steps: float = _STEPS) -> None:
    """Observe a value `times` times, faster than one `histogram.observe(value)`, which tries every bucket.

    prometheus-client has no public call for this; a test compares the result with single observations.
    The sum takes whole multiples of 1 / `steps`, whose sums are exact in any order up to 2^53 / `steps`: 62
    days with 100 requests under way at any time, 8 years with 2,000 pairs. With rounding, a node's sum would
    sometimes fall by its last bit, and Prometheus takes a counter that falls for one that began anew.
    """
    histogram._sum.inc(round(value * times * steps) / steps)
    histogram._buckets[bisect_left(histogram._upper_bounds, value)].inc(times)

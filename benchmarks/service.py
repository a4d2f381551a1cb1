"""Measures our server over HTTP: overhead over the model, overload, mixed traffic, memory and start.

The server is `headroom serve` with the shipped model and configuration on a free port. Our open-loop load
tester sends the requests. Measurements that are compared with each other run in turns.
"""

import statistics
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks import checkpoints
from benchmarks.load import Client, LoadRuns, bodies, milliseconds, peak_rate, plan_for, texts
from benchmarks.measure import Ratio, turns
from benchmarks.model_alone import IDLE_S, ModelAlone
from benchmarks.report import Report, Row, at_least, at_most
from benchmarks.serving import (
    CONFIG,
    TITLES,
    Server,
    Start,
    add_variant,
    begin_interleaving,
    counters,
    headroom,
    memory_of,
)
from headroom.loadtest import running
from headroom.models.checkpoint.hub import DEFAULT

ROUNDS = 5
MANY_TITLES = 1000
DEADLINE_MS = 2000.0
CROWD_RATE = 8.0
"""Requests per second with a single title, in the mixed traffic."""

SECONDS = {"saturate": 6.0, "idle": 8.0, "overload": 20.0, "crowd": 15.0, "memory": 3.0, "interleaved": 15.0}
"""Length of each measurement."""

STAGES = 4
"""Series of `headroom_stage_seconds`, each of which counts every scored request once."""

IDLE_RATE = 5.0
"""Requests per second that never meet each other on the server."""

FILL_S = 3.0
"""Seconds before a measurement under full load, until the queue has its final length."""


def measure(rounds: int, model: Path = DEFAULT, base: Path | None = None, start: Start = headroom) -> Report:
    """Run all measurements of `model`, and saturation with the shape of BERT-base too.

    base: checkpoint of BERT-base's shape; None makes one with random weights. start: starts each server.
    """
    report = Report(f"{rounds} rounds.")
    runs = LoadRuns()
    pairs = [(query, title) for query, titles in texts(TITLES, 100) for title in titles]
    with start(CONFIG, model) as server, closing(ModelAlone(pairs, model)) as alone:
        part = Part(report, server, rounds, runs)
        peak = part.saturated("saturated", alone)
        part.idle(alone)
        part.overload(peak)
        part.crowd()
        part.memory()
        part.interleaved()
        report.rows.append(at_most("ready after", server.start_s, 25.0, ".1f", " s"))
    base = base or checkpoints.checkpoint("base")
    with start(CONFIG, base) as server, closing(ModelAlone(pairs, base)) as alone:
        Part(report, server, rounds, runs).saturated("saturated, BERT-base's shape", alone)
    report.add_invalid(runs.invalid)
    return report


@dataclass(frozen=True, slots=True)
class Part:
    """The measurements of one running server; each adds its rows to the report."""

    report: Report
    server: Server
    rounds: int
    runs: LoadRuns

    def saturated(self, name: str, alone: ModelAlone) -> float:
        """Compare throughput with that of the model alone on the same pairs; return requests per second.

        The share is corrected for the processor time that the load generator takes from the server.
        """
        clients: list[float] = []
        traffic = [{"titles": TITLES}]
        plan = plan_for(self.server.url).changed(duration=SECONDS["saturate"], traffic=traffic)
        peak = peak_rate(plan)

        def over_http(turn: int) -> float:
            one = plan.changed(seed=turn + 1)
            outcome = self.runs.saturate(one, peak, FILL_S, f"{name}, turn {turn + 1}")
            clients.append((outcome.cpu_share or 0.0) / alone.cores)
            return outcome.recorder.ok / outcome.seconds * TITLES

        def by_the_model(_: int) -> float:
            return alone.pairs_per_second(SECONDS["saturate"])

        rates = turns({"model": by_the_model, "http": over_http}, self.rounds)
        raw = Ratio.of(rates["http"], rates["model"])
        corrected = [rate / (1 - client) for rate, client in zip(rates["http"], clients, strict=True)]
        share = Ratio.of(corrected, rates["model"])
        http = statistics.median(rates["http"])
        model = statistics.median(rates["model"])
        more = (
            f"{share.range('.0%')}: {http:.0f} of {model:.0f} pairs/s; the load generator took "
            f"{statistics.median(clients):.1%} of the processors ({raw.median:.0%} without correction)"
        )
        self.report.rows.append(
            at_least(f"HTTP against the model alone, {name}", share.median, 0.9, ".0%", more)
        )
        return http / TITLES

    def idle(self, alone: ModelAlone) -> None:
        """Compare the median time of one pair on an idle server with that of the model alone."""
        seconds = SECONDS["idle"] / self.rounds + 1
        plan = plan_for(self.server.url).changed(rate=1 / IDLE_S, arrivals="constant", duration=seconds)

        def over_http(turn: int) -> float:
            one = plan.changed(seed=turn + 1, traffic=[{"titles": 1}])
            return milliseconds(self.runs.run(one, f"idle, turn {turn + 1}").recorder.service, 50)

        taken = turns({"model": lambda _: alone.one_pair_ms(), "http": over_http}, self.rounds)
        overhead = statistics.median(a - b for a, b in zip(taken["http"], taken["model"], strict=True))
        http = statistics.median(taken["http"])
        model = statistics.median(taken["model"])
        more = f" (p50 {http:.1f} ms, the model alone {model:.1f} ms)"
        name = "one pair, idle: p50 beyond the model's"
        self.report.rows.append(at_most(name, overhead, 3.0, ".1f", " ms", more))

    def overload(self, peak: float) -> None:
        """Measure twice the peak rate (requests per second), with a deadline of 2 s."""
        before = memory_of(self.server)
        plan = plan_for(self.server.url).changed(
            rate=2 * peak,
            warmup=FILL_S,
            duration=SECONDS["overload"],
            traffic=[{"titles": TITLES, "deadline_ms": DEADLINE_MS}],
        )
        outcome = self.runs.run(plan, "overload")
        recorder = outcome.recorder
        refused = recorder.errors.get("http_429", 0)
        lost = sum(recorder.errors.values()) - refused
        p99 = milliseconds(recorder.latency(), 99)
        goodput = recorder.ok / outcome.seconds / peak
        more = f" of the peak, p99 {p99:.0f} ms, at {2 * peak:.0f} requests/s; {refused} got 429"
        self.report.rows += [
            at_least("overload: goodput", goodput, 0.9, ".0%", more),
            at_most("overload: lost (neither answered nor 429)", lost / max(1, recorder.ok), 0.01, ".1%"),
            at_most("overload: memory after / before", memory_of(self.server) / before, 1.02, ".3f"),
        ]
        if recorder.errors:
            p99 = milliseconds(recorder.error_latency, 99)
            self.report.rows.append(at_most("overload: p99 of a refusal", p99, 50.0, ".0f", " ms"))

    def crowd(self) -> None:
        """Measure single titles with and without a client that sends long requests in a loop, in turns."""
        loops = []
        name = f"single titles beside {MANY_TITLES:,} in a loop"
        long = bodies(texts(MANY_TITLES, 2)) * 1000
        plan = plan_for(self.server.url).changed(
            rate=CROWD_RATE, duration=SECONDS["crowd"], traffic=[{"titles": 1}]
        )

        def singles(seed: int, what: str) -> tuple[float, int]:
            recorder = self.runs.run(plan.changed(seed=seed), f"{name}, {what}").recorder
            return milliseconds(recorder.latency(), 99), sum(recorder.errors.values())

        def in_company(turn: int) -> tuple[float, int]:
            with closing(Client(self.server.url, long).start()) as loop:
                measured = singles(2 * turn + 2, "beside it")
            loops.append(loop)
            return measured

        def alone(turn: int) -> tuple[float, int]:
            return singles(2 * turn + 1, "alone")

        taken = turns({"alone": alone, "in company": in_company}, max(1, self.rounds // 2))
        p99_alone = statistics.median(ms for ms, _ in taken["alone"])
        p99 = statistics.median(ms for ms, _ in taken["in company"])
        failed = sum(count for _, count in taken["in company"]) + sum(loop.failed for loop in loops)
        answered = min(loop.answered for loop in loops)
        value = (
            f"× {p99 / p99_alone:.1f}: p99 {p99:.0f} ms, without it {p99_alone:.0f} ms; {failed} of either "
            f"failed, {answered} long requests answered ({len(loops)} turns)"
        )
        ok = p99 <= 3 * p99_alone and p99 <= 150 and not failed and answered > 0
        self.report.rows.append(Row(name, value, "≤ × 3, ≤ 150 ms, none fails", ok))

    def memory(self) -> None:
        """Measure how much the replicas' memory grows when a live config adds a variant with another mask."""
        plan = plan_for(self.server.url).changed(rate=10.0, duration=SECONDS["memory"])
        running.run(plan.changed(traffic=[{"titles": TITLES}]))
        before = memory_of(self.server)
        add_variant(self.server, "another", "random:0.2@11")
        running.run(plan.changed(traffic=[{"titles": TITLES, "variants": {"another": 1}}]))
        grown = memory_of(self.server) / before
        more = f" of {before / 2**20:.0f} MiB"
        self.report.rows.append(at_most("memory with a second mask variant", grown, 1.02, ".3f", more=more))

    def interleaved(self) -> None:
        """Compare requests of units whose lists are drawn from two masks with plain ones, in turns, idle."""
        add_variant(self.server, "masked", "random:0.2@7")
        begin_interleaving(self.server, "interleaved", "masked")
        sides = {
            "plain": lambda turn: self._per_request(turn, units=0),
            "drawn": lambda turn: self._per_request(turn, units=1000),
        }
        taken = turns(sides, self.rounds)

        def medians(side: str) -> dict[str, float]:
            return {name: statistics.median(turn[name] for turn in taken[side]) for name in taken[side][0]}

        plain = medians("plain")
        drawn = medians("drawn")
        more = (
            f" the pairs in {drawn['batches']:.2f} batches (plain {plain['batches']:.2f}); p50 "
            f"{drawn['p50']:.1f} ms, plain {plain['p50']:.1f} ms; {drawn['drawn']:.0%} of the lists drawn"
        )
        name = f"an interleaved request of {TITLES} titles under two masks"
        self.report.rows.append(at_most(name, drawn["pairs"] / plain["pairs"], 2.1, ".2f", " ×", more))

    def _per_request(self, turn: int, *, units: int) -> dict[str, float]:
        """Return what the server counts for each request on average, and the median of their milliseconds."""
        plan = plan_for(self.server.url).changed(
            rate=IDLE_RATE,
            arrivals="constant",
            duration=SECONDS["interleaved"] / self.rounds + 1,
            seed=turn + 1,
            traffic=[{"titles": TITLES, "units": units}],
        )
        before = counters(self.server)
        recorder = self.runs.run(plan, f"interleaved, {units} units, turn {turn + 1}").recorder
        grown = {name: value - before.get(name, 0.0) for name, value in counters(self.server).items()}
        requests = grown["headroom_stage_seconds_count"] / STAGES
        return {
            "pairs": grown["headroom_pairs_total"] / requests,
            "batches": grown["headroom_batch_pairs_count"] / requests,
            "drawn": grown.get("headroom_interleaved_total", 0.0) / requests,
            "p50": milliseconds(recorder.service, 50),
        }

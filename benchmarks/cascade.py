"""Measures a cascade beside the full model: pairs/s and latency over HTTP.

The server is `headroom serve` with the shipped model and deploy/serve.yaml, and the cascade is that file's.
"""

import statistics
from functools import partial
from pathlib import Path

import yaml

from benchmarks.load import LoadRuns, milliseconds, peak_rate, plan_for
from benchmarks.measure import Ratio, turns
from benchmarks.report import Report, Row, at_least, at_most
from benchmarks.serving import CONFIG, Start, headroom
from loadtest.plan import Plan
from models.checkpoint.hub import DEFAULT

ROUNDS = 5
FILL_S, SATURATE_S, LATENCY_S = 3.0, 8.0, 15.0
TITLES = 100
LOAD = 0.6
"""Rate of the latency runs, relative to the rate that saturates the server with the full model."""

FULL, CASCADE = "full", "cascade"


def measure(rounds: int = ROUNDS, start: Start = headroom) -> Report:
    """Measure the full model, the first stage alone and the cascade, in turns."""
    first, keep = stage_of()
    report = Report(
        f"{rounds} rounds; {TITLES} titles a request. The cascade: `{first}` for all titles, `{FULL}` for "
        f"the best {keep}."
    )
    runs = LoadRuns()
    with start(CONFIG, DEFAULT) as server:
        plan = plan_for(server.url)
        peaks = throughput(report, runs, plan, first, rounds)
        latency(report, runs, plan.changed(rate=LOAD * peaks[FULL]), max(1, rounds // 2))
    report.add_invalid(runs.invalid)
    return report


def stage_of(config: Path = CONFIG) -> tuple[str, str]:
    """Return the cascade's first variant and how many titles it keeps."""
    document = yaml.safe_load(config.read_text("utf-8"))
    variants = document["applications"][0]["deployments"][0]["user_config"]["variants"]
    stage = next(variant["cascade"] for variant in variants if variant["name"] == CASCADE)[0]
    return stage["variant"], str(stage["keep"])


def throughput(report: Report, runs: LoadRuns, plan: Plan, first: str, rounds: int) -> dict[str, float]:
    """Measure the pairs/s of each variant on a saturated server; return the requests/s that saturate it."""
    plan = plan.changed(duration=SATURATE_S)
    peaks = {name: peak_rate(_only(plan, name)) for name in (FULL, first, CASCADE)}

    def rate(name: str, turn: int) -> float:
        one = _only(plan, name).changed(seed=turn + 1)
        outcome = runs.saturate(one, peaks[name], FILL_S, f"saturated, turn {turn + 1}, {name}")
        if not outcome.recorder.ok:
            raise RuntimeError(f"no request to {name} was answered: {dict(outcome.recorder.errors)}")
        return outcome.recorder.ok * TITLES / outcome.seconds

    rates = turns({name: partial(rate, name) for name in peaks}, rounds)
    faster = Ratio.of(rates[CASCADE], rates[FULL])
    report.rows.append(at_least("cascade × full model, saturated", faster.median, 2.5, more=faster.range()))
    medians = {name: statistics.median(rates[name]) for name in rates}
    report.rows += [Row(f"`{name}`, saturated", f"{rate:.0f} pairs/s") for name, rate in medians.items()]
    return peaks


def latency(report: Report, runs: LoadRuns, plan: Plan, rounds: int) -> None:
    """Measure the latency of the full model and of the cascade at the same rate, in turns."""

    def percentiles(name: str, turn: int) -> tuple[float, float, int]:
        one = _only(plan, name).changed(duration=LATENCY_S, seed=turn + 1)
        recorder = runs.run(one, f"latency, turn {turn + 1}, {name}").recorder
        p50, p99 = (milliseconds(recorder.latency(), percent) for percent in (50, 99))
        return p50, p99, sum(recorder.errors.values())

    found = turns({name: partial(percentiles, name) for name in (FULL, CASCADE)}, rounds)
    medians = {
        name: [statistics.median(values) for values in zip(*found[name], strict=True)] for name in found
    }
    p50 = f"p50 {medians[CASCADE][0]:.0f}, the full model's {medians[FULL][0]:.0f} ms"
    more = f" ({p50}; at {plan.rate:.1f} requests/s)"
    failed = sum(count for side in found.values() for _, _, count in side)
    report.rows += [
        at_most("p99, beside the full model's", medians[CASCADE][1], medians[FULL][1], ".0f", " ms", more),
        Row("requests of the latency runs that failed", str(failed), "0", failed == 0),
    ]


def _only(plan: Plan, variant: str) -> Plan:
    return plan.changed(traffic=[{"titles": TITLES, "variants": {variant: 1}}])

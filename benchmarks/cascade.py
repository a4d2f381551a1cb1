"""Measures the cascade and `fast` of deploy/serve.yaml beside the full model, over HTTP."""

import statistics
from collections.abc import Mapping
from functools import partial

import yaml

from benchmarks.load import LoadRuns, milliseconds, peak_rate, plan_for
from benchmarks.measure import Ratio, turns
from benchmarks.report import Report, Row, at_least, at_most
from benchmarks.serving import CONFIG, Start, headroom
from headroom.loadtest.plan import Plan
from headroom.models.checkpoint.hub import DEFAULT

ROUNDS = 5
FILL_S = 3.0
SATURATE_S = 8.0
LATENCY_S = 15.0
TITLES = 100
FEW_TITLES = 20
LOAD = 0.6
"""Rate of the latency runs, relative to the rate that saturates the server with the full model."""

FULL = "full"
CASCADE = "cascade"
FAST = "fast"


def measure(rounds: int = ROUNDS, start: Start = headroom) -> Report:
    """Measure the full model, `fast`, the first stage alone and the cascade, in turns."""
    first, keep = stage_of()
    about = (
        f"{rounds} rounds; {TITLES} titles a request, {FEW_TITLES} for `{FAST}`. The cascade: `{first}` for "
    )
    report = Report(f"{about}all titles, `{FULL}` for the best {keep}.")
    runs = LoadRuns()
    with start(CONFIG, DEFAULT) as server:
        plan = plan_for(server.url)
        peaks = throughput(report, runs, plan, {CASCADE: 2.5, first: 1.0}, TITLES, rounds)
        throughput(report, runs, plan, {FAST: 1.8}, FEW_TITLES, rounds)
        latency(report, runs, plan.changed(rate=LOAD * peaks[FULL]), max(1, rounds // 2))
    report.add_invalid(runs.invalid)
    return report


def stage_of() -> tuple[str, str]:
    """Return the cascade's first variant and how many titles it keeps."""
    document = yaml.safe_load(CONFIG.read_text("utf-8"))
    variants = document["applications"][0]["deployments"][0]["user_config"]["variants"]
    stage = next(variant["cascade"] for variant in variants if variant["name"] == CASCADE)[0]
    return stage["variant"], str(stage["keep"])


def throughput(
    report: Report, runs: LoadRuns, plan: Plan, minimum_ratios: Mapping[str, float], titles: int, rounds: int
) -> dict[str, float]:
    """Compare variants with the full model on a saturated server; return the requests/s that saturate it."""
    plan = plan.changed(duration=SATURATE_S)
    peaks = {name: peak_rate(_only(plan, name, titles)) for name in (FULL, *minimum_ratios)}

    def rate(name: str, turn: int) -> float:
        one = _only(plan, name, titles).changed(seed=turn + 1)
        outcome = runs.saturate(one, peaks[name], FILL_S, f"saturated, turn {turn + 1}, {name}")
        if not outcome.recorder.ok:
            raise RuntimeError(f"no request to {name} was answered: {dict(outcome.recorder.errors)}")
        return outcome.recorder.ok * titles / outcome.seconds

    rates = turns({name: partial(rate, name) for name in peaks}, rounds)
    for name, times in minimum_ratios.items():
        faster = Ratio.of(rates[name], rates[FULL])
        more = f"{faster.range()}: {statistics.median(rates[name]):.0f} pairs/s"
        report.rows.append(at_least(f"`{name}` × `{FULL}`, saturated", faster.median, times, more=more))
    return peaks


def latency(report: Report, runs: LoadRuns, plan: Plan, rounds: int) -> None:
    """Measure the latency of the full model and of the cascade at the same rate, in turns."""

    def percentiles(name: str, turn: int) -> tuple[float, float, int]:
        one = _only(plan, name, TITLES).changed(duration=LATENCY_S, seed=turn + 1)
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


def _only(plan: Plan, variant: str, titles: int) -> Plan:
    return plan.changed(traffic=[{"titles": titles, "variants": {variant: 1}}])

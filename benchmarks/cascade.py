"""Measures a cascade beside the full model: pairs/s and latency over HTTP, NDCG@10 on labelled pairs.

The server is `headroom serve` with the shipped model and deploy/serve.yaml, and the cascade is that file's.
A request has 100 titles, and so has a query whose NDCG@10 is measured.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.agreement import DATA
from benchmarks.load_runs import LoadRuns, invalid_notes, invalid_runs
from benchmarks.measure import machine
from benchmarks.service_runs import SATURATING, Lengths, Start, plan_for, served
from loadtest import find_max, running
from loadtest.plan import Plan
from models.checkpoint.hub import DEFAULT
from models.classifier import Classifier
from models.quality.evaluation import Evaluation, differences, within_range
from models.quality.labelled import LabelledPair, read_labelled
from service.cascade_config import StageConfig
from service.scoring.catalog import BASE, Catalog, build_catalog
from service.scoring.offline import score
from service.settings import LiveConfig

ROUNDS = 5
CONFIG = Path(__file__).parents[1] / "deploy" / "serve.yaml"
LENGTHS = Lengths(saturate=8.0, idle=15.0)
TITLES = 100
LOAD = 0.6
"""Rate of the latency runs, relative to the rate that saturates the server with the full model."""

SPEEDUP, MARGIN = 2.5, 0.02


def measure(
    rounds: int = ROUNDS,
    lengths: Lengths = LENGTHS,
    config: Path = CONFIG,
    model: Path = DEFAULT,
    start: Start = served,
    labelled: Path = DATA,
) -> dict[str, Any]:
    """Measure the full model, the first stage alone and the cascade, in turns."""
    live, cascade = _cascade_of(config)
    first = cascade[0].variant
    with tempfile.TemporaryDirectory() as scratch, start(config, Path(scratch), model) as server:
        speed = throughput(plan_for(server, lengths), ("full", first, "cascade"), rounds, lengths)
        load = latency(plan_for(server, lengths), LOAD * speed["rates"]["full"], rounds, lengths)
    return {
        "machine": machine(),
        "rounds": rounds,
        "first": first,
        "kept": cascade[0].keep,
        **speed,
        **load,
        "invalid": speed["invalid"] + load["invalid"],
        "ndcg10": quality(model, live, labelled),
    }


def _cascade_of(config: Path) -> tuple[LiveConfig, tuple[StageConfig, ...]]:
    document = yaml.safe_load(config.read_text("utf-8"))
    live = LiveConfig.model_validate(document["applications"][0]["deployments"][0]["user_config"])
    return live, next(variant.cascade for variant in live.variants if variant.name == "cascade") or ()


def throughput(plan: Plan, variants: tuple[str, ...], rounds: int, lengths: Lengths) -> dict[str, Any]:
    """Measure the pairs/s of each variant on a saturated server, in turns."""
    rates = {}
    for variant in variants:
        probe = plan.changed(duration=lengths.saturate, warmup=0.0, traffic=[_traffic(variant)])
        rates[variant] = find_max.saturation(probe, running.run, _say)
    turns, runs = [], LoadRuns()
    for turn in range(rounds):
        found = {}
        for variant in variants:
            outcome = runs.run(
                plan.changed(
                    rate=SATURATING * rates[variant],
                    warmup=lengths.fill,
                    duration=lengths.saturate,
                    seed=turn + 1,
                    traffic=[_traffic(variant)],
                ),
                f"saturated, turn {turn + 1}, {variant}",
            )
            if not outcome.recorder.ok:
                raise RuntimeError(f"no request to {variant} was answered: {dict(outcome.recorder.errors)}")
            found[variant] = outcome.recorder.ok * TITLES / outcome.seconds
        turns.append(found)
    factors = [turn["cascade"] / turn["full"] for turn in turns]
    return {
        "rates": rates,
        "pairs_per_second": {name: statistics.median(turn[name] for turn in turns) for name in variants},
        "factor": statistics.median(factors),
        "range": [min(factors), max(factors)],
        "turns": turns,
        "invalid": runs.invalid,
    }


def latency(plan: Plan, rate: float, rounds: int, lengths: Lengths) -> dict[str, Any]:
    """Measure the latency of the full model and of the cascade at the same rate, in turns.

    `latency_requests` is the smallest number of requests of a turn.
    """
    runs = LoadRuns()
    found: dict[str, list[tuple[float, float]]] = {"full": [], "cascade": []}
    failed, counts = 0, []
    for turn in range(max(1, rounds // 2)):
        for variant, turns in found.items():
            outcome = runs.run(
                plan.changed(rate=rate, duration=lengths.idle, seed=turn + 1, traffic=[_traffic(variant)]),
                f"latency, turn {turn + 1}, {variant}",
            )
            counts.append(outcome.recorder.scheduled)
            times = outcome.recorder.latency()
            turns.append((_milliseconds(times, 50), _milliseconds(times, 99)))
            failed += sum(outcome.recorder.errors.values())
    medians = {
        variant: [statistics.median(column) for column in zip(*turns, strict=True)]
        for variant, turns in found.items()
    }
    return {
        "rate": rate,
        "latency_ms": medians,
        "latency_turns": max(1, rounds // 2),
        "latency_requests": min(counts),
        "failed": failed,
        "invalid": runs.invalid,
    }


def quality(model: Path, live: LiveConfig, labelled: Path) -> dict[str, dict[str, float]]:
    """Return NDCG@10 of the full model and the cascade, with the interval of the change over queries.

    `filled`: each query's titles filled up to 100; `judged`: its judged titles alone.
    """
    classifier = Classifier.load(model)
    catalog = build_catalog(live, {BASE: classifier}, Classifier.load)
    judged = read_labelled(labelled, grades=len(classifier.grades))
    samples = {"filled": filled(judged, TITLES), "judged": judged}
    return {name: _ndcg10(catalog, rows, len(classifier.grades)) for name, rows in samples.items()}


def filled(judged: list[LabelledPair], titles: int, seed: int = 0) -> list[LabelledPair]:
    """Add to each query titles that were judged for other queries, as grade 0, until it has `titles`.

    A query with more titles keeps them all. Its own titles are never drawn for it.
    """
    own: dict[str, set[str]] = {}
    for row in judged:
        own.setdefault(row.query, set()).add(row.title)
    every, draw = sorted({row.title for row in judged}), random.Random(seed)
    added = []
    for query, mine in own.items():
        others = [title for title in every if title not in mine]
        missing = min(max(0, titles - len(mine)), len(others))
        added += [LabelledPair(query, title, 0) for title in draw.sample(others, missing)]
    return judged + added


def _ndcg10(catalog: Catalog, rows: list[LabelledPair], grades: int) -> dict[str, float]:
    pairs = [(row.query, row.title) for row in rows]
    evaluations = []
    for name in ("full", "cascade"):
        scores = score(catalog.choose(name, None), pairs).scores
        ranked_by = scores.score * (grades - 1)
        evaluations.append(
            Evaluation(
                [row.query for row in rows], [row.grade for row in rows], scores.probabilities, ranked_by
            )
        )
    before, after = (evaluation.metrics()["ndcg10"] for evaluation in evaluations)
    change = within_range(differences(*evaluations), change=True)["ndcg10"]
    return {
        "full": before,
        "cascade": after,
        "low": change.low,
        "high": change.high,
        "pairs": len(rows),
        "queries": len(evaluations[0].ranked_queries),
    }


def as_markdown(result: dict[str, Any]) -> str:
    """Return the section's table."""
    speed, first = result["pairs_per_second"], result["first"]
    low, high = result["range"]
    full, cascade = (result["latency_ms"][name] for name in ("full", "cascade"))
    alone = speed[first] / speed["full"]
    turns = "one turn" if result["latency_turns"] == 1 else f"median of {result['latency_turns']} turns"
    requests = result["latency_requests"]
    rows = [
        (
            f"{TITLES} titles a request, saturated: `{first}` for all, `full` for the best {result['kept']}",
            f"× {result['factor']:.2f} ({low:.2f} to {high:.2f}): {speed['cascade']:.0f} pairs/s, the full "
            f"model alone {speed['full']:.0f}, `{first}` alone {speed[first]:.0f} (× {alone:.2f})",
            f"≥ × {SPEEDUP}",
        ),
        (
            f"latency at {result['rate']:.1f} requests/s ({LOAD:.0%} of what saturates the full model)",
            f"p50 {cascade[0]:.0f} ms, p99 {cascade[1]:.0f} ms; "
            f"the full model {full[0]:.0f} ms, {full[1]:.0f} ms ({turns}, of {requests} requests each)",
            "p99 no worse",
        ),
        _quality_row(f"{TITLES} titles each", result["ndcg10"]["filled"], f"no worse by {MARGIN}"),
        _quality_row("only their judged titles", result["ndcg10"]["judged"], "–"),
    ]
    lines = [
        f"{result['machine']}; {result['rounds']} rounds.",
        "",
        "| what | measured | target |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {measured} | {target} |" for what, measured, target in rows]
    return "\n".join(lines + invalid_notes(result))


def _quality_row(titles: str, ndcg: dict[str, float], target: str) -> tuple[str, str, str]:
    return (
        f"NDCG@10 on {ndcg['queries']} queries ({ndcg['pairs']} pairs), {titles}",
        f"{ndcg['cascade']:.3f}, the full model {ndcg['full']:.3f}: change "
        f"{ndcg['cascade'] - ndcg['full']:+.3f} ({ndcg['low']:+.3f} to {ndcg['high']:+.3f})",
        target,
    )


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line per missed target."""
    full, cascade = (result["latency_ms"][name] for name in ("full", "cascade"))
    found = []
    if result["factor"] < SPEEDUP:
        found.append(f"the cascade is × {result['factor']:.2f} as fast as the full model, not × {SPEEDUP}")
    if not cascade[1] <= full[1]:
        found.append(f"the cascade's p99 is {cascade[1]:.0f} ms, the full model's {full[1]:.0f} ms")
    low = result["ndcg10"]["filled"]["low"]
    if not low >= -MARGIN:
        found.append(f"NDCG@10 of {TITLES} titles may be worse by {-low:.3f}, more than {MARGIN}")
    if result["failed"]:
        found.append(f"{result['failed']} requests of the latency runs failed")
    return found + [f"cascade: invalid run: {line}" for line in invalid_runs(result)]


def _traffic(variant: str) -> dict[str, Any]:
    return {"titles": TITLES, "variants": {variant: 1}}


def _milliseconds(histogram: Any, percent: float) -> float:
    value = histogram.percentile_ms(percent)
    return math.nan if value is None else float(value)


def _say(line: str) -> None:
    print(f"benchmarks: {line}", file=sys.stderr, flush=True)

"""The measurements of our server as a table, and the targets it misses."""

from __future__ import annotations

from typing import Any

from benchmarks import request_path
from benchmarks.load_runs import invalid_notes, invalid_runs
from benchmarks.service_runs import CROWD_RATE, LONG_WORDS

TARGETS = {
    "share": 0.9,
    "idle_overhead_ms": 2.0,
    "idle_overhead_ms, AVX2 alone": 4.0,
    "goodput": 0.9,
    "refused_p99_ms": 50.0,
    "crowd_factor": 3.0,
    "crowd_p99_ms": 150.0,
    "variant": 1.02,
    "start_s": 25.0,
}


def as_markdown(result: dict[str, Any]) -> str:
    """Return the section's table."""
    saturated, idle, overload, crowd = (result[name] for name in ("saturated", "idle", "overload", "crowd"))
    errors = ", ".join(f"{count} {kind}" for kind, count in sorted(overload["errors"].items())) or "none"
    rows = [
        ("HTTP against the model alone, 20 titles a request, saturated", _share(saturated), "≥ 90 %"),
        ("the same with BERT-base's shape", _share(result["base"]), "≥ 90 %"),
        (
            "one pair, idle",
            f"p50 {idle['http_ms']:.1f} ms, the model alone {idle['model_ms']:.1f} ms: "
            f"+ {idle['overhead_ms']:.1f} ms",
            f"≤ + {_idle_limit(result):g} ms",
        ),
        (
            f"overload: {overload['rate']:.0f} requests/s, twice the peak, deadline 2 s",
            f"goodput {overload['goodput']:.0%} of the peak, p99 {overload['ok_p99_ms']:.0f} ms; "
            f"not answered: {errors}",
            "≥ 90 %",
        ),
        (
            "overload: time to a refusal",
            f"p50 {overload['refused_p50_ms']:.0f} ms, p99 {overload['refused_p99_ms']:.0f} ms",
            "≤ 50 ms",
        ),
        ("overload: replica's memory after / before", f"{overload['memory_growth']:.3f}", "flat"),
        (
            f"single titles ({CROWD_RATE:g}/s) beside a client with 1,000 titles in a loop",
            _crowd(crowd),
            "≤ × 3, ≤ 150 ms, none of either fails",
        ),
        (
            f"the same, titles of {LONG_WORDS} words, one replica",
            _crowd(result["long_crowd"]),
            "≤ × 3, ≤ 150 ms, none of either fails",
        ),
        (
            "memory with a second mask variant",
            f"× {result['memory']['factor']:.3f} of {result['memory']['bytes'] / 2**20:.0f} MiB",
            "≤ × 1.02",
        ),
        ("ready after", f"{result['start_s']:.1f} s", "≤ 25 s"),
    ]
    lines = [
        f"{result['machine']}; {result['rounds']} rounds.",
        "",
        "| what | measured | target |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {measured} | {target} |" for what, measured, target in rows]
    return "\n".join([*lines, *invalid_notes(result), "", request_path.as_markdown(result["path"])])


def _idle_limit(result: dict[str, Any]) -> float:
    """Return how many milliseconds more than the model alone one pair may take on this machine."""
    is_avx2_alone = "avx2" in result["machine"] and "avx512" not in result["machine"]
    return TARGETS["idle_overhead_ms, AVX2 alone" if is_avx2_alone else "idle_overhead_ms"]


def _share(saturated: dict[str, Any]) -> str:
    low, high = saturated["range"]
    return (
        f"{saturated['share']:.0%} ({low:.0%} to {high:.0%}): {saturated['http']:.0f} of "
        f"{saturated['model']:.0f} pairs/s; the load generator took {saturated['client']:.1%} of the "
        f"processors ({saturated['raw_share']:.0%} without correcting for that)"
    )


def _crowd(crowd: dict[str, Any]) -> str:
    turns = "one turn" if crowd["turns"] == 1 else f"median of {crowd['turns']} turns"
    return (
        f"p99 {crowd['with_p99_ms']:.0f} ms, without it {crowd['without_p99_ms']:.0f} ms: "
        f"× {crowd['factor']:.1f} ({turns}, of {crowd['requests']:.0f} requests each); "
        f"{crowd['failed']:.0f} failed; {_beside(crowd)}"
    )


def _beside(crowd: dict[str, Any]) -> str:
    """Say how many long requests there were: without any, there was no crowd."""
    return f"of the long requests, {crowd['long_failed']:.0f} failed, {crowd['long_requests']:.0f} answered"


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that this run misses."""
    saturated, idle, overload, crowd = (result[name] for name in ("saturated", "idle", "overload", "crowd"))
    not_429 = {kind: count for kind, count in overload["errors"].items() if kind != "http_429"}
    checks = [
        (saturated["share"] >= TARGETS["share"], f"HTTP gives {saturated['share']:.0%} of the model alone"),
        (
            result["base"]["share"] >= TARGETS["share"],
            f"HTTP gives {result['base']['share']:.0%} of the model alone with BERT-base's shape",
        ),
        (
            idle["overhead_ms"] <= _idle_limit(result),
            f"one pair takes {idle['overhead_ms']:.1f} ms more",
        ),
        (overload["goodput"] >= TARGETS["goodput"], f"goodput {overload['goodput']:.0%} under overload"),
        (
            sum(not_429.values()) <= 0.01 * overload["ok"],
            f"under overload some got neither an answer nor 429: {not_429}",
        ),
        (
            not overload["errors"] or overload["refused_p99_ms"] <= TARGETS["refused_p99_ms"],
            f"a refusal takes {overload['refused_p99_ms']:.0f} ms",
        ),
        (overload["memory_growth"] <= TARGETS["variant"], f"memory grew × {overload['memory_growth']:.3f}"),
        *(
            (
                mixed["factor"] <= TARGETS["crowd_factor"]
                and mixed["with_p99_ms"] <= TARGETS["crowd_p99_ms"]
                and not mixed["failed"]
                and mixed["long_requests"]
                and not mixed["long_failed"],
                f"{name}: p99 {mixed['with_p99_ms']:.0f} ms, × {mixed['factor']:.1f}, "
                f"{mixed['failed']:.0f} failed; {_beside(mixed)}",
            )
            for name, mixed in (("mixed crowd", crowd), ("mixed crowd, long texts", result["long_crowd"]))
        ),
        (
            result["memory"]["factor"] <= TARGETS["variant"],
            f"a second variant costs × {result['memory']['factor']:.3f}",
        ),
        (result["start_s"] <= TARGETS["start_s"], f"ready after {result['start_s']:.1f} s"),
        *((False, f"invalid run: {line}") for line in invalid_runs(result)),
    ]
    return [f"service: {words}" for reached, words in checks if not reached]

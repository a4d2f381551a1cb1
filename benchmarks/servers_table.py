"""The comparison of servers as a table, and the targets it misses."""

from __future__ import annotations

from typing import Any

from benchmarks.load_runs import invalid_notes, invalid_runs
from benchmarks.started_server import TITLES


def as_markdown(result: dict[str, Any]) -> str:
    """Return one table per shape."""
    pins = ", ".join(pins[0] for pins in result["pins"].values())
    lines = [f"{result['machine']}; {result['rounds']} rounds; {TITLES} titles a request. {pins}."]
    for shape in dict.fromkeys(row["shape"] for row in result["rows"]):
        lines += [
            "",
            f"**{shape}**",
            "",
            "| server, engine | pairs/s | our bf16 is × | our int8 is × | p50, p99 at 70 % | scores |",
            "|---|---|---|---|---|---|",
        ]
        rows = [row for row in result["rows"] if row["shape"] == shape]
        for row in sorted(rows, key=lambda row: -row["pairs_per_second"]):
            lines.append(
                f"| {row['server']} | {row['pairs_per_second']:.0f} | {_times(row['bf16_over_it'])} "
                f"| {_times(row['int8_over_it'])} | {_latency(row)} | {_error(row['score_error'])} |"
            )
    lines += [""] * bool(result["missing"])
    lines += [f"Not measured: {name}: {reason}." for name, reason in result["missing"].items()]
    return "\n".join(lines + invalid_notes(result))


def _times(ratios: list[float] | None) -> str:
    return "" if ratios is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratios)


def _latency(row: dict[str, Any]) -> str:
    if row["p50_ms"] is None:
        return ""
    failed = f"; {row['failed']} of {row['requests'] + row['failed']} failed" if row["failed"] else ""
    return f"{row['p50_ms']:.0f}, {row['p99_ms']:.0f} ms (of {row['requests']}{failed})"


def _error(error: float | None) -> str:
    return "" if error is None else f"± {error:.2g}"


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that was missed or could not be measured."""
    lines = []
    for shape in dict.fromkeys(row["shape"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["shape"] == shape]
        best = max((row for row in rows if row["kind"] == "peer"), key=_speed, default=None)
        stock = next((row for row in rows if row["kind"] == "stock"), None)
        for other, name, key, target in (
            (best, "headroom bf16", "bf16_over_it", 1.25),
            (best, "headroom int8", "int8_over_it", 2.0),
            (stock, "headroom bf16", "bf16_over_it", 4.0),
        ):
            if other is None or other[key] is None:
                lines.append(f"{shape}: {name} against its peers was not measured")
            elif other[key][0] < target:
                lines.append(f"{shape}: {name} is {other[key][0]:.2f} × {other['server']}, target {target:g}")
    return lines + [f"servers: invalid run: {line}" for line in invalid_runs(result)]


def _speed(row: dict[str, Any]) -> float:
    return float(row["pairs_per_second"])

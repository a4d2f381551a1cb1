"""Starts a server, attacks it and kills its parts under load, and says what it lost: `make soak`.

python -m benchmarks.soak --start 'headroom serve --port {port} --config runs/soak/serve.yaml' --out runs/soak

The exit status is 1 if there was a problem, and 3 if the run is invalid.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.soak.watching import Watch
from headroom.loadtest import terminal
from headroom.loadtest.cli import INVALID
from headroom.loadtest.driving import drive
from headroom.loadtest.plan import combined
from headroom.loadtest.server import free_port
from headroom.loadtest.tables import signed

SCENARIO = Path(__file__).with_name("soak.yaml")


def lines(watch: dict[str, Any]) -> list[str]:
    """Return what was seen of the server's processes, as text. watch: of the report."""
    found = []
    for title, name in (("memory, MB", "memory_mb"), ("open files", "open_files"), ("disk, MB", "disk_mb")):
        if (trend := watch["trends"][name]) is not None:
            found.append(
                f"{title}: {trend['first']:,.1f} to {trend['last']:,.1f}, {signed(trend['per_hour'])} an hour"
                f" (95 %: {signed(trend['low'])} to {signed(trend['high'])})"
            )
    fell = "none fell" if not watch["counters_fell"] else f"{len(watch['counters_fell'])} fell"
    found.append(f"counters: {fell} in {watch['scrapes']:,} scrapes")
    found.append("problems: none" if not watch["problems"] else "problems:")
    return [*found, *(f"  {problem}" for problem in watch["problems"])]


def main(arguments: list[str]) -> int:
    """Run the soak; return the exit status. Raises PlanError or LoadTestError."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--start", required=True, help="command of the server, on {port}")
    parser.add_argument("--out", type=Path, required=True, help="directory of the reports")
    for name in ("duration", "warmup", "rate", "slo"):
        parser.add_argument(f"--{name}", help=f"in place of the scenario's {name}")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    start = given.pop("start")
    out = given.pop("out")
    port = free_port()
    plan = combined(str(SCENARIO), given | {"url": f"http://127.0.0.1:{port}"})
    start = start.replace("{port}", str(port))
    report, directory, unwritten = drive(plan, find_max=False, start=start, out=out, watch=Watch)
    terminal.show(report, where=None if unwritten else str(directory / "report.html"))
    for line in (*lines(report["watch"]), *unwritten):
        print(line)
    if not report["valid"]:
        return INVALID
    return int(bool(report["watch"]["problems"] or unwritten))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

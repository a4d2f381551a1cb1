"""The options of `headroom load run`, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str | None, typer.Argument(help="Address of the server, such as http://127.0.0.1:8000.")]
Scenario = Annotated[
    str | None,
    typer.Option(help="steady, spike, soak, overload, repeats, mixed-tenants, ab-split, or a YAML file."),
]
Rate = Annotated[
    str | None,
    typer.Option(help="Requests per second, or 2x for twice the server's capacity.  [default: 50]"),
]
Duration = Annotated[
    str | None, typer.Option(help="Length of the measurement, such as 30s or 5m.  [default: 30s]")
]
Warmup = Annotated[str | None, typer.Option(help="Length of traffic before the measurement.  [default: 3s]")]
Arrivals = Annotated[
    str | None, typer.Option(help="Arrivals: poisson, constant, ramp, step or trace.  [default: poisson]")
]
RateTo = Annotated[float | None, typer.Option(help="Last rate of a ramp or step.")]
Steps = Annotated[
    int | None, typer.Option(help="Number of equal steps from --rate to --rate-to.  [default: 5]")
]
Phases = Annotated[str | None, typer.Option(help="Rates over time: 50:20s,250:5s,50-200:30s.")]
Trace = Annotated[Path | None, typer.Option(help="File with a send time in seconds on each line.")]
Titles = Annotated[
    str | None, typer.Option(help="Titles per request: 20, 1-50, or 1-9=3,100=1.  [default: 20]")
]
Pairs = Annotated[Path | None, typer.Option(help="Texts to send: csv, tsv, jsonl or parquet of query,title.")]
Endpoint = Annotated[
    str | None,
    typer.Option(help="score, compare, rerank, attention, condense, tei-rerank, or 'GET /path'."),
]
Masks = Annotated[
    str | None,
    typer.Option(help="Masks by weight: none=3,random:0.2@1=1; separate by ; if a mask has a comma."),
]
Variants = Annotated[str | None, typer.Option(help="Variants by weight, such as full=1,pruned20=1.")]
Units = Annotated[
    int | None, typer.Option(help="Number of different units for experiments.  [default: none]")
]
Zipf = Annotated[
    float | None,
    typer.Option(help="How texts repeat: the k-th most frequent in proportion to 1/k^ZIPF.  [default: 0]"),
]
DeadlineMs = Annotated[float | None, typer.Option(help="Deadline that each request carries.")]
ApiKey = Annotated[str | None, typer.Option(help="API key to send.", envvar="HEADROOM_API_KEY")]
Timeout = Annotated[
    str | None, typer.Option(help="Time limit, counted from the intended send time.  [default: 10s]")
]
Connections = Annotated[int | None, typer.Option(help="Maximum of open connections.  [default: 1024]")]
Processes = Annotated[int | None, typer.Option(help="Number of client processes.  [default: 1]")]
MaxLag = Annotated[
    str | None,
    typer.Option(
        help="Send lag above which a run is invalid, at p99 or at a higher percentile that --slo names."
        "  [default: 10ms]"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of every random draw.  [default: 1]")]
Slo = Annotated[str | None, typer.Option(help="Objective, such as p99=100ms,errors=0.1%.")]
FindMax = Annotated[
    bool,
    typer.Option("--find-max", help="Find the highest rate that meets --slo; --duration is per probe."),
]
Start = Annotated[
    str | None, typer.Option(help="Command of a server on {port}, to run during the test instead of URL.")
]
Out = Annotated[Path | None, typer.Option(help="Directory for reports.  [default: runs/load-TIME]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON, without its time line.")]

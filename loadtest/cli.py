"""`headroom load run` and `compare`. They import heavy packages only when they run, so `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="load",
    help="Open-loop load tests that check their own accuracy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INVALID = 3
"""Exit status of a run that is invalid because of the client."""


@app.command("run")
def run(
    url: Annotated[
        str | None, typer.Argument(help="Address of the server, such as http://127.0.0.1:8000.")
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="steady, spike, soak, overload, mixed-tenants, ab-split, or a YAML file."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Requests per second, or 2x for twice the server's capacity.  [default: 50]"),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Length of the measurement, such as 30s or 5m.  [default: 30s]")
    ] = None,
    warmup: Annotated[
        str | None, typer.Option(help="Length of traffic before the measurement.  [default: 3s]")
    ] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="Arrivals: poisson, constant, ramp, step or trace.  [default: poisson]")
    ] = None,
    rate_to: Annotated[float | None, typer.Option(help="Last rate of a ramp or step.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of equal steps from --rate to --rate-to.  [default: 5]")
    ] = None,
    phases: Annotated[str | None, typer.Option(help="Rates over time: 50:20s,250:5s,50-200:30s.")] = None,
    trace: Annotated[Path | None, typer.Option(help="File with a send time in seconds on each line.")] = None,
    titles: Annotated[
        str | None, typer.Option(help="Titles per request: 20, 1-50, or 1-9=3,100=1.  [default: 20]")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Texts to send: csv, tsv, jsonl or parquet of query,title.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="score, compare, rerank, attention, condense, tei-rerank, or 'GET /path'."),
    ] = None,
    masks: Annotated[
        str | None,
        typer.Option(help="Masks by weight: none=3,random:0.2@1=1; separate by ; if a mask has a comma."),
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Variants by weight, such as full=1,pruned20=1.")
    ] = None,
    units: Annotated[
        int | None, typer.Option(help="Number of different units for experiments.  [default: none]")
    ] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="Deadline that each request carries.")] = None,
    api_key: Annotated[str | None, typer.Option(help="API key to send.", envvar="HEADROOM_API_KEY")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Time limit, counted from the intended send time.  [default: 10s]")
    ] = None,
    connections: Annotated[
        int | None, typer.Option(help="Maximum of open connections.  [default: 1024]")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Number of client processes.  [default: 1]")] = None,
    max_lag: Annotated[
        str | None, typer.Option(help="p99 of the send lag above which a run is invalid.  [default: 10ms]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw.  [default: 1]")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, such as p99=100ms,errors=0.1%.")] = None,
    find_max: Annotated[
        bool,
        typer.Option("--find-max", help="Find the highest rate that meets --slo; --duration is per probe."),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(help="Command of a server on {port}, to run during the test instead of URL."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for reports.  [default: runs/load-TIME]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, without its time line.")
    ] = False,
) -> None:
    """Send requests on schedule, even if earlier ones are unanswered, and report latency and errors.

    Exit status 3: the run is invalid, because the client was too slow. Ctrl-C ends it early and reports it.

    Example: headroom load run http://127.0.0.1:8000 --rate 200 --titles 1-50 --masks 'none,random:0.2@1'
    --out runs/a
    """
    import os

    from loadtest import beside, driving
    from loadtest.errors import PlanError
    from loadtest.plan import API_KEY_VARIABLE, make_plan, read_scenario

    if api_key:
        os.environ[API_KEY_VARIABLE] = (
            api_key  # client processes read it here; the plan and the report never contain it
        )
    if (url is None) == (start is None):
        raise typer.BadParameter("give the server's URL, or a command to --start", param_hint="URL")
    if find_max and not slo and not scenario:
        raise typer.BadParameter("needs an objective, such as --slo p99=100ms", param_hint="--find-max")
    traffic = {
        "titles": titles,
        "endpoint": endpoint,
        "masks": masks,
        "variants": variants,
        "units": units,
        "deadline_ms": deadline_ms,
    }
    changes = {
        "rate": None if rate is None else _number(rate),
        "duration": duration,
        "warmup": warmup,
        "arrivals": arrivals or ("trace" if trace else None),
        "rate_to": rate_to,
        "steps": steps,
        "phases": _phases(phases),
        "trace": trace,
        "pairs": pairs,
        "timeout": timeout,
        "connections": connections,
        "processes": processes,
        "max_lag": max_lag,
        "seed": seed,
        "slo": slo,
    }
    try:
        values: dict[str, Any] = read_scenario(scenario) if scenario else {}
        given = {name: value for name, value in changes.items() if value is not None}
        if "phases" not in given and {"rate", "duration", "arrivals"} & given.keys():
            values.pop("phases", None)  # the options replace the scenario's rates and times
        entries = values.get("traffic") or [{}]
        entries = [{**entry, **{k: v for k, v in traffic.items() if v is not None}} for entry in entries]
        port = beside.free_port() if start is not None else 0
        where = url or f"http://127.0.0.1:{port}"
        plan = make_plan({**values, **given, "traffic": entries, "url": where})
        if find_max:
            driving.check_searchable(plan)
        command = None if start is None else start.replace("{port}", str(port))
        report, directory = driving.drive(plan, find_max=find_max, start=command, out=out)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    _print(report, directory, as_json=as_json)
    if not report["valid"]:
        raise typer.Exit(INVALID)
    if find_max and report["find_max"]["rate"] is None:
        raise typer.Exit(1)


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="report.json of the first run, or its directory.")],
    b: Annotated[Path, typer.Argument(help="report.json of the second run, or its directory.")],
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 if B's p50, p90 or p99 is slower than A's by more than this, such as 5%."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the percentiles of two runs, with bootstrap intervals over stretches of time.

    B counts as slower if the difference is above the limit and its 95 % interval lies wholly above zero.

    Example: headroom load compare runs/a runs/b --fail-if-slower 5%
    """
    import json

    from loadtest import comparing, report, terminal
    from loadtest.errors import PlanError

    try:
        limit = None if fail_if_slower is None else _share(fail_if_slower)
        one, two = report.read(a), report.read(b)
        for name, run in ((a, one), (b, two)):
            if not run["valid"]:
                print(f"headroom load: {name}: {report.verdict(run)}", file=sys.stderr)
                raise typer.Exit(INVALID)
        differences = comparing.compare(one, two)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print(json.dumps(comparing.as_json(differences, one, two)))
    else:
        terminal.show_comparison(differences, one, two, comparing.plans_differ_in(one, two))
    slower = [
        d
        for d in differences
        if limit is not None and d.percentile in comparing.GATED and d.slower_than(limit)
    ]
    if slower:
        print("slower: " + ", ".join(f"{d.percentile} by {d.change:.1%}" for d in slower), file=sys.stderr)
        raise typer.Exit(1)


def main() -> None:
    """Run `python -m loadtest`. Exit status: 0 success, 1 failure, 2 wrong usage, 3 invalid run."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        app(arguments, prog_name="python -m loadtest")
    except Exception as error:
        if debug:
            raise
        print(f"headroom load: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        sys.exit(1)


def _print(report: dict[str, Any], directory: Path, *, as_json: bool) -> None:
    import json

    from loadtest import terminal

    if as_json:
        bulky = ("series", "spectrum", "histograms")
        print(json.dumps({name: value for name, value in report.items() if name not in bulky}))
    else:
        terminal.show(report, where=str(directory / "report.html"))


def _phases(text: str | None) -> list[dict[str, Any]] | None:
    """Return the phases in text such as `50:20s,250:5s,50-200:30s`."""
    from loadtest.plan import seconds

    if text is None:
        return None
    phases = []
    for item in text.split(","):
        rates, _, length = item.strip().partition(":")
        low, dash, high = rates.partition("-")
        try:
            phases.append({"rate": float(low), "to": float(high) if dash else None, "for": seconds(length)})
        except ValueError:
            raise typer.BadParameter(
                f"{item!r} is not like 50:20s or 50-200:30s", param_hint="--phases"
            ) from None
    return phases


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not like 5%", param_hint="--fail-if-slower") from None

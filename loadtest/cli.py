"""`headroom load`: `run` and `compare`. Imports what they need when they run: `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="load",
    help="Open-loop load tests that audit themselves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INVALID = 3
"""Exit status of a run that the client spoiled."""


@app.command("run")
def run(
    url: Annotated[str | None, typer.Argument(help="The server, such as http://127.0.0.1:8000.")] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="steady, spike, soak, overload, mixed-tenants, ab-split, or a YAML file."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Requests a second, or 2x: twice what the server can do.  [default: 50]"),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Measured time, such as 30s or 5m.  [default: 30s]")
    ] = None,
    warmup: Annotated[
        str | None, typer.Option(help="Traffic before it that counts nowhere.  [default: 3s]")
    ] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="poisson, constant, ramp, step or trace.  [default: poisson]")
    ] = None,
    rate_to: Annotated[float | None, typer.Option(help="Where a ramp or step ends.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Equal steps from --rate to --rate-to.  [default: 5]")
    ] = None,
    phases: Annotated[str | None, typer.Option(help="Rates over time: 50:20s,250:5s,50-200:30s.")] = None,
    trace: Annotated[Path | None, typer.Option(help="For trace: a time in seconds on each line.")] = None,
    titles: Annotated[
        str | None, typer.Option(help="Per request: 20, 1-50, or 1-9=3,100=1.  [default: 20]")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Texts: csv, tsv, jsonl or parquet with query and title.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="score, compare, rerank, attention, condense, tei-rerank, or 'GET /path'."),
    ] = None,
    masks: Annotated[
        str | None, typer.Option(help="none=3,random:0.2@1=1; with ; between them where a mask has a comma.")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Variants by weight, such as full=1,pruned20=1.")
    ] = None,
    units: Annotated[
        int | None, typer.Option(help="Different units for experiments.  [default: none]")
    ] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="Deadline that each request carries.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Bearer key.", envvar="HEADROOM_API_KEY")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="From the intended send time to giving up.  [default: 10s]")
    ] = None,
    connections: Annotated[
        int | None, typer.Option(help="Most connections at once.  [default: 1024]")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Client processes.  [default: 1]")] = None,
    max_lag: Annotated[
        str | None, typer.Option(help="Send lag p99 beyond which the run is invalid.  [default: 10ms]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of times, texts and choices.  [default: 1]")] = None,
    slo: Annotated[str | None, typer.Option(help="Objective, such as p99=100ms,errors=0.1%.")] = None,
    find_max: Annotated[
        bool,
        typer.Option("--find-max", help="Search the highest rate that holds --slo; --duration is a probe's."),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(help="Command that serves on {port}, for the time of the run; instead of URL."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where reports go.  [default: runs/load-TIME]")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The report on stdout, without its time line.")
    ] = False,
) -> None:
    """Send traffic on schedule, whether or not earlier requests came back, and report what that was like.

    Exit status 3: the client spoiled the run. Ctrl-C ends the run early and reports what ran.

    Example: headroom load run http://127.0.0.1:8000 --rate 200 --titles 1-50 --masks 'none,random:0.2@1'
    --out runs/a
    """
    import os

    from loadtest import beside, driving
    from loadtest.errors import PlanError
    from loadtest.plan import API_KEY_VARIABLE, make_plan, read_scenario

    if api_key:
        os.environ[API_KEY_VARIABLE] = (
            api_key  # for the client processes; the plan and the report never hold it
        )
    if (url is None) == (start is None):
        raise typer.BadParameter("give the server's URL, or a command to --start", param_hint="URL")
    if find_max and not slo and not scenario:
        raise typer.BadParameter(
            "searching needs an objective, such as --slo p99=100ms", param_hint="--find-max"
        )
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
            values.pop("phases", None)  # another rate or time than the scenario's
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
        typer.Option(help="Exit status 1 where B's p50, p90 or p99 is slower than A's by more, as 5%."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compare two runs' percentiles, with bootstrap intervals over stretches of time.

    B counts as slower where the difference is above the limit and its 95 % interval lies wholly above zero.

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
    """`python -m loadtest`. Exit status: 0 success, 1 failure, 2 wrong usage, 3 invalid run."""
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
    """Phases of `50:20s,250:5s,50-200:30s`."""
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

"""`headroom load run` and `compare`. They import heavy packages only when they run, so `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from loadtest import options

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
    url: options.Url = None,
    scenario: options.Scenario = None,
    rate: options.Rate = None,
    duration: options.Duration = None,
    warmup: options.Warmup = None,
    arrivals: options.Arrivals = None,
    rate_to: options.RateTo = None,
    steps: options.Steps = None,
    phases: options.Phases = None,
    trace: options.Trace = None,
    titles: options.Titles = None,
    pairs: options.Pairs = None,
    endpoint: options.Endpoint = None,
    masks: options.Masks = None,
    variants: options.Variants = None,
    units: options.Units = None,
    zipf: options.Zipf = None,
    deadline_ms: options.DeadlineMs = None,
    api_key: options.ApiKey = None,
    timeout: options.Timeout = None,
    connections: options.Connections = None,
    processes: options.Processes = None,
    max_lag: options.MaxLag = None,
    seed: options.Seed = None,
    slo: options.Slo = None,
    find_max: options.FindMax = False,
    start: options.Start = None,
    out: options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Send requests on schedule, even if earlier ones are unanswered, and report latency and errors.

    Exit status 1: the objective of --slo was missed, or the server had problems in a run that watched it.
    3: the run is invalid, because the client was too slow. Ctrl-C ends it early and reports it.

    Example: headroom load run http://127.0.0.1:8000 --rate 200 --titles 1-50 --masks 'none,random:0.2@1'
    --out runs/a
    """
    _pass_to_clients(api_key)
    if (url is None) == (start is None):
        raise typer.BadParameter("give the server's URL, or a command to --start", param_hint="URL")
    if find_max and not slo and not scenario:
        raise typer.BadParameter("needs an objective, such as --slo p99=100ms", param_hint="--find-max")
    arrivals = arrivals or ("trace" if trace else None)
    traffic = _given(
        titles=titles,
        endpoint=endpoint,
        masks=masks,
        variants=variants,
        units=units,
        zipf=zipf,
        deadline_ms=deadline_ms,
    )
    schedule = _given(
        rate=_number(rate), duration=duration, warmup=warmup, arrivals=arrivals, rate_to=rate_to, steps=steps
    )
    content = _given(phases=_phases(phases), trace=trace, pairs=pairs, seed=seed, slo=slo)
    client = _given(timeout=timeout, connections=connections, processes=processes, max_lag=max_lag)
    plan = {**schedule, **content, **client}
    from loadtest.report import missed_objective, server_problems

    report, directory = _drive(url, start, scenario, plan, traffic, find_max=find_max, out=out)
    _print(report, directory, as_json=as_json)
    if not report["valid"]:
        raise typer.Exit(INVALID)
    missed = missed_objective(report)
    if find_max and report["find_max"]["rate"] is None:
        missed = ["no rate that was tried holds it"]
    if missed:
        print(f"headroom load: the objective was missed: {'; '.join(missed)}", file=sys.stderr)
    if missed or server_problems(report):
        raise typer.Exit(1)


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="report.json of the first run, or its directory.")],
    b: Annotated[Path, typer.Argument(help="report.json of the second run, or its directory.")],
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 if B's p50, p90 or p99 is slower than A's by more than this, such as 5%, or if"
            " B leaves more requests unanswered."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the percentiles of two runs, with intervals from stretches of each run.

    B counts as slower if the difference is above the limit and its 95 % interval lies wholly above zero. It
    leaves more unanswered if their share is larger by over 0.1 percentage points, and that
    difference's interval lies above zero; or if it lies over 1 point above the 95 % interval of A's share.

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
        failed = comparing.unanswered(one, two)
        if limit is not None and failed.is_worse:
            print(f"unanswered: {failed.b:.1%} of the requests, {failed.a:.1%} in A", file=sys.stderr)
        differences = comparing.compare(one, two)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print(json.dumps(comparing.as_json(differences, failed, one, two)))
    else:
        terminal.show_comparison(differences, failed, one, two, comparing.plans_differ_in(one, two))
    slower = [
        d
        for d in differences
        if limit is not None and d.percentile in comparing.GATED and d.slower_than(limit)
    ]
    if slower:
        print("slower: " + ", ".join(f"{d.percentile} by {d.change:.1%}" for d in slower), file=sys.stderr)
    if slower or (limit is not None and failed.is_worse):
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


def _pass_to_clients(api_key: str | None) -> None:
    """Put the key where client processes read it, so that the plan and the report never contain it."""
    import os

    from loadtest.plan import API_KEY_VARIABLE

    if api_key:
        os.environ[API_KEY_VARIABLE] = api_key


def _given(**values: Any) -> dict[str, Any]:
    """Return the options that the user gave, by name."""
    return {name: value for name, value in values.items() if value is not None}


def _drive(
    url: str | None,
    start: str | None,
    scenario: str | None,
    given: dict[str, Any],
    traffic: dict[str, Any],
    *,
    find_max: bool,
    out: Path | None,
) -> tuple[dict[str, Any], Path]:
    """Run the scenario, changed by the options. Return the report and its directory.

    given: options of the whole run. traffic: options of every kind of request in the run.
    """
    from loadtest import beside, driving
    from loadtest.errors import PlanError
    from loadtest.plan import make_plan, read_scenario

    try:
        values: dict[str, Any] = read_scenario(scenario) if scenario else {}
        if "phases" not in given and {"rate", "duration", "arrivals"} & given.keys():
            values.pop("phases", None)  # the options replace the scenario's rates and times
        if given.get("arrivals", "trace") != "trace":
            values.pop("trace", None)
        entries = [{**entry, **traffic} for entry in values.get("traffic") or [{}]]
        port = beside.free_port() if start is not None else 0
        where = url or f"http://127.0.0.1:{port}"
        plan = make_plan({**values, **given, "traffic": entries, "url": where})
        if find_max:
            driving.check_searchable(plan)
        command = None if start is None else start.replace("{port}", str(port))
        return driving.drive(plan, find_max=find_max, start=command, out=out)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None


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


def _number(text: str | None) -> float | str | None:
    """Return the number in the text, if it is one, or else the text."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not like 5%", param_hint="--fail-if-slower") from None

"""`headroom load run` and `compare`. They import heavy packages only when they run, so `--help` is quick."""

# ruff: noqa: ARG001 # `run` reads most of its options from typer's context

import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

app = typer.Typer(
    name="load",
    help="Open-loop load tests that check their own accuracy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

UNWRITTEN = 2
"""Exit status of a run whose report could not be written; that of an --out that cannot be made."""

INVALID = 3
"""Exit status of a run that is invalid, or that has too few requests for --fail-if-slower."""

Text = str | None
"""An option that is text; the plan reads and checks it."""


@app.command("run")
def run(
    context: typer.Context,
    address: Annotated[
        Text, Argument(help="Address of the server, such as http://127.0.0.1:8000.", metavar="[URL]")
    ] = None,
    url: Annotated[Text, Option(help="The same, as the other commands take it.")] = None,
    scenario: Annotated[
        Text, Option(help="steady, spike, overload, repeats, mixed-tenants, ab-split, or a YAML file.")
    ] = None,
    rate: Annotated[
        Text, Option(help="Requests per second, or 2x for twice the server's capacity.  [default: 50]")
    ] = None,
    duration: Annotated[
        Text, Option(help="Length of the measurement, such as 30s or 5m.  [default: 30s]")
    ] = None,
    warmup: Annotated[Text, Option(help="Length of traffic before the measurement.  [default: 3s]")] = None,
    arrivals: Annotated[
        Text, Option(help="Arrivals: poisson, constant, ramp, step or trace.  [default: poisson]")
    ] = None,
    rate_to: Annotated[
        float | None, Option(help="Last rate of --arrivals ramp, or of the five steps of step.")
    ] = None,
    trace: Annotated[
        Path | None,
        Option(help="File with a send time in seconds on each line, instead of --rate and --duration."),
    ] = None,
    titles: Annotated[
        Text, Option(help="Titles per request: 20, 1-50, or 1-9=3,100=1.  [default: 20]")
    ] = None,
    pairs: Annotated[
        Path | None, Option(help="Texts to send: csv, tsv, jsonl (or .csv.gz ...) or parquet of query,title.")
    ] = None,
    endpoint: Annotated[
        Text,
        Option(
            help="score, compare, rerank, attention, condense, tei-rerank, or 'GET /path'.  [default: score]"
        ),
    ] = None,
    masks: Annotated[
        Text, Option(help="Masks by weight: none=3,random:0.2@1=1; separate by ; if a mask has a comma.")
    ] = None,
    variants: Annotated[Text, Option(help="Variants by weight, such as full=1,pruned20=1.")] = None,
    units: Annotated[
        int | None, Option(help="Number of different units for experiments.  [default: none]")
    ] = None,
    zipf: Annotated[
        float | None,
        Option(help="How queries repeat: the k-th most frequent in proportion to 1/k^ZIPF.  [default: 0]"),
    ] = None,
    deadline_ms: Annotated[float | None, Option(help="Deadline that each request carries.")] = None,
    on_failure: Annotated[
        Text,
        Option(
            help="What each request wants if it cannot be scored: error or original_order."
            "  [default: the server's]"
        ),
    ] = None,
    api_key: Annotated[Text, Option(help="API key to send.", envvar="HEADROOM_API_KEY")] = None,
    timeout: Annotated[
        Text, Option(help="Time limit, counted from the intended send time.  [default: 10s]")
    ] = None,
    connections: Annotated[int | None, Option(help="Maximum of open connections.  [default: 1024]")] = None,
    max_lag: Annotated[
        Text,
        Option(
            help="Send lag above which a run is invalid, at p99 or at a higher percentile that --slo names."
            "  [default: 10ms]"
        ),
    ] = None,
    seed: Annotated[int | None, Option(help="Seed of every random draw.  [default: 1]")] = None,
    slo: Annotated[
        Text,
        Option(
            help="Objective, such as p99=100ms,errors=0.1%. Answers that are not reranked count as errors,"
            " unless it lets some through by name: p99=100ms,unreranked=1%."
        ),
    ] = None,
    find_max: Annotated[
        bool, Option("--find-max", help="Find the highest rate that meets --slo; --duration is per probe.")
    ] = False,
    start: Annotated[
        Text, Option(help="Command of a server on {port}, to run during the test instead of URL.")
    ] = None,
    out: Annotated[Path | None, Option(help="Directory for reports.  [default: runs/load-TIME]")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the report without its time line.")] = False,
) -> None:
    """Send requests on a schedule, and report latency and errors. A late answer delays no later request.

    Exit status 1: the objective of --slo was missed. 2: wrong usage, or a report could not be written. 3: the
    run is invalid: the client was too slow or no answer was good. Ctrl-C or SIGTERM ends it early and reports
    it.

    Example: headroom load run http://127.0.0.1:8000 --rate 200 --titles 1-50 --masks 'none,random:0.2@1'
    --out runs/a
    """
    if address is None and url is None and start is None:
        url = os.environ.get("HEADROOM_URL")
    if [address, url, start].count(None) != 2:
        raise typer.BadParameter("give the server's URL once, or a command to --start", param_hint="URL")
    from headroom.loadtest import driving, plan, terminal
    from headroom.loadtest.report import missed_objective
    from headroom.loadtest.server import free_port

    if api_key:  # the client process reads it there, so that the plan and the report never contain it
        os.environ[plan.API_KEY_VARIABLE] = api_key
    given = {name: value for name, value in context.params.items() if value is not None}
    given["url"] = (address or url or "").strip()
    try:
        if start is not None:
            port = free_port()
            given["url"] = f"http://127.0.0.1:{port}"
            start = start.replace("{port}", str(port))
        planned = plan.combined(scenario, given)
        report, directory, unwritten = driving.drive(planned, find_max=find_max, start=start, out=out)
    except plan.PlanError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        bulky = ("series", "histograms")
        print(json.dumps({name: value for name, value in report.items() if name not in bulky}))
    else:
        terminal.show(report, where=None if unwritten else str(directory / "report.html"))
    for reason in unwritten:
        print(f"headroom load: {reason}", file=sys.stderr)
    if unwritten:
        raise typer.Exit(UNWRITTEN)
    if not report["valid"]:
        raise typer.Exit(INVALID)
    missed = missed_objective(report)
    if find_max and report["find_max"]["rate"] is None and not report["interrupted"]:
        missed = ["no rate that was tried holds it"]
    if missed:
        print(f"headroom load: the objective was missed: {'; '.join(missed)}", file=sys.stderr)
        raise typer.Exit(1)


@app.command("compare")
def compare(
    a: Annotated[Path, Argument(help="report.json of the first run, or its directory.")],
    b: Annotated[Path, Argument(help="report.json of the second run, or its directory.")],
    fail_if_slower: Annotated[
        Text,
        Option(
            help="Exit with 1 if B's p50, p90 or p99 is slower than A's by more than this, such as 5%, or if"
            " B leaves more requests unanswered; with 3 if a run has too few requests (p99 needs 1,000)."
        ),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the percentiles of two runs. Intervals come from stretches of each run.

    B counts as slower if the difference is above the limit and its 95 % interval lies wholly above zero. It
    leaves more unanswered if their share is larger by over 1 percentage point, and over a tenth of A's.

    Example: headroom load compare runs/a runs/b --fail-if-slower 5%
    """
    from headroom.loadtest import comparing, report, terminal
    from headroom.loadtest.plan import PlanError, share

    try:
        limit = math.inf if fail_if_slower is None else share(fail_if_slower)
    except ValueError:
        raise typer.BadParameter(
            f"{fail_if_slower!r} is not like 5%", param_hint="--fail-if-slower"
        ) from None
    try:
        one = report.read(a)
        two = report.read(b)
        for name, each in ((a, one), (b, two)):
            if not each["valid"]:
                print(f"headroom load: {name}: {report.verdict(each)}", file=sys.stderr)
                raise typer.Exit(INVALID)
        failed = comparing.unanswered(one, two)
        is_worse = fail_if_slower is not None and failed.is_worse
        if is_worse:
            print(f"unanswered: {failed.b:.1%} of the requests, {failed.a:.1%} in A", file=sys.stderr)
        compared = comparing.compare(one, two)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print(json.dumps(comparing.as_json(compared, failed, one, two)))
    else:
        terminal.show_comparison(compared, failed, one, two)
    slower = [d for d in compared.differences if d.percentile in comparing.GATED and d.slower_than(limit)]
    if slower:
        print("slower: " + ", ".join(f"{d.percentile} by {d.change:.1%}" for d in slower), file=sys.stderr)
    unchecked = [name for name in comparing.GATED if name in compared.left_out and fail_if_slower is not None]
    if unchecked:
        needs = ", ".join(f"{name} needs {compared.left_out[name]:,}" for name in unchecked)
        print(
            f"not compared: {needs} requests in each run, and one has {compared.requests:,}", file=sys.stderr
        )
    if slower or is_worse:
        raise typer.Exit(1)
    if unchecked:
        raise typer.Exit(INVALID)


def main() -> None:
    """Run `python -m headroom.loadtest`. Exit status: 0 success, 1 failure, 2 wrong usage, 3 invalid run."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        app(arguments, prog_name="python -m headroom.loadtest")
    except Exception as error:
        if debug:
            raise
        print(f"headroom load: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        sys.exit(1)

"""Drives a load test: starts the server, runs the plan or the search, and writes the reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

import orjson

from loadtest import arrivals, beside, find_max, objective, page, report, running, server_side, terminal
from loadtest.errors import PlanError
from loadtest.plan import Plan
from loadtest.report import Report
from loadtest.running import Outcome
from loadtest.soak import watching

SATURATION_PROBE_S = 6.0


def drive(plan: Plan, *, find_max: bool, start: str | None, out: Path | None) -> tuple[Report, Path]:
    """Run the test, write report.json and report.html, and return the report and its directory.

    Raises:
        PlanError: the plan is wrong. LoadTestError: the test could not run.
    """
    slo = objective.of_plan(plan)
    if plan.trace is not None:
        arrivals.duration(plan)  # a wrong file is told before the server starts
    directory = out or Path("runs") / datetime.now().strftime("load-%Y%m%d-%H%M%S")
    server = nullcontext(None) if start is None else beside.started_server(start, plan.url)
    with _made(directory), server as process:
        if find_max:
            assert slo is not None
            result = _search(plan, slo)
        else:
            result = _run(_resolved(plan), slo, process, directory)
        (directory / "report.json").write_bytes(orjson.dumps(result))
        (directory / "report.html").write_text(page.render(result), "utf-8")
    return result, directory


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make the directory before the test; remove it again if the test fails and it is empty.

    Raises:
        PlanError: the directory cannot be made.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"--out: {directory} cannot be made: {error.strerror}") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty
            for path in made:
                path.rmdir()
        raise


def check_searchable(plan: Plan) -> None:
    """Raise PlanError if the plan does not fit a search."""
    if plan.slo is None:
        raise PlanError("--find-max: needs an objective, such as --slo p99=100ms")
    if plan.arrivals not in ("poisson", "constant") or plan.phases:
        raise PlanError("--find-max: needs a steady rate, with --arrivals poisson or constant")
    if plan.saturation_factor is not None:
        raise PlanError(
            "--find-max: --rate must be a number, the requests per second at which the search starts"
        )


def _run(plan: Plan, slo: objective.Objective | None, server: int | None, directory: Path) -> Report:
    events = beside.Events(plan, server, directory)
    watch = _watch(plan, server)

    def begin(origin: float) -> None:
        events.begin(origin)
        if watch is not None:
            watch.begin(origin)

    before = server_side.metrics(plan)
    with terminal.LiveProgress(plan, arrivals.duration(plan)) as progress:
        try:
            outcome = running.run(plan, progress, begin)
        finally:
            if watch is not None:
                watch.end()
            events.end()
    metrics = server_side.difference(before, server_side.metrics(plan))
    result = report.build(outcome, slo, metrics=metrics, models=server_side.models(plan), events=events.ran)
    if watch is not None:
        result["watch"] = watching.conclusion(watch, result)
    return result


def _watch(plan: Plan, server: int | None) -> watching.Watch | None:
    if not plan.watch:
        return None
    if server is None:
        raise PlanError("watch: it looks at the server's processes: let the run --start it")
    return watching.Watch(plan, server)


def _search(plan: Plan, slo: objective.Objective) -> Report:
    plan = plan.changed(events=())
    search = find_max.Search(plan, slo, _probe, _say)
    assert not isinstance(plan.rate, str)
    capacity = search.find(plan.rate)
    result = report.build(capacity.last, slo, models=server_side.models(plan))
    result["find_max"] = capacity.as_json()
    if capacity.limited_by == "client":
        result["valid"] = False
        result["invalid_because"] = [
            *result["invalid_because"],
            "the client reached its limit before the server",
        ]
    return result


def _resolved(plan: Plan) -> Plan:
    """Return the plan with a number as its rate; measures the saturation if the rate is a multiple of it."""
    factor = plan.saturation_factor
    if factor is None:
        return plan
    if plan.phases:
        return plan.changed(rate=1.0)
    probe = plan.changed(duration=SATURATION_PROBE_S, warmup=0.0, events=(), timeout=min(plan.timeout, 5.0))
    saturation = find_max.saturation(probe, _probe, _say)
    _say(f"the server saturates at {saturation:,.1f} requests/s; running at {factor:g} times that")
    return plan.changed(rate=factor * saturation)


def _probe(plan: Plan) -> Outcome:
    with terminal.LiveProgress(plan, arrivals.duration(plan), label=f"{plan.rate:,.1f}/s:") as watch:
        return running.run(plan, watch)


def _say(line: str) -> None:
    print(f"headroom load: {line}", file=sys.stderr, flush=True)

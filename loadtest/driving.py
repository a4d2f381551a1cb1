"""From a plan to its reports: the server, the run or the search, what the server says, and the files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

import orjson

from loadtest import arrivals, beside, find_max, html, objective, report, running, server_side, terminal
from loadtest.errors import PlanError
from loadtest.plan import Plan
from loadtest.report import Report
from loadtest.running import Outcome

SATURATION_PROBE_S = 6.0


def drive(plan: Plan, *, find_max: bool, start: str | None, out: Path | None) -> tuple[Report, Path]:
    """Runs everything, writes report.json and report.html, and says where.

    Raises:
        PlanError: something in the plan is wrong. LoadTestError: the test could not be made.
    """
    slo = objective.parse(plan.slo) if plan.slo else None
    directory = out or Path("runs") / datetime.now().strftime("load-%Y%m%d-%H%M%S")
    server = nullcontext(None) if start is None else beside.started_server(start, plan.url)
    with _made(directory), server as process:
        if find_max:
            assert slo is not None
            result = _search(plan, slo)
        else:
            result = _run(_resolved(plan), slo, process)
        (directory / "report.json").write_bytes(orjson.dumps(result))
        (directory / "report.html").write_text(html.render(result), "utf-8")
    return result, directory


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make the directory before the test is made. If the test fails, what was made and is empty goes again.

    Raises:
        PlanError: it cannot be made.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"--out: {directory} cannot be made: {error.strerror}") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # something is in it
            for path in made:
                path.rmdir()
        raise


def check_searchable(plan: Plan) -> None:
    """Raises PlanError where a search makes no sense."""
    if plan.slo is None:
        raise PlanError("--find-max: needs an objective, such as --slo p99=100ms")
    if plan.arrivals not in ("poisson", "constant") or plan.phases:
        raise PlanError("--find-max: searches a steady rate, with --arrivals poisson or constant")
    if plan.saturation_factor is not None:
        raise PlanError("--find-max: --rate is where the search starts, in requests a second")


def _run(plan: Plan, slo: objective.Objective | None, server: int | None) -> Report:
    events = beside.Events(plan, server)
    before = server_side.metrics(plan)
    with terminal.LiveProgress(plan, arrivals.duration(plan)) as watch:
        try:
            outcome = running.run(plan, watch, events.begin)
        finally:
            events.end()
    metrics = server_side.difference(before, server_side.metrics(plan))
    return report.build(outcome, slo, metrics=metrics, models=server_side.models(plan), events=events.ran)


def _search(plan: Plan, slo: objective.Objective) -> Report:
    plan = plan.changed(events=())
    search = find_max.Search(plan, slo, _probe, _say)
    assert not isinstance(plan.rate, str)
    found = search.find(plan.rate)
    result = report.build(found.last, slo, models=server_side.models(plan))
    result["find_max"] = found.as_json()
    if found.limited_by == "client":
        result["valid"] = False
        result["invalid_because"] = [*result["invalid_because"], "the client gave out before the server did"]
    return result


def _resolved(plan: Plan) -> Plan:
    """The plan with a number for a rate."""
    factor = plan.saturation_factor
    if factor is None:
        return plan
    if plan.phases:
        return plan.changed(rate=1.0)
    probe = plan.changed(duration=SATURATION_PROBE_S, warmup=0.0, events=(), timeout=min(plan.timeout, 5.0))
    most = find_max.saturation(probe, _probe, _say)
    _say(f"the server saturates at {most:,.1f} requests a second; running at {factor:g} times that")
    return plan.changed(rate=factor * most)


def _probe(plan: Plan) -> Outcome:
    with terminal.LiveProgress(plan, arrivals.duration(plan), label=f"{plan.rate:,.1f}/s:") as watch:
        return running.run(plan, watch)


def _say(line: str) -> None:
    print(f"headroom load: {line}", file=sys.stderr, flush=True)

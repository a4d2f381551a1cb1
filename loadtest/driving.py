"""Drives a load test: starts the server, runs the plan or the search, and writes the reports."""

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import orjson

from headroom.loadtest import arrivals, find_max, judging, page, report, running, server, terminal
from headroom.loadtest.events import Events
from headroom.loadtest.judging import Objective
from headroom.loadtest.plan import Plan, PlanError
from headroom.loadtest.report import Report
from headroom.loadtest.running import Outcome

SATURATION_PROBE_S = 6.0


class Watch(Protocol):
    """Looks at a server that the run started, while it gets requests."""

    def begin(self, origin: float) -> None:
        """Start looking; times count from `origin` on `alarm.clock`."""

    def end(self) -> None:
        """Stop looking."""

    def conclusion(self, report: Report) -> dict[str, Any]:
        """Return what was seen, for the report's `watch`."""


def drive(
    plan: Plan,
    *,
    find_max: bool,
    start: str | None,
    out: Path | None,
    watch: Callable[[Plan, int], Watch] | None = None,
) -> tuple[Report, Path, list[str]]:
    """Run the test and write report.json and report.html.

    watch: makes what looks at the started server, from the plan and the server's process id.
    Return the report, its directory, and why files could not be written; the list is empty if all were.

    Raises:
        PlanError: the plan is wrong. LoadTestError: the test could not run.
    """
    slo = judging.objective_of(plan)
    _check(plan, slo, find_max=find_max)
    directory = out or Path("runs") / datetime.now().strftime("load-%Y%m%d-%H%M%S")
    with running.interrupts() as interrupted:
        started = nullcontext(None) if start is None else server.started_server(start, plan.url, interrupted)
        with started as process:
            running.find(plan.url)  # what is wrong is told before the directory is made
            events = Events(plan, process, directory)
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise PlanError(f"--out: {directory} cannot be made: {error.strerror}") from None
            if find_max and slo is not None:
                result = _search(plan, slo, interrupted)
            else:
                resolved = _resolved(plan, interrupted)
                watching = None if watch is None or process is None else watch(resolved, process)
                result = _run(resolved, slo, watching, events, interrupted)
            unwritten = _write(directory / "report.json", orjson.dumps(result))
            unwritten += _write(directory / "report.html", page.render(result).encode())
    return result, directory, unwritten


def _check(plan: Plan, slo: Objective | None, *, find_max: bool) -> None:
    """Raise PlanError if the plan is wrong, before the server starts."""
    if find_max and slo is None:
        raise PlanError("--find-max: needs an objective, such as --slo p99=100ms")
    if find_max and (plan.arrivals not in ("poisson", "constant") or plan.phases):
        raise PlanError("--find-max: needs a steady rate, with --arrivals poisson or constant")
    if find_max and plan.saturation_factor is not None:
        raise PlanError(
            "--find-max: --rate must be a number, the requests per second at which the search starts"
        )
    if find_max and plan.events:
        raise PlanError("--find-max: events belong to a single run; remove them from the scenario")
    if plan.trace is not None:
        arrivals.duration(plan)
    running.workload(plan)


def _write(path: Path, content: bytes) -> list[str]:
    """Write a file; return why it could not be written, in a list that is empty if it was."""
    try:
        path.write_bytes(content)
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror}"]
    return []


def _run(
    plan: Plan,
    slo: Objective | None,
    watch: Watch | None,
    events: Events,
    interrupted: threading.Event,
) -> Report:
    def begin(origin: float) -> None:
        events.begin(origin)
        if watch is not None:
            watch.begin(origin)

    before = server.metrics(plan.url)
    try:
        outcome = _probe(plan, begin, interrupted=interrupted)
    finally:
        if watch is not None:
            watch.end()
        events.end()
    metrics = server.difference(before, server.metrics(plan.url))
    if metrics is None:
        _say(f"{plan.url}/metrics gave no counters of headroom, so the report has none of the server")
    result = report.build(outcome, slo, metrics=metrics, events=events.ran)
    if watch is not None:
        result["watch"] = watch.conclusion(result)
    return result


def _search(plan: Plan, slo: Objective, interrupted: threading.Event) -> Report:
    assert not isinstance(plan.rate, str)
    probe = partial(_probe, interrupted=interrupted)
    search = find_max.Search(plan.changed(events=()), slo, probe, _say)
    highest, reported = search.find(plan.rate)
    return {**report.build(reported, slo), "interrupted": highest["interrupted"], "find_max": highest}


def _resolved(plan: Plan, interrupted: threading.Event) -> Plan:
    """Return the plan with a number as its rate; measures the saturation if the rate is a multiple of it."""
    factor = plan.saturation_factor
    if factor is None or plan.phases:  # phases have rates of their own
        return plan
    probe = plan.changed(duration=SATURATION_PROBE_S, warmup=0.0, events=(), timeout=min(plan.timeout, 5.0))
    saturation = find_max.saturation(probe, partial(_probe, interrupted=interrupted), _say)
    _say(f"the server saturates at {saturation:,.1f} requests/s; running at {factor:g} times that")
    return plan.changed(rate=factor * saturation)


def _probe(
    plan: Plan, began: Callable[[float], None] | None = None, *, interrupted: threading.Event
) -> Outcome:
    with terminal.live_progress(plan, arrivals.duration(plan)) as watch:
        return running.run(plan, watch, began, interrupted)


def _say(line: str) -> None:
    print(f"headroom load: {line}", file=sys.stderr, flush=True)

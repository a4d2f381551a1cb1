"""Measures what `on_failure: original_order` promises: whatever fails, each answer is 200, whole and in time.

`headroom serve` runs with two replicas and `benchmarks.freezing_engine`. Our open-loop client sends requests
of six clients' shapes in turn at three times the rate that saturates the service, and keeps every answer.
Each is checked here, and then read by the shape's own client (`benchmarks.peers.clients`), which gets the
recorded bytes over HTTP: the clients themselves are too slow to send so many requests on time.
"""

import asyncio
import gc
import json
import math
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import uvloop
import yaml

from benchmarks.load import Texts, peak_rate, plan_for, texts
from benchmarks.peers import reading
from benchmarks.report import Report, Row, at_most
from benchmarks.serving import CONFIG, Server, counters, headroom, replicas
from headroom.loadtest import arrivals, running
from headroom.loadtest.alarm import clock
from headroom.loadtest.client import Client
from headroom.loadtest.plan import Plan, Traffic
from headroom.loadtest.recorder import Recorder, server_timing
from headroom.loadtest.wire import Answer
from headroom.loadtest.workload import Kind, Request, title_counts
from headroom.models.checkpoint.hub import DEFAULT

ROUNDS = 1
ANSWERS = 5000
"""Answers of each shape under each fault."""

OVERLOAD = 3.0
"""Rate that is sent, over the rate that saturates the service."""

TITLES = 10
DEADLINE_MS = 300.0
LATE_MS = 50.0
"""How much longer than its deadline a request may take, at p99."""

REPLICAS = 2
TIMEOUT_S = 60.0
"""When a request is given up; much later than its deadline, so that a late answer is told from none."""

READY_S = 60.0
"""How long a fault waits for the replicas that it needs."""


class Shape(NamedTuple):
    """A client's request. titles: the field of the titles. is_typed: whether it names its Content-Type."""

    path: str
    titles: str
    fields: dict[str, Any]
    is_typed: bool = True


SHAPES = {
    "cohere 2": Shape("/v2/rerank", "documents", {"model": "any"}),
    "cohere 1": Shape("/v1/rerank", "documents", {"model": "any", "return_documents": True}),
    "jina": Shape("/v1/rerank", "documents", {"model": "any", "top_n": TITLES}),
    "tei": Shape("/rerank", "texts", {}),
    "weaviate": Shape("/rerank", "documents", {"property": ""}, is_typed=False),
    "score": Shape("/v1/score", "titles", {}),
}

IN_THE_REQUESTS_ORDER = ("weaviate", "score")
"""Shapes whose answers give each title its score where it stood; the others are sorted."""

FROZEN = "BENCHMARK_FROZEN"
"""Variable that names the directory of `benchmarks.freezing_engine`."""

Event = Callable[[Server, Path], None]
"""Makes something fail. Takes the server and the directory that FROZEN names."""


class Fault(NamedTuple):
    """A fault: events by the share of the run after which they begin. deadline_ms: of the requests."""

    name: str
    events: Sequence[tuple[float, Event]] = ()
    deadline_ms: float = DEADLINE_MS


def kill(server: Server, _: Path) -> None:
    """Kill one replica of two that are ready. Raises TimeoutError."""
    _until_ready(server)
    replicas(server)[0].kill()


def freeze_one(server: Server, frozen: Path) -> None:
    """Freeze one replica's device for good: the service replaces it. Raises TimeoutError."""
    _until_ready(server)
    (frozen / str(replicas(server)[0].pid)).touch()


def freeze_all(server: Server, frozen: Path) -> None:
    """Freeze the devices of all replicas, once none of them starts. Raises TimeoutError."""
    _until_ready(server)
    (frozen / "all").touch()


def thaw_all(_: Server, frozen: Path) -> None:
    """Let every device go on."""
    for mark in frozen.iterdir():
        mark.unlink()


def _until_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            if counters(server).get("headroom_ready") == REPLICAS:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{REPLICAS} replicas were not ready within {READY_S:g} s")


FAULTS = (
    Fault("overload"),
    Fault("a replica is killed", [(0.05, kill), (0.5, kill)]),
    Fault("a deadline of 1 ms", deadline_ms=1.0),
    Fault("a device freezes", [(0.05, freeze_one), (0.75, freeze_all), (0.95, thaw_all)]),
)


class Kept(Recorder):
    """A recorder that keeps every answer, and what became of the others.

    late_ms: from a request's deadline to its answer's last byte; the time counts from when it was written.
    late_in_replica_ms: the same, of the time that the replica measured.
    """

    def __init__(self) -> None:
        super().__init__(0.0)
        self.answers: dict[str, list[Answer]] = {name: [] for name in SHAPES}
        self.late_ms: list[float] = []
        self.late_in_replica_ms: list[float] = []

    def answered(self, request: Request, answer: Answer) -> None:
        """Keep a whole HTTP answer."""
        super().answered(request, answer)
        name = request.kind.traffic.name
        self.answers[name].append(answer)
        deadline_ms = request.kind.traffic.deadline_ms or 0.0
        self.late_ms.append((answer.at - request.sent) * 1000 - deadline_ms)
        total_s = dict(server_timing(answer.server_timing)).get("total", math.inf)
        self.late_in_replica_ms.append(total_s * 1000 - deadline_ms)


@dataclass
class Found:
    """The outcome of the requests under one fault.

    wrong: why answers were not 200 and whole, with their numbers. kinds: answers by `x-reranked`.
    late_ms, late_in_replica_ms: as `Kept` has them. lag_ms: how late the client sent, at p99.
    answers: by the name of the shape. read: as `reading.read` returns it.
    """

    sent: int
    wrong: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    late_ms: list[float] = field(default_factory=list)
    late_in_replica_ms: list[float] = field(default_factory=list)
    lag_ms: float = 0.0
    answers: dict[str, list[Answer]] = field(default_factory=lambda: {name: [] for name in SHAPES})
    read: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Found") -> None:
        """Add the requests of another round."""
        self.sent += other.sent
        self.wrong += other.wrong
        self.kinds += other.kinds
        self.late_ms += other.late_ms
        self.late_in_replica_ms += other.late_in_replica_ms
        self.lag_ms = max(self.lag_ms, other.lag_ms)
        for name, answers in other.answers.items():
            self.answers[name] += answers


def measure(
    rounds: int,
    model: Path = DEFAULT,
    answers: int = ANSWERS,
    rate: float | None = None,
    faults: Sequence[Fault] = FAULTS,
) -> Report:
    """Run the faults. answers: of each shape and fault. rate: requests a second; None: OVERLOAD.

    Raises Unavailable if the clients are not installed.
    """
    reading.check_installed()
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as directory:
        frozen = Path(directory, "frozen")
        frozen.mkdir()
        config = Path(directory, "failures.yaml")
        config.write_text(_config(), "utf-8")
        variables = {FROZEN: str(frozen)}
        with mock.patch.dict(os.environ, variables), headroom(config, model, REPLICAS) as server:
            if rate is None:
                plan = plan_for(server.url).changed(duration=6.0, traffic=[{"titles": TITLES}])
                rate = OVERLOAD * peak_rate(plan)
            for number in range(rounds):
                for fault in faults:
                    one = under(fault, server, frozen, answers=answers, rate=rate, seed=number)
                    found.setdefault(fault.name, Found(0)).add(one)
    for name, count in reading.read({name: one.answers for name, one in found.items()}, TITLES).items():
        found[name].read = count
    about = (
        f"{answers * rounds:,} answers of each of {len(SHAPES)} shapes under each fault, {TITLES} titles a "
        f"request, {rate:,.0f} requests/s, {REPLICAS} replicas, a deadline of {DEADLINE_MS:g} ms. "
        f"Load average at the end: {os.getloadavg()[0]:.1f}."
    )
    return report_on(found, answers * rounds, about)


def _config() -> str:
    """Return deploy/serve.yaml with the engine that freezes, and the promise."""
    document = yaml.safe_load(CONFIG.read_text("utf-8"))
    application = document["applications"][0]
    application["import_path"] = "benchmarks.freezing_engine:build"
    application["deployments"][0]["user_config"]["on_failure"] = "original_order"
    return yaml.safe_dump(document)


def under(fault: Fault, server: Server, frozen: Path, *, answers: int, rate: float, seed: int) -> Found:
    """Send the requests of all shapes while the fault happens, and judge the answers."""
    _until_ready(server)
    count = answers * len(SHAPES)
    seconds = 2 * count / rate  # Poisson arrivals: surely enough for `count` requests
    plan = plan_for(server.url).changed(
        rate=rate, duration=seconds, warmup=0, seed=seed + 1, timeout=TIMEOUT_S
    )
    requests = list(_requests(plan, fault, count))
    recorder = Kept()
    start = clock() + 0.5
    seconds = requests[-1].intended
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ThreadPoolExecutor(1) as pool:
        happening = pool.submit(_happen, fault, server, frozen, start, seconds)
        with _real_time():
            runner.run(_send(plan, requests, recorder, start, seconds))
        happening.result()
    found = Found(
        count,
        late_ms=recorder.late_ms,
        late_in_replica_ms=recorder.late_in_replica_ms,
        answers=recorder.answers,
    )
    found.lag_ms = recorder.send_lag.percentile_ms(99) or 0.0
    found.wrong.update(recorder.errors)
    for name, kept in recorder.answers.items():
        _judge(name, kept, found)
    return found


@contextmanager
def _real_time() -> Iterator[None]:
    """Run this thread before all others, where the system allows it: its own lag is none of the service's."""
    policy = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, os.sched_param(0))


async def _send(plan: Plan, requests: list[Request], recorder: Recorder, start: float, end: float) -> None:
    address = running.find(plan.url)
    client = Client(plan, iter(requests), recorder, address=address, start=start, end=start + end)
    gc.collect()
    gc.freeze()  # a collection would hold up requests
    await client.run()
    gc.unfreeze()


def _happen(fault: Fault, server: Server, frozen: Path, start: float, seconds: float) -> None:
    for share, event in fault.events:
        threading.Event().wait(max(0.0, start + share * seconds - clock()))
        event(server, frozen)


def _requests(plan: Plan, fault: Fault, count: int) -> Iterator[Request]:
    """Yield the requests, of all shapes in turn. No query comes twice, so that nothing is known already."""
    times = np.concatenate(list(arrivals.chunks(plan)))[:count]
    kinds = [_kind(name, fault.deadline_ms) for name in SHAPES]
    of_titles = texts(TITLES, 500, seed=plan.seed)
    for number, intended in enumerate(times.tolist()):
        kind = kinds[number % len(kinds)]
        query, titles = of_titles[number % len(of_titles)]
        payload = _payload(plan, kind, (f"{query} {number}", titles), fault.deadline_ms)
        yield Request(intended, measured=True, payload=payload, titles=TITLES, kind=kind)


def _kind(name: str, deadline_ms: float) -> Kind:
    """Return a kind of which the recorder counts only the status, because `_judge` reads the answers."""
    return Kind(
        traffic=Traffic(name=name, deadline_ms=deadline_ms),
        mask="",
        variant="",
        share=1.0,
        head=b"",
        field="",
        extras=b"",
        expects=None,
        title_counts=title_counts(TITLES),
        starts=(np.zeros(1, np.int64), np.ones(1)),
    )


def _payload(plan: Plan, kind: Kind, of_request: Texts, deadline_ms: float) -> bytes:
    """Return a whole HTTP request."""
    shape = SHAPES[kind.traffic.name]
    query, titles = of_request
    body = {"query": query, shape.titles: titles, "deadline_ms": deadline_ms, **shape.fields}
    content = json.dumps(body).encode()
    host = plan.url.removeprefix("http://")
    lines = [f"POST {shape.path} HTTP/1.1", f"host: {host}", f"content-length: {len(content)}"]
    lines += ["content-type: application/json"] if shape.is_typed else []
    return "\r\n".join([*lines, "", ""]).encode() + content


def _judge(name: str, kept: Sequence[Answer], found: Found) -> None:
    """Count the answers by what they are, and those that are not as they should be."""
    for answer in kept:
        complaint = f"http_{answer.status}"
        if answer.status == 200:
            complaint = _complaint(name, answer)
            found.kinds[answer.reranked] += 1
        if complaint:
            found.wrong[f"{name}: {complaint}"] += 1


def _complaint(name: str, answer: Answer) -> str:
    """Return what is wrong with an answer of status 200; empty if nothing is."""
    try:
        document = json.loads(answer.body)
        rows = reading.rows_of(name, document)
    except (ValueError, KeyError, TypeError) as error:
        return f"cannot be read: {error!r}"
    if not answer.is_json:
        return "is not called JSON"
    if sorted(index for index, _ in rows) != [*range(TITLES)]:
        return "does not hold each title once"
    scores = [score for _, score in rows]
    if name not in IN_THE_REQUESTS_ORDER and scores != sorted(scores, reverse=True):
        return "is not sorted"
    if answer.reranked == "true":
        return ""
    if answer.reranked not in ("false", "partial"):
        return f"x-reranked is {answer.reranked!r}"
    ordered = sorted(rows, key=lambda row: -row[1])  # as a client sorts: equal scores keep their order
    lowest = ordered[-1][1]
    rest = [index for index, score in ordered if score == lowest]
    if rest != sorted(rest):
        return "does not keep the order of what is not scored"
    is_whole = len(rest) == TITLES
    return "" if is_whole == (answer.reranked == "false") else "says another share than it has scored"


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if values else math.inf


def report_on(found: dict[str, Found], answers: int, about: str) -> Report:
    """Return the report. answers: of each shape and fault."""
    report = Report(about)
    for name, one in found.items():
        right = one.sent - one.wrong.total()
        wrong = "; ".join(f"{count} {kind}" for kind, count in one.wrong.most_common(3))
        value = f"{right:,} of {one.sent:,}{f' ({wrong})' if wrong else ''}"
        report.rows.append(Row(f"{name}: 200 and whole", value, "all", ok=not one.wrong))
        kinds = ", ".join(f"{kind} {count / one.sent:.1%}" for kind, count in sorted(one.kinds.items()))
        p99 = _p99(one.late_ms)
        more = (
            f" (in the replica {_p99(one.late_in_replica_ms):.0f} ms; the client's own lag "
            f"{one.lag_ms:.0f} ms; {kinds})"
        )
        report.rows.append(at_most(f"{name}: p99 after the deadline", p99, LATE_MS, ".0f", " ms", more))
        unread = one.read.total() - one.read["read"]
        complaints = "; ".join(f"{count} {kind}" for kind, count in one.read.items() if kind != "read")
        value = f"{one.read['read']:,}{f' ({complaints})' if complaints else ''}"
        expected = answers * len(reading.CLIENTS)
        is_read = not unread and one.read["read"] == expected
        report.rows.append(Row(f"{name}: read by the clients", value, f"{expected:,}", ok=is_read))
    return report

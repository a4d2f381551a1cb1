"""Metrics: exact counts, in one process and over many, at a cost that does not grow with the pairs."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.parser import text_string_to_metric_families

from service.http import create_app
from service.metrics import Metrics, _observe
from service.node_metrics import NodeMetrics
from service.settings import Settings
from tests.service.asgi import client


def samples(text: bytes) -> dict[str, float]:
    """Every sample of a scrape as `name{label="value",…}`, labels sorted."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def feed(metrics: Metrics) -> None:
    metrics.request("/v1/score", 200, 0.012)
    metrics.request("/v1/score", 422, 0.001)
    metrics.shed("queue_full")
    metrics.stages(tokenize=0.0002, queue=0.0004, inference=0.0061, respond=0.0001)
    metrics.stages(inference=1.5)
    metrics.scored("full", pairs=1000, seconds=0.25, grades=[900, 0, 50, 40, 10], truncated=3)
    metrics.scored("custom", pairs=1, seconds=0.01, arm="pruned", grades=[0, 1])
    metrics.scored("full", pairs=0, seconds=0.1)
    metrics.batch(pairs=40, tokens=800, budget=1024)
    metrics.queue(tokens=512, oldest_seconds=0.125, in_flight_pairs=40)
    metrics.device_failure("out_of_memory")
    metrics.ready(True)
    metrics.config("0123456789ab", {"full": 144, "pruned20": 115})
    metrics.build_info(version="0.1.0", torch="2.13", model="m", device="cpu", dtype="bfloat16")


def check(found: dict[str, float], processes: int = 1) -> None:
    """What `feed` leaves behind, counters and sums that many times."""
    expected = {
        'headroom_requests_total{route="/v1/score",status="200"}': 1,
        'headroom_requests_total{route="/v1/score",status="422"}': 1,
        'headroom_request_seconds_count{route="/v1/score"}': 2,
        'headroom_request_seconds_bucket{le="0.001",route="/v1/score"}': 1,
        'headroom_shed_total{reason="queue_full"}': 1,
        'headroom_shed_total{reason="deadline"}': 0,
        'headroom_stage_seconds_count{stage="inference"}': 2,
        'headroom_stage_seconds_count{stage="respond"}': 1,
        'headroom_pairs_total{arm="",variant="full"}': 1000,
        'headroom_pairs_total{arm="pruned",variant="custom"}': 1,
        'headroom_pair_seconds_count{arm="",variant="full"}': 1000,
        'headroom_pair_seconds_bucket{arm="",le="0.2",variant="full"}': 0,
        'headroom_pair_seconds_bucket{arm="",le="0.3",variant="full"}': 1000,
        'headroom_pair_seconds_sum{arm="",variant="full"}': 250.0,
        'headroom_grade_total{grade="0",variant="full"}': 900,
        'headroom_grade_total{grade="4",variant="full"}': 10,
        'headroom_grade_total{grade="1",variant="custom"}': 1,
        "headroom_truncated_total": 3,
        "headroom_batch_pairs_count": 1,
        "headroom_batch_tokens_sum": 800,
        'headroom_batch_fill_ratio_bucket{le="0.7"}': 0,
        'headroom_batch_fill_ratio_bucket{le="0.8"}': 1,
        'headroom_device_failures_total{kind="out_of_memory"}': 1,
        "headroom_queue_tokens": 512,
        "headroom_in_flight_pairs": 40,
        "headroom_ready": 1,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value * processes), name
    assert found["headroom_queue_oldest_seconds"] == 0.125
    assert found['headroom_heads_on{variant="pruned20"}'] == 115
    labels = 'device="cpu",dtype="bfloat16",model="m",torch="2.13",version="0.1.0"'
    assert found[f"headroom_build_info{{{labels}}}"] == 1
    assert 'headroom_grade_total{grade="1",variant="full"}' not in found


def test_counts_are_exact_in_one_process() -> None:
    metrics = Metrics()
    feed(metrics)
    found = samples(metrics.render())
    check(found)
    assert found["headroom_config_version"] == 0x0123456789AB
    assert not [name for name in found if "_created" in name]


def test_two_services_in_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    feed(one)
    assert samples(other.render())["headroom_truncated_total"] == 0


def test_a_variant_that_left_the_config_keeps_no_number() -> None:
    metrics = Metrics()
    metrics.config("01", {"full": 144, "old": 100})
    metrics.config("02", {"full": 144})
    found = samples(metrics.render())
    assert math.isnan(found['headroom_heads_on{variant="old"}'])
    assert found['headroom_heads_on{variant="full"}'] == 144


@pytest.mark.parametrize("value", [0.0, 0.05, 0.1, 0.100001, 3.0, 1e9])
def test_observing_many_at_once_is_observing_each(value: float) -> None:
    registry = CollectorRegistry()
    each = Histogram("each", "-", buckets=(0.05, 0.1, 1.0), registry=registry)
    once = Histogram("once", "-", buckets=(0.05, 0.1, 1.0), registry=registry)
    for _ in range(7):
        each.observe(value)
    _observe(once, value, times=7)
    (first, second) = registry.collect()
    assert [(s.name[4:], s.labels, s.value) for s in first.samples] == [
        (s.name[4:], s.labels, pytest.approx(s.value)) for s in second.samples
    ]


def test_a_thousand_pairs_cost_no_more_than_one() -> None:
    metrics = Metrics()

    def cost(pairs: int) -> float:
        grades = [pairs, 0, 0, 0, 0]
        started = time.thread_time()
        for _ in range(200):
            metrics.scored("full", pairs=pairs, seconds=0.01, grades=grades)
        return time.thread_time() - started

    cost(1)
    assert min(cost(1000) for _ in range(5)) < 5 * min(cost(1) for _ in range(5))


CHILD = """
import sys, time
from service.metrics import Metrics
from tests.service.test_metrics import feed
metrics = Metrics()
feed(metrics)
print("fed", flush=True)
if sys.argv[1] == "scrape":
    sys.stdout.buffer.write(metrics.render())
else:
    sys.stdin.read()
"""


def spawn(directory: Path, what: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(CHILD), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=Path(__file__).parents[2],
    )


def test_any_replica_answers_for_all_of_its_node_even_after_a_kill(tmp_path: Path) -> None:
    idle = [spawn(tmp_path, "wait") for _ in range(2)]
    try:
        for child in idle:
            assert child.stdout is not None
            assert child.stdout.readline() == b"fed\n"
        out, _ = spawn(tmp_path, "scrape").communicate(timeout=60)
        first = samples(out.removeprefix(b"fed\n"))
        check(first, processes=3)
        versions = [value for name, value in first.items() if name.startswith("headroom_config_version{")]
        assert versions == [0x0123456789AB] * 3

        idle[0].send_signal(signal.SIGKILL)
        idle[0].wait(timeout=60)
        out, _ = spawn(tmp_path, "scrape").communicate(timeout=60)
        second = samples(out.removeprefix(b"fed\n"))
        # Four processes have counted; of two, one killed and one that ended, nothing waits in any queue.
        assert second["headroom_truncated_total"] == 3 * 4
        assert second['headroom_pair_seconds_count{arm="",variant="full"}'] == 1000 * 4
        assert second["headroom_queue_tokens"] == 512 * 2
        assert second["headroom_ready"] == 2
    finally:
        for child in idle:
            child.kill()
            child.communicate(timeout=60)


COUNT = """
import sys
from service.metrics import Metrics
metrics = Metrics()
for line in sys.stdin:
    if line == "scrape\\n":
        text = metrics.render()
        print(len(text), flush=True)
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
    else:
        metrics.scored("full", pairs=5, seconds=0.01)
        metrics.ready(True)
        print("counted", flush=True)
"""


class Replica:
    """A process that counts five pairs each time it is asked to, and scrapes when asked for that."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", COUNT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)},
            cwd=Path(__file__).parents[2],
        )

    def ask(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def counted(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"counted\n"

    def scraped(self) -> dict[str, float]:
        assert self.process.stdout is not None
        return samples(self.process.stdout.read(int(self.process.stdout.readline())))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def test_replicas_that_are_killed_again_and_again_lose_no_count_and_leave_no_files(tmp_path: Path) -> None:
    stay = [Replica(tmp_path) for _ in range(2)]
    replicas = list(stay)
    pairs = 0
    try:
        for _ in range(4):
            victims = [Replica(tmp_path) for _ in range(3)]
            replicas += victims
            for replica in [*victims, *stay]:
                replica.ask("count")
                replica.counted()
                pairs += 5
            for victim in victims:
                victim.kill()
            for replica in stay * 3:  # both find the same dead ones, at the same moment
                replica.ask("scrape")
            for found in [replica.scraped() for replica in stay * 3]:
                assert found['headroom_pairs_total{arm="",variant="full"}'] == pairs
                assert found['headroom_pair_seconds_count{arm="",variant="full"}'] == pairs
                assert found['headroom_pair_seconds_bucket{arm="",le="0.01",variant="full"}'] == pairs
                assert found["headroom_ready"] == len(stay)
        living = {str(replica.process.pid) for replica in stay}
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        left = [path.name for path in files if path.stem.rpartition("_")[2] not in living]
        assert sorted(left) == ["counter_dead.db", "histogram_dead.db", "lock"]
    finally:
        for replica in replicas:
            replica.kill()


class KilledError(Exception):
    pass


def test_a_kill_at_any_moment_of_the_adding_up_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that changes the directory is in turn the last one of its process."""
    for last in range(1, 30):
        directory = tmp_path / str(last)
        directory.mkdir()
        for pid, kept in ((1, "dead-3"), (2, "dead-3"), (99999998, ""), (99999999, "")):
            (directory / kept).mkdir(exist_ok=True)
            file = MmapedDict(str(directory / kept / f"counter_{pid}.db"))
            file.write_value(mmap_key("c", "c_total", ["l"], ["x"], "A counter."), 10.0, 0.0)
            file.close()
        calls = 0

        def dies(call: Callable[..., Any], turn: int = last) -> Callable[..., Any]:
            def instead(*args: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == turn:
                    raise KilledError
                return call(*args, **options)

            return instead

        with monkeypatch.context() as patch:
            for owner, name in ((os, "rename"), (os, "mkdir"), (os, "unlink"), (os, "rmdir")):
                patch.setattr(owner, name, dies(getattr(owner, name)))
            patch.setattr(MmapedDict, "write_value", dies(MmapedDict.write_value))
            try:
                NodeMetrics(directory)
                survived = True
            except KilledError:
                survived = False
        for _ in range(2):
            (metric,) = NodeMetrics(directory).collect()
            assert [sample.value for sample in metric.samples] == [40.0], f"after {last} calls"
        if survived:
            break
    assert survived
    assert last > 5


async def test_a_scrape_leaves_the_event_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    begun, free = threading.Event(), threading.Event()
    render = metrics.render

    def slow() -> bytes:
        begun.set()
        assert free.wait(10)  # until the event loop has gone on
        return render()

    monkeypatch.setattr(metrics, "render", slow)
    app = create_app(Settings(), metrics)
    async with client(app) as http:
        scrape = asyncio.create_task(http.get("/metrics"))
        while not begun.is_set():
            await asyncio.sleep(0)
        assert (await http.get("/health/live")).status_code == 200
        assert not scrape.done()
        free.set()
        assert "headroom_ready" in (await scrape).text

"""Metrics of a node: any of its processes answers for all of them, also for those that ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from service.observe import node_metrics
from service.observe.metrics import refused_edits
from service.observe.node_metrics import NodeMetrics
from tests.service.metering import check, samples

CHILD = """
import sys, time
from service.observe.metrics import Metrics
from tests.service.metering import feed
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
        cwd=Path(__file__).parents[3],
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
        assert first["headroom_config_refused"] == 0

        idle[0].send_signal(signal.SIGKILL)
        idle[0].wait(timeout=60)
        out, _ = spawn(tmp_path, "scrape").communicate(timeout=60)
        second = samples(out.removeprefix(b"fed\n"))
        # Four processes have counted; of two, one killed and one that ended, nothing waits in any queue.
        assert second["headroom_truncated_total"] == 3 * 4
        assert second['headroom_pair_seconds_count{arm="",variant="full"}'] == 1000 * 4
        assert second["headroom_queue_tokens"] == 512 * 2
        assert second["headroom_ready"] == 2

        # `headroom serve` has refused an edit, and later takes one.
        with closing(refused_edits(tmp_path)) as command:
            for is_refused in (True, False):
                command.set(is_refused)
                out, _ = spawn(tmp_path, "scrape").communicate(timeout=60)
                assert samples(out.removeprefix(b"fed\n"))["headroom_config_refused"] == is_refused
    finally:
        for child in idle:
            child.kill()
            child.communicate(timeout=60)


COUNT = """
import sys
from service.observe.metrics import Metrics
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
            cwd=Path(__file__).parents[3],
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_process_with_the_id_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    """As after the restart of a container: the gauges would stay for ever."""
    key = mmap_key("headroom_x", "headroom_x", [], [], "X.")
    for kind, value in (("counter", 10.0), ("gauge_livesum", 1.0)):
        file = MmapedDict(str(tmp_path / f"{kind}_{os.getpid()}.db"))
        file.write_value(key, value, 0.0)
        file.close()
    now = MmapedDict(str(tmp_path / f"counter_{os.getppid()}.db"))  # open here, not there
    now.write_value(key, 5.0, 0.0)
    open_here = MmapedDict(str(tmp_path / f"histogram_{os.getpid()}.db"))
    NodeMetrics(tmp_path)
    left = {path.name for path in tmp_path.glob("*.db")}
    assert left == {f"histogram_{os.getpid()}.db"}
    (total,) = NodeMetrics(tmp_path).collect()
    assert [sample.value for sample in total.samples] == [15.0]
    for file in (now, open_here):
        file.close()


def test_sums_of_seconds_are_the_same_in_any_order(tmp_path: Path) -> None:
    """If it fell by its last bit when a process ends, Prometheus would take it for a counter's new start."""
    replica = Replica(tmp_path)
    try:
        for _ in range(3):
            replica.ask("count")
            replica.counted()
        replica.ask("scrape")
        total = replica.scraped()['headroom_pair_seconds_sum{arm="",variant="full"}']
        assert total == pytest.approx(3 * 5 * 0.01, abs=1e-4)
        assert (total * 2**24).is_integer(), "sums of such values have no rounding"
    finally:
        replica.kill()


FULL = """
import asyncio, os, sys
from service.observe import node_metrics
from service.api import create_app
from service.observe.metrics import Metrics
from service.config.settings import Settings
from tests.service.asgi import client
from tests.service.observe.test_node_metrics import no_space

async def ask(*paths):
    async with client(create_app(Settings(), metrics)) as http:
        return [(await http.get(path)).status_code for path in paths]

def count():
    for number in range(100):  # more than new files hold
        metrics.request(f"/{number}", 503, 0.01)

node_metrics.RETRY_S = 0.0
reserve, os.posix_fallocate = os.posix_fallocate, no_space
metrics = Metrics()
metrics.ready(True)  # no file can be made
os.posix_fallocate = reserve
metrics.ready(True)
metrics.request("/0", 200, 0.01)
os.posix_fallocate = no_space
count()  # no file can grow
assert asyncio.run(ask("/health/live", "/metrics")) == [200, 200]
assert b'request_seconds_count{route="/99"}' not in metrics.render()
os.posix_fallocate = reserve
count()
sys.stdout.buffer.write(metrics.render())
"""


reserves = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS cannot reserve space")


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def assert_no_holes(directory: Path, *kinds: str) -> None:
    """A write into a hole of a mapped file is a SIGBUS while the disk is full."""
    files = {file.name: file.stat() for file in directory.rglob("*.db")}
    assert {name.partition("_")[0] for name in files} == set(kinds)
    assert all(each.st_blocks * 512 >= each.st_size for each in files.values()), files


@reserves
def test_a_full_disk_costs_no_request_and_no_count(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    found = samples(out)
    assert found['headroom_requests_total{route="/99",status="503"}'] == 2
    assert found['headroom_request_seconds_count{route="/99"}'] == 2
    assert found["headroom_ready"] == 1
    assert_no_holes(tmp_path, "counter", "histogram", "gauge")
    NodeMetrics(tmp_path)  # adds up the files of the process, which has ended
    assert_no_holes(tmp_path, "counter", "histogram")


@reserves
def test_a_full_disk_hides_the_gauge_of_the_command_and_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_metrics, "RETRY_S", 0.0)
    with closing(refused_edits(tmp_path)) as gauge:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", no_space)
            gauge.set(True)
            assert list(NodeMetrics(tmp_path).collect()) == []
        gauge.set(True)
        (metric,) = NodeMetrics(tmp_path).collect()
        assert [sample.value for sample in metric.samples] == [1.0]
        assert_no_holes(tmp_path, "gauge")


@reserves
def test_a_full_disk_while_dead_processes_are_added_up_loses_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (99999998, 99999999):
        for kind in ("counter", "gauge_livesum"):
            with closing(MmapedDict(str(tmp_path / f"{kind}_{pid}.db"))) as file:
                file.write_value(mmap_key("c", "c_total", [], [], "A counter."), 10.0, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_space)
        for _ in range(2):
            (metric,) = NodeMetrics(tmp_path).collect()
            assert [sample.value for sample in metric.samples] == [20.0]
    (metric,) = NodeMetrics(tmp_path).collect()
    assert [sample.value for sample in metric.samples] == [20.0]
    assert {file.name for file in tmp_path.rglob("*.db")} == {"counter_dead.db", "histogram_dead.db"}


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

"""Metrics of a node: any of its processes answers for all of them, also for those that ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from service.observe.metrics import refused_edits
from service.observe.node_metrics import render
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


def test_replicas_that_are_killed_again_and_again_lose_no_count_and_leave_no_gauge(tmp_path: Path) -> None:
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
        gauges = {path.stem.rpartition("_")[2] for path in tmp_path.glob("gauge_*.db")}
        assert gauges == {str(replica.process.pid) for replica in stay}
        dead = [path for path in tmp_path.glob("*.db") if path.stem.rpartition("_")[2] not in gauges]
        assert dead
        assert max(path.stat().st_size for path in dead) < 100_000
    finally:
        for replica in replicas:
            replica.kill()


def test_a_process_with_the_id_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    """As after the restart of a container: the gauges would stay for ever."""
    key = mmap_key("headroom_x", "headroom_x", [], [], "X.")
    for kind in ("counter", "gauge_livesum"):
        with closing(MmapedDict(str(tmp_path / f"{kind}_{os.getpid()}.db"))) as file:
            file.write_value(key, 10.0, 0.0)
    with closing(MmapedDict(str(tmp_path / f"gauge_livemax_{os.getpid()}.db"))):
        assert samples(render(tmp_path)) == {"headroom_x": 10.0}
        left = {path.name for path in tmp_path.glob("*.db")}
        assert left == {f"counter_{os.getpid()}.db", f"gauge_livemax_{os.getpid()}.db"}


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS cannot reserve disk space")
def test_no_file_has_a_hole_and_a_full_disk_is_an_error_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write into a hole of a mapped file is a SIGBUS while the disk is full."""
    replica = Replica(tmp_path)
    try:
        replica.ask("count")
        replica.counted()
    finally:
        replica.kill()
    files = {file.name: file.stat() for file in tmp_path.glob("*.db")}
    assert {name.partition("_")[0] for name in files} == {"counter", "histogram", "gauge"}
    assert all(each.st_blocks * 512 >= each.st_size for each in files.values()), files

    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space left"):
        refused_edits(tmp_path)

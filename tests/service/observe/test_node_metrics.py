"""Metrics of a node: any of its processes answers for all of them, also for those that ended."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from service.observe.metrics import render_node
from tests.service.metering import check, samples

REPLICA = """
import sys
from service.observe.metrics import Metrics
from tests.service.metering import feed
metrics = Metrics()
for line in sys.stdin:
    if line == "feed\\n":
        feed(metrics)
    elif line == "count\\n":
        metrics.scored("full", pairs=5, seconds=0.01)
        metrics.show("ready", True)
    text = metrics.render() if line == "scrape\\n" else b""
    print(len(text), flush=True)
    sys.stdout.buffer.write(text)
    sys.stdout.flush()
"""


class Replica:
    """A process with metrics, which counts and scrapes when it is asked to."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", REPLICA],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)},
            cwd=Path(__file__).parents[3],
        )

    def ask(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        return samples(self.process.stdout.read(int(self.process.stdout.readline())))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], list[Replica]]]:
    """A function that starts replicas of one node, which end with the test."""
    started: list[Replica] = []

    def more(count: int) -> list[Replica]:
        started.extend(new := [Replica(tmp_path) for _ in range(count)])
        return new

    yield more
    for replica in started:
        replica.kill()


def test_any_replica_answers_for_all_of_its_node_even_after_a_kill(
    start: Callable[[int], list[Replica]],
) -> None:
    replicas = start(3)
    for replica in replicas:
        replica.ask("feed")
        replica.answer()
    replicas[0].ask("scrape")
    found = replicas[0].answer()
    check(found, processes=3)
    versions = [value for name, value in found.items() if name.startswith("headroom_config_version{")]
    assert versions == [0x0123456789AB] * 3

    replicas[0].kill()
    replicas[1].ask("scrape")
    found = replicas[1].answer()
    assert found["headroom_truncated_total"] == 3 * 3
    assert found['headroom_pair_seconds_count{arm="",variant="full"}'] == 1000 * 3
    assert found["headroom_queue_tokens"] == 512 * 2, "nothing waits in the queue of the dead"
    assert found["headroom_ready"] == 2


def test_replicas_that_are_killed_again_and_again_lose_no_count_and_leave_no_gauge(
    start: Callable[[int], list[Replica]], tmp_path: Path
) -> None:
    stay = start(2)
    pairs = 0
    for _ in range(3):
        victims = start(2)
        for replica in [*victims, *stay]:
            replica.ask("count")
            replica.answer()
            pairs += 5
        for victim in victims:
            victim.kill()
        for replica in stay * 3:  # both find the same dead ones, at the same moment
            replica.ask("scrape")
        for found in [replica.answer() for replica in stay * 3]:
            assert found['headroom_pairs_total{arm="",variant="full"}'] == pairs
            assert found['headroom_pair_seconds_count{arm="",variant="full"}'] == pairs
            assert found['headroom_pair_seconds_bucket{arm="",le="0.01",variant="full"}'] == pairs
            assert found["headroom_ready"] == len(stay)
            total = found['headroom_pair_seconds_sum{arm="",variant="full"}']
            assert total == pytest.approx(pairs * 0.01, abs=1e-2)
            assert (total * 2**24).is_integer(), "with rounding, Prometheus could see a sum that falls"
    gauges = {path.stem.rpartition("_")[2] for path in tmp_path.glob("gauge_*.db")}
    assert gauges == {str(replica.process.pid) for replica in stay}


def test_a_process_with_the_id_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    """As after the restart of a container: the gauges would stay for ever."""
    key = mmap_key("headroom_x", "headroom_x", [], [], "X.")
    for kind in ("counter", "gauge_livesum"):
        with closing(MmapedDict(str(tmp_path / f"{kind}_{os.getpid()}.db"))) as file:
            file.write_value(key, 10.0, 0.0)
    with closing(MmapedDict(str(tmp_path / f"gauge_livemax_{os.getpid()}.db"))):
        assert samples(render_node(tmp_path)) == {"headroom_x": 10.0}
        left = {path.name for path in tmp_path.glob("*.db")}
        assert left == {f"counter_{os.getpid()}.db", f"gauge_livemax_{os.getpid()}.db"}

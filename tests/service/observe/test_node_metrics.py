"""Metrics of a node: any of its processes answers for all of them, also for those that ended."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key

from headroom.service.observe.metric_files import render
from tests.service.metering import check, samples

REPLICA = """
import sys
from headroom.service.observe.metrics import Metrics
from tests.service.metering import feed
metrics = Metrics()
for line in sys.stdin:
    if line == "feed\\n":
        feed(metrics)
    elif line == "count\\n":
        metrics.scored("full", pairs=5, seconds=0.01)
        metrics.set_gauge("ready", True)
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
    assert not [name for name in found if "_created" in name]
    versions = {name: value for name, value in found.items() if name.startswith("headroom_config_version{")}
    assert all('version="0123456789ab"' in name for name in versions)
    assert [*versions.values()] == [1] * 3

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
        assert samples(render(tmp_path)) == {"headroom_x": 10.0}
        left = {path.name for path in tmp_path.glob("*.db")}
        assert left == {"counter_ended.db", f"gauge_livemax_{os.getpid()}.db"}


KEY = mmap_key("headroom_x", "headroom_x_total", [], [], "X.")
ENDED = (99999998, 99999999)
"""Ids that no process has."""


def write(file: Path, value: float) -> None:
    with closing(MmapedDict(str(file))) as values:
        values.write_value(KEY, value, 0.0)


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_no_write_of_a_metric_meets_a_hole_which_ends_the_process_on_a_full_disk(
    start: Callable[[int], list[Replica]], tmp_path: Path
) -> None:
    (replica,) = start(1)
    replica.ask("feed")
    replica.answer()
    files = [*tmp_path.glob("*.db")]
    assert {file.name.partition("_")[0] for file in files} == {"counter", "histogram", "gauge"}
    for file in files:
        assert file.stat().st_blocks * 512 >= file.stat().st_size, file


FULL = """
import os, sys
from headroom.service.observe import metric_files
from headroom.service.observe.metrics import Metrics
from tests.service.observe.test_node_metrics import no_space

metric_files.RETRY_S = 0.0
reserve = os.posix_fallocate

def count():
    for number in range(100):  # more than new files hold
        metrics.request(f"/{number}", 503, 0.01)

os.posix_fallocate = no_space
metrics = Metrics()  # no file can be made
metrics.request("/0", 200, 0.01)
os.posix_fallocate = reserve
metrics.set_gauge("ready", True)
os.posix_fallocate = no_space
count()  # no file can grow
assert b'request_seconds_count{route="/99"}' not in metrics.render()
os.posix_fallocate = reserve
count()
sys.stdout.buffer.write(metrics.render())
"""


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


def test_a_replica_that_starts_adds_up_those_before_it_also_if_nobody_scrapes(
    start: Callable[[int], list[Replica]], tmp_path: Path
) -> None:
    for _ in range(3):
        (replica,) = start(1)
        replica.ask("count")
        replica.answer()
        replica.kill()
    (last,) = start(1)
    last.ask("count")
    last.answer()
    assert len([*tmp_path.glob("counter_*.db")]) == 2
    last.ask("scrape")
    assert last.answer()['headroom_pairs_total{arm="",variant="full"}'] == 4 * 5


def test_a_full_disk_while_ended_processes_are_added_up_loses_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in ENDED:
        write(tmp_path / f"counter_{pid}.db", 10.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_space)
        for _ in range(2):
            assert samples(render(tmp_path)) == {"headroom_x_total": 20.0}
    assert samples(render(tmp_path)) == {"headroom_x_total": 20.0}
    assert [file.name for file in tmp_path.iterdir()] == ["counter_ended.db"]


class KilledError(Exception):
    """Stands for a kill."""


def test_a_kill_at_any_moment_of_the_adding_up_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that changes the directory is in turn the last one of its process."""
    survived = False
    last = 0
    while not survived:
        last += 1
        directory = tmp_path / str(last)
        directory.mkdir()
        write(directory / "counter_ended.db", 10.0)
        for pid in ENDED:
            write(directory / f"counter_{pid}.db", 10.0)
        left = last

        def dies(call: Callable[..., object]) -> Callable[..., object]:
            def instead(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    raise KilledError
                return call(*arguments, **options)

            return instead

        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "unlink"):
                patch.setattr(Path, name, dies(getattr(Path, name)))
            patch.setattr(MmapedDict, "write_value", dies(MmapedDict.write_value))
            try:
                render(directory)
                survived = True
            except KilledError:
                pass
        assert samples(render(directory)) == {"headroom_x_total": 30.0}, last
        assert [file.name for file in directory.iterdir()] == ["counter_ended.db"], last
    assert last > 6

"""Rows on their way to the database: nobody waits for them, and what is lost is counted."""

import errno
import json
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.events import Impression
from headroom.service.experiments.facts import Fact
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import exposures, impressions, shadow_results
from headroom.service.experiments.writer import BATCH_BYTES, MAX_IMPRESSION_BYTES, Writer
from headroom.service.observe.metrics import Metrics
from tests.service.experiments.making import exposure, live_of, shadowed


class Counts(Metrics):
    """What a writer reports."""

    def writer(self, store: Store, capacity: int = 20_000, **options: Any) -> Writer:
        return Writer(store, self, capacity=capacity, interval_s=0.01, **options)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Exposures written and lost, and shadow results lost."""
        names = ("exposures_written_total", "exposures_lost_total", "shadow_results_lost_total")
        counters = (self.series(name) for name in names)
        written, lost, shadow_lost = (int(next(iter(c.collect())).samples[0].value) for c in counters)
        return written, lost, shadow_lost


@pytest.fixture
def counts() -> Counts:
    return Counts()


def stored(store: Store) -> int:
    with store.read() as db:
        return int(db.execute(select(func.count()).select_from(exposures)).scalar_one())


def test_everything_that_was_put_is_stored_by_the_time_it_closes(store: Store, counts: Counts) -> None:
    writer = counts.writer(store)
    writer.start()
    for number in range(1300):
        assert writer.put(exposure(f"u{number}"))
        if number % 10 == 0:
            assert writer.put(shadowed(0.01))
    assert writer.close(20) == 0
    assert writer.depth == 0
    assert counts.totals == (1300, 0, 0)
    assert stored(store) == 1300
    with store.read() as db:
        assert db.scalar(select(func.count()).select_from(shadow_results)) == 130
    assert not writer.put(exposure("late"))  # after the end: refused, and counted
    assert counts.totals == (1300, 1, 0)


def test_lists_with_long_ids_take_no_more_memory_than_they_may(
    file_store: Store, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A character outside the basic plane takes 4 bytes, and each list here has 1,000 ids of 256."""
    sizes: list[int] = []
    add = file_store.add

    def add_counted(rows: Sequence[Fact]) -> Counter[tuple[str, str]]:
        sizes.append(len(rows))
        return add(rows)

    monkeypatch.setattr(file_store, "add", add_counted)
    writer = counts.writer(file_store)
    letters = "".join(chr(0x1F600 + number % 64) for number in range(255))

    def shown(number: int) -> Impression:
        ids = tuple(f"{letters}{chr(0x1F600 + index % 64)}" for index in range(1000))
        return Impression("order", str(number), "u", 1.0, "v", "s" * 1000, tuple(range(1000)), ids)

    tracemalloc.start()
    held = sum(writer.put(shown(number)) for number in range(80))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 40 <= held < 80
    assert used < 1.2 * MAX_IMPRESSION_BYTES
    writer.start()
    assert writer.close(60) == 0
    assert sum(sizes) == held
    assert max(sizes) * 1000 * 256 * 4 <= BATCH_BYTES
    with file_store.read() as db:
        ids = json.loads(db.scalar(select(impressions.c.ids).limit(1)) or "")
    assert tuple(ids) == shown(0).ids


def test_rows_that_a_database_cannot_hold_are_counted_and_keep_nothing_out(
    store: Store, counts: Counts
) -> None:
    writer = counts.writer(store)
    for number in range(600):
        writer.put(exposure("lone \ud800 surrogate" if number == 3 else f"u{number}"))
    writer.start()
    assert writer.close(20) == 0
    assert stored(store) == 599
    assert counts.totals == (599, 1, 0)


def test_a_failure_that_cannot_be_reported_loses_nothing(tmp_path: Path, counts: Counts) -> None:
    """As where the operator's notice is a file on a full disk."""
    blocked = tmp_path / "state"
    blocked.write_text("a file where a directory is needed")
    store = Store(f"sqlite:///{blocked}/below.db")
    failed = threading.Event()

    def report(_: str) -> None:
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    store.on_failure = report
    writer = counts.writer(store)
    for number in range(1000):
        writer.put(exposure(f"u{number}"))
    writer.start()
    assert failed.wait(60)
    with pytest.raises(DatabaseUnavailable):  # and not the OSError, which would be a 500
        store.unit_counts(["prune20"])
    blocked.unlink()
    assert writer.close(60) == 0
    assert counts.totals == (1000, 0, 0)
    assert stored(store) == 1000
    store.close()


def test_what_is_left_at_the_end_counts_as_lost(tmp_path: Path, counts: Counts) -> None:
    (tmp_path / "file").write_text("")
    store = Store(f"sqlite:///{tmp_path / 'file' / 'below.db'}")
    writer = counts.writer(store)
    writer.start()
    for number in range(5):
        writer.put(exposure(f"u{number}"))
    writer.put(shadowed(0.01))
    assert writer.close(0.05) == 6
    assert counts.totals == (0, 5, 1)
    assert writer.close(0) == 0
    store.close()


KILLED = """
import os, signal, sys
from headroom.service.experiments.events import Exposure
from headroom.service.observe.metrics import Metrics
from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.store import Store
from headroom.service.experiments.writer import Writer

metrics = Metrics()
writer = Writer(Store(sys.argv[1]), metrics, capacity=400, interval_s=0.01)
writer.start()
put = 0
while put < 5000:
    put += writer.put(Exposure("prune20", f"u{put}", "control", 1, 1.0, "v"))
print(put, writer.depth, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_loses_at_most_what_depth_says(url: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, url], capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    put, depth = map(int, killed.stdout.split())
    assert depth <= 400
    with closing(Store(url)) as store:
        assert put - depth <= stored(store) <= put


async def test_what_is_lost_at_the_end_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The metric that counts it ends with its process, before anybody scrapes it."""
    (tmp_path / "file").write_text("")
    live = live_of(Store(f"sqlite:///{tmp_path / 'file' / 'below.db'}"))
    live.apply((), "v")
    for number in range(5):
        live.writer.put(exposure(f"u{number}"))
    await live.close(0.05)
    assert "5 rows (exposures and lists) had not reached the database" in caplog.text

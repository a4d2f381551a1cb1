"""Lists are shown and clicked while replicas are killed and the database goes away.

No click counts twice or for the wrong arm, and what is lost is known: the end of a killed replica's lists,
and the clicks on them. For 10,000 lists:

    HEADROOM_CLICKED_LISTS=10000 pytest tests/service/experiments/test_click_losses.py
"""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.clicks import WAIT_SECONDS
from headroom.service.experiments.events import SentClick
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import clicks, early_clicks, impressions
from tests.service.experiments.making import experiment
from tests.service.experiments.postgres import Cluster

LISTS = int(os.environ.get("HEADROOM_CLICKED_LISTS", "2000"))
REPLICAS = 4
UNITS = LISTS // 10
ORDER = experiment(name="order", kind="interleave", metrics=[{"name": "click"}])
METRIC = ORDER.metrics[0]
TEAMS = ("ct-s", "tcs-", "s-ct", "ssss")

REPLICA = """
import sys, time
from headroom.service.experiments.events import Exposure, Impression
from headroom.service.experiments.interleaving import impression_id
from headroom.service.experiments.store import Store
from headroom.service.experiments.writer import Writer
from headroom.service.observe.metrics import Metrics

url, path, first, lists, units, *teams = sys.argv[1:]
metrics = Metrics()
store = Store(url)
key = store.impression_key()
writer = Writer(store, metrics, interval_s=0.05)
writer.start()
with open(path, "a") as shown:
    sys.stdin.read(1)
    for number in range(int(first), int(first) + int(lists)):
        unit = f"u{number % int(units)}"
        name = impression_id(key, "order", unit)
        by_index = teams[number % len(teams)]
        places = tuple(index for index, team in enumerate(by_index) if team != "-")
        writer.put(Exposure("order", unit, "interleaved", 7, 1.0, "v"))
        writer.put(Impression("order", name, unit, 2.0, "v", by_index, places))
        print(unit, name, by_index, file=shown, flush=True)
        time.sleep(0.002)
sys.exit(min(writer.close(120), 1))
"""


class Replica:
    """A process that shows lists once it is told to begin, and may be killed."""

    def __init__(self, url: str, file: Path, first: int, lists: int) -> None:
        self.file = file
        command = [sys.executable, "-c", REPLICA, url, file, first, lists, UNITS, *TEAMS]
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE)
        self._reading = threading.Lock()
        self._shown: list[tuple[str, str, str]] = []
        self._read = 0

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"!")
        self.process.stdin.close()

    def shown(self, after: int = 0) -> list[tuple[str, str, str]]:
        """The lists so far, without the first `after`: unit, impression, teams by index."""
        with self._reading:
            if self.file.exists():
                with self.file.open() as file:
                    file.seek(self._read)
                    lines, _, _ = file.read().rpartition("\n")
                if lines:
                    self._read += len(lines) + 1
                for line in lines.splitlines():
                    unit, impression, teams = line.split()
                    self._shown.append((unit, impression, teams))
            return self._shown[after:]


def indices(impression: str, teams: str) -> list[int]:
    """The titles of a list that get clicked: one or two of those shown."""
    places = [index for index, team in enumerate(teams) if team != "-"]
    clicked = {int(impression[digit], 16) % len(places) for digit in (0, 1)}
    return [places[place] for place in sorted(clicked)]


class Shop(threading.Thread):
    """Sends clicks on a replica's lists as they appear, each twice, and again whenever it got no answer."""

    def __init__(self, url: str, replica: Replica) -> None:
        super().__init__()
        self.store = Store(url)
        self.replica = replica
        self.accepted = 0
        self.sent: list[tuple[str, str, int]] = []
        self.refusals = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        done = 0
        while True:
            is_last = self.is_over.is_set()
            lists = self.replica.shown(done)
            done += len(lists)
            for start in range(0, len(lists), 100):
                self._click(lists[start : start + 100])
            if is_last and not lists:
                return
            time.sleep(0.05)

    def _click(self, lists: list[tuple[str, str, str]]) -> None:
        rows = []
        for unit, impression, teams in lists:
            for index in indices(impression, teams):
                self.sent.append((unit, impression, index))
                for copy in "ab":
                    name = f"{impression} {index} {copy}"
                    rows.append(SentClick("order", name, unit, "click", impression, 1.0, 3.0, index))
        while True:
            try:
                receipt = self.store.record_outcomes(rows, [ORDER])
            except DatabaseUnavailable:
                self.refusals += 1
                time.sleep(0.05)
                continue
            assert receipt.unknown == 0
            self.accepted += receipt.accepted
            return


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def stored(store: Store, table: Any, *columns: str) -> list[tuple[Any, ...]]:
    with store.read_all() as db:
        return [tuple(row) for row in db.execute(select(*(table.c[name] for name in columns)))]


@pytest.mark.slow
def test_kills_lose_no_more_than_a_buffer_and_credit_nobody_wrongly(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    share = LISTS // REPLICAS
    store = Store(url)
    store.prepare()
    replicas = [Replica(url, tmp_path / f"shown{n}", n * share, share) for n in range(REPLICAS)]
    shops = [Shop(url, replica) for replica in replicas]
    try:
        until(lambda: all(replica.file.exists() for replica in replicas))  # so that they begin together
        for replica, shop in zip(replicas, shops, strict=True):
            replica.begin()
            shop.start()
        until(lambda: all(len(replica.shown()) > share // 4 for replica in replicas))
        killed = replicas[:2]
        for replica in killed:
            replica.process.send_signal(signal.SIGKILL)
        if url.startswith("postgresql"):
            cluster: Cluster = request.getfixturevalue("postgres")
            for _ in range(2):
                cluster.stop()
                time.sleep(0.3)
                cluster.start()
                time.sleep(0.3)
        # New replicas take the place of those that were killed.
        for number, replica in enumerate(killed):
            assert replica.process.wait(60) == -signal.SIGKILL
            first = number * share + len(replica.shown())
            rest = share - len(replica.shown())
            replicas.append(Replica(url, tmp_path / f"shown{len(replicas)}", first, rest))
            replicas[-1].begin()
            shops.append(Shop(url, replicas[-1]))
            shops[-1].start()
        assert [replica.process.wait(300) for replica in replicas[2:]] == [0] * REPLICAS
    finally:
        for replica in replicas:
            replica.process.kill()
            replica.process.wait(60)
        for shop in shops:
            shop.is_over.set()
            shop.join(300)
            shop.store.close()

    lists = [row for replica in replicas for row in replica.shown()]
    assert len(lists) == LISTS
    has_impression = {impression for (impression,) in stored(store, impressions, "id")}
    for replica in replicas:
        is_stored = [impression in has_impression for _, impression, _ in replica.shown()]
        if replica in killed:  # only the end of its lists may be missing
            assert is_stored == sorted(is_stored, reverse=True)
        else:
            assert all(is_stored)
    lost: list[int] = []
    store.on_lost_clicks = lost.append
    store.settle_early_clicks(time.time())
    sent = [each for shop in shops for each in shop.sent]
    counted = stored(store, clicks, "unit", "impression", "index")
    assert sorted(counted) == sorted(each for each in sent if each[1] in has_impression)
    waiting = stored(store, early_clicks, "unit", "impression", "index")
    assert sorted(waiting) == sorted(each for each in sent if each[1] not in has_impression)
    # Each click was accepted once. An answer that was lost with the database makes it a duplicate.
    accepted = sum(shop.accepted for shop in shops)
    assert accepted <= len(sent)
    if not sum(shop.refusals for shop in shops):
        assert accepted == len(sent)
    store.settle_early_clicks(time.time() + WAIT_SECONDS + 1)
    assert sum(lost) == len(waiting)

    team = {impression: teams for _, impression, teams in lists}
    credit: defaultdict[str, list[int]] = defaultdict(list)
    for unit, impression, index in counted:
        if team[impression][index] != "s":
            credit[unit].append(1 if team[impression][index] == "t" else -1)
    values = [sum(each) / len(each) for each in credit.values()]
    tally = store.preferences(ORDER, METRIC, math.inf, time.time())
    assert tally.impressions == len(has_impression)
    assert tally.units == len(values)
    assert tally.wins == sum(value > 0 for value in values)
    assert tally.losses == sum(value < 0 for value in values)
    assert tally.total == pytest.approx(sum(values))
    store.close()

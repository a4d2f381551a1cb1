"""A shop over HTTP while a replica is killed and the database is away: what becomes of each click.

No click counts twice. A click that does not count is `unmatched` in the report: its list was lost with the
replica.
"""

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from headroom.service.experiments.export import page
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import impressions
from tests.checkpoints import WORDS
from tests.service.client import metric
from tests.service.experimenting import config
from tests.service.running import LIVE, PATIENCE_S, Server

pytestmark = pytest.mark.more

LISTS = 300
AT_ONCE = 16
TITLES = [" ".join(WORDS[start : start + 4]) for start in range(20)]
CLICKS_AT_ONCE = 9
DOWN_S = 5.0
"""Longer than a writer waits for SQLite's lock."""

Click = tuple[str, str, int]
"""Unit, impression, and the clicked title's index."""
Body = dict[str, Any]


@pytest.fixture
def shop_server(two: Server) -> Iterator[Server]:
    """The server has an interleaved experiment."""
    two.edit(config(kind="interleave", metrics=[{"name": "click"}]))
    yield two
    two.edit(LIVE)


@dataclass
class Shop:
    """Asks for lists, and sends the clicks on a few of them twice, again whenever it got no answer.

    shown_at: when each list's answer came. accepted: how many clicks receipts accepted. refusals: how often
    it asked again.
    """

    http: httpx.AsyncClient
    shown_at: dict[str, float] = field(default_factory=dict)
    sent: set[Click] = field(default_factory=set)
    accepted: int = 0
    refusals: int = 0

    async def post(self, path: str, body: Body) -> Body:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                answer = await self.http.post(path, json=body)
            except httpx.TransportError:
                self.refusals += 1
            else:
                if answer.status_code == 200:
                    document: Body = answer.json()
                    return document
                assert answer.status_code in (429, 500, 503), answer.text
                self.refusals += 1
            await asyncio.sleep(0.1)
        raise AssertionError(f"no answer from {path}")

    async def serve_unit(self, number: int) -> list[Body]:
        """Show a list to a unit. Return its clicks on one title or two, as outcomes."""
        unit = f"unit-{number % (LISTS // 3)}"
        own_id = str(uuid.uuid4()) if number % 2 else None
        body = {"query": "steel", "titles": TITLES, "unit": unit, "query_id": own_id}
        answer = await self.post("/v1/score", body)
        impression = answer["assignment"]["impression"]
        self.shown_at[impression] = time.monotonic()
        by_rank = sorted(answer["results"], key=lambda result: result["rank"])
        digits = sha256(impression.encode()).digest()
        clicked = [by_rank[place]["index"] for place in {digits[0] % 5, digits[1] % 5}]
        self.sent.update((unit, impression, index) for index in clicked)
        return [
            {
                "experiment": "prune20",
                "unit": unit,
                "metric": "click",
                "value": 1,
                "index": index,
                "impression": own_id or impression,
                "time": time.time(),
                "id": f"{impression} {index}",
            }
            for index in clicked
        ]

    async def click(self, outcomes: list[Body]) -> None:
        """Send clicks, twice."""
        for _ in range(2):
            receipt = await self.post("/v1/outcomes", {"outcomes": outcomes})
            self.accepted += receipt["accepted"]
            assert not receipt["unknown_outcomes"]


@contextmanager
def database_down(url: str) -> Iterator[None]:
    """Make the database refuse writes until the block ends, and for some seconds at least."""
    began = time.monotonic()
    options: dict[str, Any] = {"isolation_level": None, "timeout": 60, "check_same_thread": False}
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), **options)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        time.sleep(max(0.0, began + DOWN_S - time.monotonic()))
        db.execute("ROLLBACK")


async def kill_a_replica(shop: Shop, server: Server, url: str) -> float:
    """Take the database away, and kill a replica meanwhile. Return when that was."""

    async def shown(lists: float) -> None:
        while len(shop.shown_at) < lists:
            await asyncio.sleep(0.01)

    await shown(0.5 * LISTS)
    outage = database_down(url)
    await asyncio.to_thread(outage.__enter__)
    try:
        await shown(len(shop.shown_at) + 2 * AT_ONCE)  # some of them only the killed replica knows
        killed = time.monotonic()
        server.replicas()[0].kill()
    finally:
        await asyncio.to_thread(outage.__exit__, None, None, None)
    return killed


@pytest.mark.slow
async def test_each_click_counts_once_or_is_known_to_be_lost(shop_server: Server) -> None:
    server = shop_server
    file_url = f"sqlite:///{server.config.parent}/state/headroom/experiments.db"
    numbers = iter(range(LISTS))
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        shop = Shop(http)

        async def customers() -> None:
            clicked: list[Body] = []
            for number in numbers:
                clicked += await shop.serve_unit(number)
                if len(clicked) >= CLICKS_AT_ONCE:
                    senders.create_task(shop.click(clicked))
                    clicked = []
            if clicked:
                senders.create_task(shop.click(clicked))

        async with asyncio.TaskGroup() as senders:
            killing = senders.create_task(kill_a_replica(shop, server, file_url))
            for _ in range(AT_ONCE):
                senders.create_task(customers())
        deadline = time.monotonic() + PATIENCE_S
        while await metric(server.port, "headroom_exposure_buffer_rows") > 0:
            assert time.monotonic() < deadline, "the lists are not written in time"
            await asyncio.sleep(0.1)
        report = None
        while report is None:
            answer = await http.get("/v1/experiments/prune20")
            report = answer.json()["report"] if answer.status_code == 200 else None
    assert len(shop.shown_at) == LISTS
    assert shop.refusals, "nothing broke"
    with closing(Store(file_url)) as store:
        with store.read_all() as db:
            stored = set(db.scalars(select(impressions.c.id)))
        counted = counted_in(store)
    unstored = shop.shown_at.keys() - stored
    assert unstored, "nothing was lost"
    killed = killing.result()
    assert all(shop.shown_at[name] <= killed + 5 for name in unstored), "a living replica lost a list"
    assert sorted(counted) == sorted(click for click in shop.sent if click[1] in stored)
    # What does not count is in the report.
    lost = {click for click in shop.sent if click[1] in unstored}
    assert report["unmatched"] == ({"impression": len(lost)} if lost else {})
    assert shop.accepted <= len(shop.sent)  # once each; less if an answer went with a replica or the database


def counted_in(store: Store) -> list[Click]:
    """Return the stored clicks that are on a stored list."""
    counted: list[Click] = []
    after: str | None = ""
    while after is not None:
        found = page(store, "prune20", "clicks", after)
        names = [found.columns.index(name) for name in ("unit", "impression", "index")]
        for row in found.rows:
            unit, impression, index = (row[name] for name in names)
            if index is not None:
                counted.append((unit, impression, index))
        after = found.next
    return counted

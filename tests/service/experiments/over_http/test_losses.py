"""A shop over HTTP while replicas are killed and the database goes away: what becomes of each click.

No click counts twice or for the wrong arm. A click that does not count is `unmatched` in the report: its list
was lost with a replica. For 10,000 lists:

    HEADROOM_SHOP_LISTS=10000 pytest --timeout 3600 tests/service/experiments/over_http/test_losses.py
"""

import asyncio
import os
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from headroom.service.experiments.export import page
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import impressions
from tests.checkpoints import WORDS
from tests.service.client import metric
from tests.service.experimenting import config, draw_by_the_contract
from tests.service.experiments.postgres import Cluster
from tests.service.running import PATIENCE_S, Server

pytestmark = pytest.mark.more

LISTS = int(os.environ.get("HEADROOM_SHOP_LISTS", "300"))
EARLY_KILLS = LISTS // 4_000
"""Replicas that are killed before the one that dies with the database down."""
AT_ONCE = 16
QUERIES = ("angle bracket", "wood deck screws", "steel")
TITLES = [" ".join(WORDS[start : start + 4]) for start in range(20)]
IDS = [f"sku-{index}" for index in range(len(TITLES))]
CLICKS_AT_ONCE = 9
SQLITE_DOWN_S = 5.0
"""Longer than a writer waits for SQLite's lock."""

Click = tuple[str, str, int]
"""Unit, impression, and the clicked title's index."""


@pytest.fixture
def server(tiny_checkpoint: Path, tmp_path: Path, url: str) -> Iterator[Server]:
    """Two replicas with an interleaved experiment."""
    live = config(kind="interleave", metrics=[{"name": "click"}])
    running = Server(
        tmp_path,
        tiny_checkpoint,
        live=live,
        replicas=2,
        environment={"HEADROOM_DATABASE_URL": url, "HEADROOM_SERVICE_NAME": "shop"},
    )
    try:
        assert running.wait_until_ready(), running.stderr
        yield running
    finally:
        running.kill()


@dataclass
class Shop:
    """Asks for lists, and sends the clicks on a few of them twice, again whenever it got no answer.

    teams: of each list, by the title's index, as the contract draws it. shown_at: when its answer came.
    accepted: how many clicks receipts accepted. known: those that one accepted or knew already.
    """

    http: httpx.AsyncClient
    raw_scores: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    teams: dict[str, str] = field(default_factory=dict)
    shown_at: dict[str, float] = field(default_factory=dict)
    sent: set[Click] = field(default_factory=set)
    accepted: int = 0
    known: set[Click] = field(default_factory=set)
    refusals: int = 0

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                answer = await self.http.post(path, json=body)
            except httpx.TransportError:
                self.refusals += 1
            else:
                if answer.status_code == 200:
                    document: dict[str, Any] = answer.json()
                    return document
                assert answer.status_code in (429, 500, 503), answer.text
                self.refusals += 1
            await asyncio.sleep(0.1)
        raise AssertionError(f"no answer from {path}")

    async def learn(self) -> None:
        """Ask for both arms' scores, from which the contract draws each list."""
        for query in QUERIES:
            by_variant = []
            for variant in ("full", "cut"):
                answer = await self.post("/v1/score", {"query": query, "titles": TITLES, "variant": variant})
                scores = [result["raw_score"] for result in answer["results"]]
                ranked = sorted(scores)
                gaps = [high - low for low, high in pairwise(ranked)]
                if min(gaps) > 1e-5:  # else the pairs beside them may turn them round
                    by_variant.append(scores)
            if len(by_variant) == 2:
                self.raw_scores[query] = (by_variant[0], by_variant[1])
        assert self.raw_scores, "no query's order is certain"

    async def serve_unit(self, number: int) -> list["Sent"]:
        """Show a list to a unit. Return its clicks on one title or two."""
        queries = list(self.raw_scores)
        query = queries[number % len(queries)]
        unit = f"unit-{number % max(1, LISTS // 3)}"
        own_id = str(uuid.uuid4()) if number % 2 else None
        body = {"query": query, "titles": TITLES, "ids": IDS, "unit": unit, "query_id": own_id}
        answer = await self.post("/v1/score", body)
        impression = answer["assignment"]["impression"]
        order, drawn = draw_by_the_contract(unit, *self.raw_scores[query], query)
        results = sorted(answer["results"], key=lambda result: result["rank"])
        assert [result["index"] for result in results] == order
        teams = ["-"] * len(order)
        for index, team in zip(order, drawn, strict=True):
            teams[index] = team
        self.teams[impression] = "".join(teams)
        self.shown_at[impression] = time.monotonic()
        digits = sha256(impression.encode()).digest()
        return [
            Sent((unit, impression, order[place]), own_id, place + 1)
            for place in sorted({digits[0] % 5, digits[1] % 5})
        ]

    async def click(self, clicked: Sequence["Sent"]) -> None:
        """Send clicks, twice: every third as an outcome, the others as events with a rank or an object."""
        outcomes = [sent for number, sent in enumerate(clicked) if number % 3 == 0]
        events = [sent for number, sent in enumerate(clicked) if number % 3]
        self.sent.update(sent.click for sent in clicked)
        for _ in range(2):
            await self._send("/v1/outcomes", outcomes, {"outcomes": [sent.outcome() for sent in outcomes]})
            await self._send("/v1/ubi/events", events, {"events": [sent.event() for sent in events]})

    async def _send(self, path: str, clicked: Sequence["Sent"], body: dict[str, Any]) -> None:
        if not clicked:
            return
        receipt = await self.post(path, body)
        self.accepted += receipt["accepted"]
        assert not receipt["unknown_outcomes"]
        self.known.update(sent.click for sent in clicked)


@dataclass(frozen=True)
class Sent:
    """A click, the shop's own id of the list if its request had one, and the title's rank."""

    click: Click
    own_id: str | None
    rank: int

    def outcome(self) -> dict[str, Any]:
        unit, impression, index = self.click
        return {
            "experiment": "prune20",
            "unit": unit,
            "metric": "click",
            "value": 1,
            "index": index,
            "impression": self.own_id or impression,
            "time": time.time(),
            "id": f"{impression} {index}",
        }

    def event(self) -> dict[str, Any]:
        unit, impression, index = self.click
        what = (
            {"position": {"ordinal": self.rank}} if self.rank % 2 else {"object": {"object_id": IDS[index]}}
        )
        return {
            "action_name": "click",
            "query_id": self.own_id or impression,
            "client_id": unit,
            "timestamp": time.time(),
            "event_attributes": what,
        }


@contextmanager
def database_down(url: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the database refuse writes until the block ends, and for some seconds at least."""
    began = time.monotonic()
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        options: dict[str, Any] = {"isolation_level": None, "timeout": 60, "check_same_thread": False}
        with closing(sqlite3.connect(path, **options)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            time.sleep(max(0.0, began + SQLITE_DOWN_S - time.monotonic()))
            db.execute("ROLLBACK")
    else:
        cluster: Cluster = request.getfixturevalue("postgres")
        cluster.stop()
        try:
            yield
        finally:
            cluster.start()


async def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.1)


async def break_things(shop: Shop, server: Server, url: str, request: pytest.FixtureRequest) -> float:
    """Kill replicas, then the database, and a replica while it is down. Return when that was."""

    async def shown(lists: float) -> None:
        while len(shop.teams) < lists:
            await asyncio.sleep(0.01)

    for number in range(EARLY_KILLS):
        await shown((0.1 + 0.2 * number) * LISTS)
        server.replicas()[0].kill()
    await shown(0.5 * LISTS)
    outage = database_down(url, request)
    await asyncio.to_thread(outage.__enter__)
    try:
        await shown(len(shop.teams) + 2 * AT_ONCE)  # some of them only the killed replica knows
        killed = time.monotonic()
        server.replicas()[0].kill()
    finally:
        await asyncio.to_thread(outage.__exit__, None, None, None)
    return killed


def rows(store: Store, table: Any, *columns: str) -> list[tuple[Any, ...]]:
    with store.read_all() as db:
        return [tuple(row) for row in db.execute(select(*(table.c[name] for name in columns)))]


async def written(server: Server) -> bool:
    return await metric(server.port, "headroom_exposure_buffer_rows") == 0


def credits_of(counted: list[Click], teams: dict[str, str]) -> dict[str, float]:
    """Return each unit's credit by the client's own teams."""
    by_unit: defaultdict[str, list[int]] = defaultdict(list)
    for unit, impression, index in counted:
        if teams[impression][index] != "s":
            by_unit[unit].append(1 if teams[impression][index] == "t" else -1)
    return {unit: sum(values) / len(values) for unit, values in by_unit.items()}


@pytest.mark.slow
async def test_each_click_counts_once_for_its_arm_or_is_known_to_be_lost(
    server: Server, url: str, request: pytest.FixtureRequest
) -> None:
    numbers = iter(range(LISTS))
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        shop = Shop(http)
        await shop.learn()

        async def customers() -> None:
            clicked: list[Sent] = []
            for number in numbers:
                clicked += await shop.serve_unit(number)
                if len(clicked) >= CLICKS_AT_ONCE:
                    senders.create_task(shop.click(clicked))
                    clicked = []
            senders.create_task(shop.click(clicked))

        async with asyncio.TaskGroup() as senders:
            breaking = senders.create_task(break_things(shop, server, url, request))
            for _ in range(AT_ONCE):
                senders.create_task(customers())
        killed = breaking.result()
        deadline = time.monotonic() + PATIENCE_S
        while not await written(server):
            assert time.monotonic() < deadline, "the lists are not written in time"
            await asyncio.sleep(0.1)
        detail = None
        store = Store(url, service=None)
        while detail is None or detail["report"] is None:
            answer = await http.get("/v1/experiments/prune20")
            detail = answer.json() if answer.status_code == 200 else None
    try:
        await reconcile(shop, store, killed, detail["report"]["unmatched"])
        expected = credits_of([*counted_in(store)], shop.teams)
        preference = detail["preference"]
        assert preference["units"] == len(expected)
        assert preference["wins"] == sum(value > 0 for value in expected.values())
        assert preference["losses"] == sum(value < 0 for value in expected.values())
        assert preference["estimate"] == pytest.approx(sum(expected.values()) / len(expected))
    finally:
        store.close()


def counted_in(store: Store) -> set[Click]:
    """Return the clicks that are on a stored list."""
    counted: set[Click] = set()
    after: str | None = ""
    while after is not None:
        found = page(store, "prune20", "clicks", after)
        names = [found.columns.index(name) for name in ("unit", "impression", "index")]
        for row in found.rows:
            unit, impression, index = (row[name] for name in names)
            if index is not None:
                counted.add((unit, impression, index))
        after = found.next
    return counted


async def reconcile(shop: Shop, store: Store, killed: float, unmatched: dict[str, int]) -> None:
    """Check the fate of each click against the database and the report."""
    assert len(shop.teams) == LISTS
    assert shop.refusals, "nothing broke"
    stored_teams = dict(rows(store, impressions, "id", "teams_by_index"))
    # A list that is stored was shown, and holds the arms that the client computes from the contract.
    assert {name: shop.teams[name] for name in stored_teams.keys() & shop.teams.keys()} == {
        name: stored_teams[name] for name in stored_teams.keys() & shop.teams.keys()
    }
    unstored = shop.teams.keys() - stored_teams.keys()
    assert unstored, "nothing was lost"
    assert all(shop.shown_at[name] <= killed + 5 for name in unstored), "a living replica lost a list"
    counted = counted_in(store)
    assert counted == {click for click in shop.sent if click[1] in stored_teams}
    # What does not count is in the report.
    lost = {click for click in shop.sent if click[1] in unstored}
    assert unmatched == ({"impression": len(lost)} if lost else {})
    assert shop.sent == shop.known
    assert shop.accepted <= len(shop.sent)  # once each; less if an answer went with a replica or the database
    print(
        f"{LISTS:,} lists, {len(unstored)} of them lost with a replica; {len(shop.sent):,} clicks: "
        f"{len(counted):,} count, {len(lost)} are unmatched; {shop.refusals:,} requests were sent again"
    )

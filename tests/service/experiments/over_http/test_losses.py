"""A shop over HTTP while replicas are killed and the database goes away: what becomes of each click.

No click counts twice or for the wrong arm. A click that does not count is known: its receipt says so, or
`headroom_clicks_lost_total` has it. For 10,000 lists:

    HEADROOM_SHOP_LISTS=10000 pytest --timeout 3600 tests/service/experiments/over_http/test_losses.py
"""

import asyncio
import os
import sqlite3
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import clicks, early_clicks, impressions
from tests.checkpoints import WORDS
from tests.service.client import metric
from tests.service.experimenting import config, draw_by_the_contract
from tests.service.experiments.postgres import Cluster
from tests.service.running import PATIENCE_S, Server

LISTS = int(os.environ.get("HEADROOM_SHOP_LISTS", "300"))
EARLY_KILLS = LISTS // 4_000
"""Replicas that are killed before the one that dies with the database down."""
AT_ONCE = 16
QUERIES = ("angle bracket", "wood deck screws", "steel")
TITLES = [" ".join(WORDS[start : start + 4]) for start in range(20)]
IDS = [f"sku-{index}" for index in range(len(TITLES))]
SQLITE_DOWN_S = 5.0
"""Longer than a writer waits for SQLite's lock."""
POSTGRES_DOWN_S = 2.0

Click = tuple[str, str, int]
"""Unit, impression, and the clicked title's index."""


@pytest.fixture
def server(tiny_checkpoint: Path, tmp_path: Path, url: str) -> Iterator[Server]:
    """Two replicas with an interleaved experiment."""
    live = config(kind="interleave", metrics=[{"name": "click"}])
    running = Server(
        tmp_path, tiny_checkpoint, live=live, replicas=2, environment={"HEADROOM_DATABASE_URL": url}
    )
    try:
        assert running.wait_until_ready(), running.stderr
        yield running
    finally:
        running.kill()


@dataclass
class Shop:
    """Asks for lists, and sends each click twice, again whenever it got no answer.

    teams: of each list, by the title's index, as the contract draws it. shown_at: when its answer came.
    accepted: the clicks that receipts accepted, in their order. known: those that one accepted or knew.
    told: those that one did not keep.
    """

    http: httpx.AsyncClient
    raw_scores: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    teams: dict[str, str] = field(default_factory=dict)
    shown_at: dict[str, float] = field(default_factory=dict)
    sent: set[Click] = field(default_factory=set)
    accepted: list[Click] = field(default_factory=list)
    known: set[Click] = field(default_factory=set)
    told: set[Click] = field(default_factory=set)
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

    async def serve_unit(self, number: int) -> None:
        """Show a list to a unit, which clicks one title or two."""
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
        for place in sorted({digits[0] % 5, digits[1] % 5}):
            await self.click(unit, impression, own_id, order[place], place + 1, digits[2] % 3)

    async def click(
        self, unit: str, impression: str, own_id: str | None, index: int, rank: int, way: int
    ) -> None:
        """Send a click twice, as an outcome or as an event that names the rank or the object."""
        name = own_id or impression
        click = (unit, impression, index)
        self.sent.add(click)
        what = {"position": {"ordinal": rank}} if way == 1 else {"object": {"object_id": IDS[index]}}
        event = {
            "action_name": "click",
            "query_id": name,
            "client_id": unit,
            "timestamp": time.time(),
            "event_attributes": what,
        }
        outcome = {"experiment": "prune20", "unit": unit, "metric": "click", "value": 1, "index": index}
        outcome |= {"impression": name, "time": time.time(), "id": f"{impression} {index}"}
        for _ in range(2):
            if way:
                receipt = await self.post("/v1/ubi/events", {"events": [event]})
            else:
                receipt = await self.post("/v1/outcomes", {"outcomes": [outcome]})
            if receipt["accepted"]:
                self.accepted.append(click)
            if receipt["accepted"] or receipt["duplicates"]:
                self.known.add(click)
            if receipt["unknown"]:
                assert own_id is not None, receipt
                self.told.add(click)


def take_down(url: str, request: pytest.FixtureRequest) -> None:
    """Make the database refuse writes for some seconds."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as db:
            db.execute("BEGIN IMMEDIATE")
            time.sleep(SQLITE_DOWN_S)
            db.execute("ROLLBACK")
    else:
        cluster: Cluster = request.getfixturevalue("postgres")
        cluster.stop()
        time.sleep(POSTGRES_DOWN_S)
        cluster.start()


async def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.1)


async def break_things(shop: Shop, server: Server, url: str, request: pytest.FixtureRequest) -> float:
    """Kill replicas, then the database, and a replica while it is down. Return when that was."""

    async def shown(share: float) -> None:
        while len(shop.teams) < share * LISTS:
            await asyncio.sleep(0.01)

    for number in range(EARLY_KILLS):
        await shown(0.1 + 0.2 * number)
        server.replicas()[0].kill()
    await shown(0.5)
    outage = asyncio.create_task(asyncio.to_thread(take_down, url, request))
    before = len(shop.teams)
    while len(shop.teams) < before + 5 and not outage.done():
        await asyncio.sleep(0.01)
    killed = time.monotonic()
    server.replicas()[0].kill()
    await outage
    return killed


def rows(store: Store, table: Any, *columns: str) -> list[tuple[Any, ...]]:
    with store.read(seconds=60) as db:
        return [tuple(row) for row in db.execute(select(*(table.c[name] for name in columns)))]


def unsettled(store: Store) -> int:
    """Return how many clicks wait although their list is stored."""
    with store.read() as db:
        ids = select(impressions.c.id)
        return int(
            db.scalar(
                select(func.count()).select_from(early_clicks).where(early_clicks.c.impression.in_(ids))
            )
            or 0
        )


def expire_early_clicks(store: Store) -> None:
    """Let an hour pass for the clicks that wait."""
    with store._write() as db:
        db.execute(update(early_clicks).values(expires=0.0))


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
            for number in numbers:
                await shop.serve_unit(number)

        breaking = asyncio.create_task(break_things(shop, server, url, request))
        await asyncio.gather(*(customers() for _ in range(AT_ONCE)))
        killed = await breaking
        deadline = time.monotonic() + PATIENCE_S
        while not await written(server):
            assert time.monotonic() < deadline, "the lists are not written in time"
            await asyncio.sleep(0.1)
        detail = None
        store = Store(url)
        await until(lambda: not unsettled(store))
        while detail is None or detail["report"] is None:
            answer = await http.get("/v1/experiments/prune20")
            detail = answer.json() if answer.status_code == 200 else None
    try:
        await reconcile(shop, server, store, killed)
        expected = credits_of([*counted_in(store)], shop.teams)
        preference = detail["preference"]
        assert preference["units"] == len(expected)
        assert preference["wins"] == sum(value > 0 for value in expected.values())
        assert preference["losses"] == sum(value < 0 for value in expected.values())
        assert preference["estimate"] == pytest.approx(sum(expected.values()) / len(expected))
    finally:
        store.close()


def counted_in(store: Store) -> list[Click]:
    return [
        (str(unit), str(name), int(index))
        for unit, name, index in rows(store, clicks, "unit", "impression", "index")
    ]


async def reconcile(shop: Shop, server: Server, store: Store, killed: float) -> None:
    """Check the fate of each click against the database and the metrics."""
    assert len(shop.teams) == LISTS
    assert shop.refusals, "nothing broke"
    stored_teams = dict(rows(store, impressions, "id", "teams_by_index"))
    # A list that is stored was shown, and holds the arms that the client computes from the contract.
    assert {name: shop.teams[name] for name in stored_teams.keys() & shop.teams.keys()} == {
        name: stored_teams[name] for name in stored_teams.keys() & shop.teams.keys()
    }
    unstored = shop.teams.keys() - stored_teams.keys()
    assert all(shop.shown_at[name] <= killed + 1 for name in unstored), "a living replica lost a list"
    counted = counted_in(store)
    assert sorted(counted) == sorted(click for click in shop.sent if click[1] in stored_teams)
    # What does not count waits for its list if it was accepted, and else its sender was told.
    lost = {click for click in shop.sent if click[1] in unstored}
    waiting = rows(store, early_clicks, "impression", "is_certain")
    certain = sum(is_certain for _, is_certain in waiting)
    assert {name for name, _ in waiting} <= unstored
    assert lost <= shop.known | shop.told
    assert certain == len(lost & shop.known)
    # A click is accepted once, unless the answer went with a replica or the database.
    assert len(shop.accepted) == len(set(shop.accepted))
    await asyncio.to_thread(expire_early_clicks, store)
    await until(lambda: not rows(store, early_clicks, "id"))
    assert await metric(server.port, "headroom_clicks_lost_total") == certain
    print(
        f"{LISTS:,} lists, {len(unstored)} of them lost with a replica; {len(shop.sent):,} clicks: "
        f"{len(counted):,} count, {certain} are counted as lost, {len(lost) - certain} were refused; "
        f"{shop.refusals:,} requests were sent again"
    )

"""Clicks on interleaved lists as shops send them, and the export, over HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headroom.service.config.settings import LiveConfig
from headroom.service.experiments.events import Exposure, Impression
from headroom.service.experiments.export import page
from headroom.service.experiments.interleaving import impression_id
from tests.checkpoints import WORDS
from tests.service.experimenting import BOSS, KEYS, USER, config, eventually
from tests.service.in_process import QUERY, Service, serve


@pytest.fixture
async def shop(tiny_checkpoint: Path, file_url: str) -> AsyncIterator[Service]:
    """A service with an interleaving experiment."""
    metrics = [{"name": "click"}, {"name": "add_to_cart", "window_hours": 1.0}]
    live = config(kind="interleave", metrics=metrics)
    async with serve(tiny_checkpoint, live, database_url=file_url, api_keys=KEYS) as running:
        running.http.headers.update(USER)
        yield running


def show(shop: Service, unit: str = "user-1", ids: tuple[str, ...] | None = None) -> str:
    """Let a unit see the treatment's title 2, control's 0, and the shared 1; return the impression."""
    name = impression_id("prune20", unit)
    writer = shop.replica.live.writer
    assert writer.put(Exposure("prune20", unit, "interleaved", 7, time.time(), "v"))
    assert writer.put(Impression("prune20", name, unit, time.time(), "v", "cst-", (2, 0, 1), ids))
    return name


async def flushed(shop: Service) -> None:
    await asyncio.to_thread(shop.replica.live.writer.flush, 60)


def outcome(impression: str, index: int = 2, **more: Any) -> dict[str, Any]:
    fields = {"experiment": "prune20", "unit": "user-1", "metric": "click", "value": 1, "time": time.time()}
    return fields | {"id": f"{impression} {index}", "impression": impression, "index": index} | more


def ubi(impression: str, *, attributes: Any = None, **more: Any) -> dict[str, Any]:
    """An event as UBI 1.3 writes it, with fields that nobody here reads."""
    return {
        "application": "shop",
        "action_name": "click",
        "query_id": impression,
        "session_id": "s-1",
        "client_id": "user-1",
        "timestamp": "2026-11-20T14:00:00Z",
        "message_type": "CLICK_THROUGH",
        "message": "clicked",
        "user_query": "angle bracket",
        "event_attributes": attributes or {"position": {"ordinal": 1, "xy": {"x": 1, "y": 2}}},
    } | more


def counted(shop: Service) -> set[tuple[str, str, int]]:
    """The titles that were clicked on a list: unit, metric, index."""
    found = page(shop.replica.live.ledger.store, "prune20", "clicks")
    names = [found.columns.index(name) for name in ("unit", "metric", "index")]
    clicked = {tuple(row[name] for name in names) for row in found.rows}
    return {each for each in clicked if each[2] is not None}


async def test_a_click_counts_once_by_either_way(shop: Service) -> None:
    impression = show(shop, ids=("a", "b", "c", "d"))
    # Before the impression is written, or after: the answer is the same.
    first = await shop.post("/v1/outcomes", outcomes=[outcome(impression), outcome(impression, id="again")])
    assert (first["accepted"], first["duplicates"], first["unknown"]) == (2, 0, 0)
    await flushed(shop)
    await eventually(lambda: counted(shop) == {("user-1", "click", 2)})
    thing = {"object_id": "a", "object_id_field": "sku", "name": "angle"}
    events = [
        ubi(impression),  # rank 1 is title 2
        ubi(impression, attributes={"object": thing, "position": {"ordinal": 14.0}}),
        ubi(impression, attributes={"object": thing}, timestamp="2026-11-20T14:00:07+01:00"),
        ubi(impression, attributes={"object": {}}, object=thing, action_name="add_to_cart"),
    ]
    answer = await shop.http.post("/v1/ubi/events", json=events)
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    # Without ids in an event, a request's ids do not keep its rank from counting.
    assert (receipt["accepted"], receipt["duplicates"], receipt["unknown"]) == (4, 0, 0)
    replayed = await shop.post("/v1/ubi/events", events=events)
    assert (replayed["accepted"], replayed["duplicates"]) == (0, 4)
    assert counted(shop) == {
        ("user-1", "click", 2),
        ("user-1", "click", 0),
        ("user-1", "add_to_cart", 0),
    }


async def test_foreign_and_wrong_events_are_told_and_keep_no_other_out(shop: Service) -> None:
    impression = show(shop)
    await flushed(shop)
    wrong = [
        (ubi(impression, client_id="user-2"), "unit", "is not one of the unit 'user-2'"),
        (ubi(impression, attributes={"position": {"ordinal": 4}}), "index", "rank 4 was not shown"),
        (ubi(impression, action_name="page_exit"), "metric", "has no metric 'page_exit'"),
        (ubi(impression, attributes={"idleTimeoutMs": 5000}), "index", "neither position.ordinal nor"),
        (ubi(impression, attributes={"object": {"object_id": 7}}), "index", "titles and no ids"),
        (ubi(impression, client_id=None), "unit", "client_id is missing"),
        (
            {"action_name": "page_exit", "timestamp": "2026-11-20T14:00:00Z"},
            "impression",
            "query_id is missing",
        ),
    ]
    right = [ubi(impression), ubi("00112233-4455-6677-8899-aabbccddeeff")]  # whose list may still come
    now = time.time()  # a click without an experiment counts as unmatched from an experiment's start on
    events = [event | {"timestamp": now} for event in (*(each for each, *_ in wrong), *right)]
    receipt = await shop.post("/v1/ubi/events", events=events)
    assert (receipt["accepted"], receipt["unknown"]) == (2, len(wrong))
    for told, (_, reason, message) in zip(receipt["unknown_outcomes"], wrong, strict=True):
        assert (told["reason"], message in told["message"]) == (reason, True), told
    assert counted(shop) == {("user-1", "click", 2), ("user-1", "page_exit", 2)}
    report = (await shop.http.get("/v1/experiments/prune20")).json()["report"]
    assert report["unmatched"] == {"impression": 1, "unit": 1, "index": 2}
    assert "Clicks that count for nobody: 1 on no stored list, 1 on another unit's list" in report["text"]
    by_reason = {
        reason: f'headroom_clicks_unmatched_total{{reason="{reason}"}}' for reason in ("unit", "index")
    }
    assert [shop.metric(name) for name in by_reason.values()] == [1, 2]
    # An action that no experiment counts is kept, and counts once the config has its metric.
    edited = config(kind="interleave", metrics=[{"name": "page_exit"}])
    await asyncio.to_thread(shop.replica.apply, LiveConfig.model_validate(edited))
    preference = (await shop.http.get("/v1/experiments/prune20")).json()["preference"]
    assert (preference["metric"], preference["wins"], preference["losses"]) == ("page_exit", 1, 0)


WRONG_BODIES: list[tuple[str, Any, str | None, str]] = [
    ("outcomes", {"outcomes": [outcome("x") | {"index": None}]}, "outcomes[0].index", "index: missing"),
    ("ubi/events", [ubi("x")] * 1001, "events", "at most 1000"),
    ("ubi/events", [ubi("x", timestamp="now")], "events[0].timestamp", "seconds since 1970"),
    ("ubi/events", [{"query_id": "x"}], "events[0].action_name", "is missing"),
    ("ubi/events", "click", None, "JSON object"),
    (
        "ubi/events",
        [ubi("x", attributes={"object": {"object_id": "a\0"}})],
        "events[0].event_attributes.object.object_id",
        "must not hold a NUL",
    ),
]


async def test_a_wrong_body_is_one_sentence(shop: Service) -> None:
    for path, body, param, message in WRONG_BODIES:
        answer = await shop.http.post(f"/v1/{path}", json=body)
        assert answer.status_code == 422, answer.text
        error = answer.json()["error"]
        assert (error["param"], message in error["message"]) == (param, True), error


async def test_a_page_that_there_cannot_be_is_refused(shop: Service) -> None:
    for after in ("abc", "9" * 30, str(2**63), "-1", "1.5", "a\0"):
        path = "/v1/experiments/prune20/rows"
        answer = await shop.http.get(path, params={"after": after}, headers=BOSS)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (422, "after")
        assert error["message"].startswith("after: should be "), error


SHAPES = [
    ("/v1/score", "titles"),
    ("/v1/rerank", "documents"),
    ("/v2/rerank", "documents"),
    ("/rerank", "documents"),
    ("/rerank", "texts"),
    ("/", "texts"),
]


async def test_events_find_a_list_by_the_callers_own_query_id_in_every_shape(shop: Service) -> None:
    """OpenSearch's plugin makes the query_id, and the shop's events name that."""
    titles = [" ".join(WORDS[start : start + 4]) for start in range(4)]
    query_id = "00112233-4455-6677-8899-aabbccddeeff"
    shown = {}
    for number, (path, field) in enumerate(SHAPES):
        unit = f"user-{number}"
        impressions_of_unit = set()
        for _ in range(2):  # the search client sent the request again
            body = {"query": QUERY, field: titles, "unit": unit, "query_id": query_id}
            answer = await shop.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            impressions_of_unit.add(answer.headers["x-impression"])
        (shown[unit],) = impressions_of_unit
    assert len(set(shown.values())) == len(SHAPES)
    await flushed(shop)
    events = [ubi(query_id, client_id=unit) for unit in shown]
    second = {"position": {"ordinal": 2}}
    events += [ubi(shown["user-0"], client_id="user-0", attributes=second), ubi(query_id, client_id="u")]
    receipt = await shop.post("/v1/ubi/events", events=events)
    assert (receipt["accepted"], receipt["duplicates"], receipt["unknown"]) == (len(SHAPES) + 1, 0, 1)
    assert {unit for unit, _, _ in counted(shop)} == shown.keys()
    page = await shop.http.get("/v1/experiments/prune20/rows?source=impressions", headers=BOSS)
    rows = [dict(zip(page.json()["columns"], row, strict=True)) for row in page.json()["rows"]]
    assert {row["unit"]: row["query_id"] for row in rows} == dict.fromkeys(shown, query_id)
    assert len(rows) == 2 * len(SHAPES)

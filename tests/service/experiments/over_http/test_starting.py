"""Experiments that are begun, shipped and taken back without a file, on two replicas of one database."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.experiments.store import Store
from tests.service.experimenting import BOSS, KEYS, USER, arms, config, score
from tests.service.in_process import Service, serve

VARIANTS = [{"name": "full"}, {"name": "cut", "head_mask": "0.*", "sliced": True}]
LIVE: dict[str, Any] = {"variants": VARIANTS}
ENTRY: dict[str, Any] = {
    "name": "order",
    "salt": "2026-12",
    "arms": [{"name": "control", "variant": "full"}, {"name": "pruned", "variant": "cut"}],
}
UNITS = [f"user-{number}" for number in range(12)]


@asynccontextmanager
async def replica(
    model: Path, url: str, live: dict[str, Any] | None = None, nodes: int = 1
) -> AsyncIterator[Service]:
    async with serve(model, live or LIVE, nodes=nodes, database_url=url, api_keys=KEYS) as service:
        service.http.headers.update(USER)
        yield service


@pytest.fixture
async def one(tiny_checkpoint: Path, file_url: str) -> AsyncIterator[Service]:
    """A replica without an experiment."""
    async with replica(tiny_checkpoint, file_url) as service:
        yield service


async def post(service: Service, path: str = "", status: int = 200, **body: Any) -> dict[str, Any]:
    """POST below /v1/experiments as an admin, and return the answer or its error."""
    answer = await service.http.post(f"/v1/experiments{path}", json=body, headers=BOSS)
    assert answer.status_code == status, answer.text
    document: dict[str, Any] = answer.json()
    found: dict[str, Any] = document.get("error", document)
    return found


async def start(service: Service, status: int = 201, **changes: Any) -> dict[str, Any]:
    return await post(service, "", status, **(ENTRY | changes))


async def shown(service: Service, name: str = "order") -> dict[str, Any]:
    document: dict[str, Any] = (await service.http.get(f"/v1/experiments/{name}")).json()
    return document


async def until_listed(service: Service, name: str, status: str) -> None:
    deadline = time.monotonic() + 60
    while (await shown(service, name)).get("status") != status:
        assert time.monotonic() < deadline, await shown(service, name)
        await asyncio.sleep(0.02)


async def test_what_one_replica_starts_another_routes_and_a_new_one_knows_at_once(
    tiny_checkpoint: Path, url: str
) -> None:
    async with replica(tiny_checkpoint, url) as first, replica(tiny_checkpoint, url) as second:
        assert set(await arms(first, UNITS)) == {None}
        began = time.monotonic()
        started = await start(first)
        assert (started["status"], started["in_config"], started["paused"]) == ("running", False, None)
        assert [entry["kind"] for entry in started["history"]] == ["start"]
        assert started["history"][0]["actor"].startswith("key ")
        assert (await shown(second))["status"] == "running"  # also within the second
        on_first = await arms(first, UNITS)
        assert set(on_first) == {"control", "pruned"}
        await until_listed(second, "order", "running")
        assert time.monotonic() - began < 30  # a second, on an idle machine
        assert await arms(second, UNITS) == on_first
        outcome = {"experiment": "order", "unit": "user-0", "metric": "click", "value": 1}
        receipt = await second.post("/v1/outcomes", outcomes=[outcome | {"time": time.time(), "id": "o"}])
        assert receipt["accepted"] == 1
    async with replica(tiny_checkpoint, url) as third:
        assert await arms(third, UNITS) == on_first
        assert (await post(third, "/order/ramp", traffic=0))["traffic"] == 0
        assert set(await arms(third, UNITS)) == {None}


async def test_a_replica_without_the_variants_yet_gives_everybody_the_default(
    tiny_checkpoint: Path, file_url: str
) -> None:
    """Its units fell back from the arm, so it rolled the arm back for all; after a ship it answered 422."""
    old = {"variants": VARIANTS[:1]}
    async with (
        replica(tiny_checkpoint, file_url, old) as behind,
        replica(tiny_checkpoint, file_url) as ahead,
    ):
        await start(ahead, guardrails={"error_rate": 0.05, "min_requests": 20})
        await until_listed(behind, "order", "running")
        assert set(await arms(behind, UNITS)) == {None}
        assert (await score(behind, "user-1"))["variant"] == "full"
        await post(ahead, "/order/ship", arm="pruned")
        await asyncio.to_thread(behind.replica.live.ledger.refresh)
        assert [(await score(each))["variant"] for each in (behind, ahead)] == ["full", "cut"]
        behind.replica.apply(LiveConfig.model_validate(LIVE))
        assert (await score(behind))["variant"] == "cut"


async def test_names_that_nobody_started_cost_the_database_little(
    one: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = one.replica.live.ledger
    refreshes: list[float] = []
    refresh = ledger.refresh

    def counted() -> None:
        refreshes.append(time.monotonic())
        refresh()

    monkeypatch.setattr("headroom.service.experiments.ledger.REFRESH_SECONDS", 3600.0)
    monkeypatch.setattr(ledger, "refresh", counted)
    await start(one)
    refreshes.clear()
    answers = await asyncio.gather(*(one.http.get(f"/v1/experiments/nobody{index}") for index in range(40)))
    assert {answer.status_code for answer in answers} == {404}
    assert 1 <= len(refreshes) < 10


async def test_only_an_admin_starts_one(tiny_checkpoint: Path, one: Service, file_url: str) -> None:
    for body in (ENTRY, {}):
        refused = await one.http.post("/v1/experiments", json=body)
        assert refused.status_code == 403
    assert (await one.http.post("/v1/experiments", json=[], headers=BOSS)).status_code == 422
    async with serve(tiny_checkpoint, LIVE, database_url=file_url) as without_keys:
        for path, body in (("", ENTRY), ("/order/stop", {})):
            error = await without_keys.refused(f"/v1/experiments{path}", 403, **body)
            assert "HEADROOM_API_KEYS" in error["message"]
    assert set(await arms(one, UNITS)) == {None}


async def test_without_an_experiment_no_database_is_made(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "never" / "x.db"
    async with replica(tiny_checkpoint, f"sqlite:///{file}") as service:
        await asyncio.to_thread(service.replica.live.ledger.refresh)
        assert (await service.http.get("/v1/experiments")).json()["experiments"] == []
    assert not file.parent.exists()


async def test_of_several_nodes_none_starts_an_experiment_in_a_file_of_its_own(
    tiny_checkpoint: Path, url: str
) -> None:
    """With PostgreSQL all of them start it."""
    is_file = url.startswith("sqlite")
    edited = LiveConfig.model_validate(config())
    async with replica(tiny_checkpoint, url, nodes=2) as service:
        answer = await start(service, 409 if is_file else 201, slots=[0, 10])
        if is_file:
            assert "2 nodes serve together" in answer["message"]
            with pytest.raises(InvalidConfig, match="2 nodes serve together"):
                await asyncio.to_thread(service.replica.check, edited)
            assert not Path(url.removeprefix("sqlite:///")).exists()
    if is_file:
        async with replica(tiny_checkpoint, url) as alone:
            await start(alone)
        with pytest.raises(InvalidConfig, match=r"2 nodes .* HEADROOM_DATABASE_URL"):
            async with replica(tiny_checkpoint, url, nodes=2):
                pass
        with closing(Store(url)) as store:
            assert [entry.kind for entry in store.log()] == ["start"], "what is refused is not in the log"


async def test_names_slots_and_salts_that_are_taken_are_a_conflict(
    tiny_checkpoint: Path, file_url: str
) -> None:
    async with replica(tiny_checkpoint, file_url, config(slots=[0, 5000])) as service:
        assert (
            "there is an experiment 'prune20' already"
            in (await start(service, 409, name="prune20"))["message"]
        )
        overlap = await start(service, 409, slots=[4999, 10_000])
        assert overlap["message"] == (
            "slots: [4999, 10000) overlaps [0, 5000) of 'prune20'; give this one its own, or stop that one "
            "first."
        )
        await start(service, slots=[5000, 10_000])

        # Whoever is over has no slots any more, in the config or not; the name and its log stay.
        await post(service, "/order/stop")
        await start(service, name="b", salt="b", slots=[5000, 10_000])
        assert "already" in (await start(service, 409))["message"]
        await post(service, "/prune20/stop")
        await start(service, name="c", salt="c", slots=[0, 5000])
        experiments = {(await score(service, unit))["assignment"]["experiment"] for unit in UNITS}
        assert experiments == {"b", "c"}
        # Both go on under any edit that leaves them alone.
        edited = LiveConfig.model_validate(config(slots=[0, 5000], shadow=0.5))
        await asyncio.to_thread(service.replica.apply, edited)
        assert (await shown(service, "c"))["status"] == "running"


async def test_a_ship_is_rolled_back_and_shipped_again(one: Service) -> None:
    await start(one)
    refused = await post(one, "/order/rollback", 409)
    assert "'order' has shipped no arm, so there is nothing to roll back" in refused["message"]
    await post(one, "/order/ship", arm="pruned")
    assert [(await score(one, unit))["variant"] for unit in ("user-1", None)] == ["cut", "cut"]
    back = await post(one, "/order/rollback", reason="complaints")
    assert (back["status"], back["shipped"]) == ("stopped", None)
    assert back["history"][-1]["reason"] == "complaints"
    assert [(await score(one, unit))["variant"] for unit in ("user-1", None)] == ["full", "full"]
    assert "nothing to roll back" in (await post(one, "/order/rollback", 409))["message"]
    assert "is stopped already" in (await post(one, "/order/ramp", 409, traffic=0.5))["message"]
    again = await post(one, "/order/ship", arm="pruned")
    assert [entry["kind"] for entry in again["history"]] == ["start", "ship", "rollback", "ship"]
    assert (await score(one))["variant"] == "cut"
    await asyncio.to_thread(one.replica.live.ledger.refresh)
    assert (await score(one))["variant"] == "cut"

    # A new one may begin in its slots; its users get its arms, and all others what was shipped.
    await start(one, name="next", salt="next", traffic=0.5)
    answers = [await score(one, unit) for unit in UNITS]
    variants = {(answer["assignment"] or {"arm": None})["arm"]: answer["variant"] for answer in answers}
    assert variants == {"control": "full", "pruned": "cut", None: "cut"}
    refused = await post(one, "/next/ship", 409, arm="control")
    assert "'order' and 'next' would each have shipped an arm" in refused["message"]

"""OpenFeature's remote evaluation: what its clients read, as in the protocol's openapi.yaml."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.experimenting import BOSS, KEYS, USER, config, exposing_requests, score
from tests.service.in_process import Service, serve

PATH = "/ofrep/v1/evaluate/flags/prune20"


@pytest.fixture
async def service(tiny_checkpoint: Path, database_url: str) -> AsyncIterator[Service]:
    live = config(traffic=0.5)
    async with serve(tiny_checkpoint, live, database_url=database_url, api_keys=KEYS) as running:
        running.http.headers.update(USER)
        yield running


async def evaluate(service: Service, unit: str, path: str = PATH) -> dict[str, Any]:
    return await service.post(path, context={"targetingKey": unit, "country": "de"})


async def test_a_unit_follows_the_arm_of_its_scoring_requests_and_is_not_exposed(service: Service) -> None:
    units = [f"user-{number}" for number in range(30)]
    flags = {unit: await evaluate(service, unit) for unit in units}
    assert exposing_requests(service) == 0
    seen = set()
    for unit, flag in flags.items():
        answer = await score(service, unit)
        assignment = answer["assignment"]
        arm, reason = ("default", "DEFAULT") if assignment is None else (assignment["arm"], "SPLIT")
        assert flag == {"key": "prune20", "value": answer["variant"], "variant": arm, "reason": reason}
        seen.add(arm)
    assert seen == {"control", "pruned", "default"}


async def test_what_has_ended_says_so(service: Service) -> None:
    async def act(verb: str, **body: Any) -> None:
        answer = await service.http.post(f"/v1/experiments/prune20/{verb}", json=body, headers=BOSS)
        assert answer.status_code == 200, answer.text

    await act("ship", arm="pruned")
    shipped = {"key": "prune20", "value": "cut", "variant": "pruned", "reason": "STATIC"}
    assert await evaluate(service, "user-1") == shipped
    arms = [{"name": "control", "variant": "full"}, {"name": "same", "variant": "full"}]
    started = await service.http.post(
        "/v1/experiments", json={"name": "next", "salt": "next", "arms": arms}, headers=BOSS
    )
    assert started.status_code == 201, started.text
    assert (await score(service, "user-1"))["assignment"]["experiment"] == "next"
    assert await evaluate(service, "user-1") == shipped  # the arm and its variant, not another's
    await service.http.post("/v1/experiments/next/stop", json={}, headers=BOSS)
    await act("stop")
    stopped = {"key": "prune20", "value": "full", "variant": "default", "reason": "DISABLED"}
    assert await evaluate(service, "user-1") == stopped


async def test_the_flag_of_a_unit_of_another_experiment_has_what_everybody_gets(service: Service) -> None:
    """After a ship, 140 of 400 units got the default there, which no other request gets."""
    await service.http.post("/v1/experiments/prune20/ship", json={"arm": "pruned"}, headers=BOSS)
    arms = [{"name": "control", "variant": "full"}, {"name": "same", "variant": "full"}]
    for name, slots in (("b", [0, 5000]), ("c", [5000, 10_000])):
        entry = {"name": name, "salt": name, "arms": arms, "slots": slots}
        assert (await service.http.post("/v1/experiments", json=entry, headers=BOSS)).status_code == 201
    found = set()
    for number in range(20):
        flag = await evaluate(service, f"user-{number}", "/ofrep/v1/evaluate/flags/b")
        found.add((flag["value"], flag["reason"]))
    assert found == {("full", "SPLIT"), ("cut", "DEFAULT")}


async def test_a_unit_that_sees_both_arms_has_controls_variant(
    tiny_checkpoint: Path, database_url: str
) -> None:
    async with serve(tiny_checkpoint, config(kind="interleave"), database_url=database_url) as service:
        flag = {"key": "prune20", "value": "full", "variant": "interleaved", "reason": "SPLIT"}
        assert await evaluate(service, "user-1") == flag


async def test_all_flags_at_once_are_those_asked_for_one_by_one(service: Service) -> None:
    every = PATH.rpartition("/")[0]
    for unit in ("user-1", "user-2", "user-3"):
        assert (await evaluate(service, unit, every))["flags"] == [await evaluate(service, unit)]
    missing = await service.http.post(every, json={"context": {}})
    assert (missing.status_code, missing.json()["errorCode"]) == (400, "TARGETING_KEY_MISSING")
    assert list(missing.json()) == ["errorCode", "errorDetails"]


def failure(answer: httpx.Response, key: str = "prune20") -> tuple[int, str, str]:
    body = answer.json()
    assert list(body) == ["key", "errorCode", "errorDetails"]
    assert body["key"] == key
    return answer.status_code, body["errorCode"], body["errorDetails"]


async def test_every_failure_is_the_protocols(service: Service) -> None:
    unknown = await service.http.post(
        PATH.replace("prune20", "none"), json={"context": {"targetingKey": "u"}}
    )
    assert failure(unknown, "none") == (
        404,
        "FLAG_NOT_FOUND",
        "There is no experiment 'none' (known: prune20).",
    )
    missing = "context.targetingKey: is missing; it says whose arm is asked for"
    answer = await service.http.post(PATH, json={"context": {"country": "de"}})
    assert failure(answer) == (400, "TARGETING_KEY_MISSING", missing)
    answer = await service.http.post(PATH, json={"context": {"targetingKey": 3}})
    assert failure(answer) == (400, "INVALID_CONTEXT", "context.targetingKey: should be a string")
    broken = await service.http.post(PATH, content=b"{", headers={"content-type": "application/json"})
    assert failure(broken)[:2] == (400, "PARSE_ERROR")
    stranger = await service.http.post(PATH, json={}, headers={"authorization": "Bearer stranger"})
    assert failure(stranger)[:2] == (401, "GENERAL")
    assert (await service.http.get(PATH)).status_code == 405

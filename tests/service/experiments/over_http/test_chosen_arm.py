"""Arms that the caller chose itself: recorded and tested as assigned ones are."""

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import select

from headroom.service.experiments.tables import exposures
from tests.service.experimenting import (
    BOSS,
    KEYS,
    USER,
    config,
    exposing_requests,
    score,
)
from tests.service.in_process import QUERY, TITLES, serve


async def test_the_chosen_arms_variant_scores_and_the_unit_is_exposed_to_it_whatever_the_traffic(
    tiny_checkpoint: Path, file_url: str
) -> None:
    variants = {"control": "full", "pruned": "cut"}
    chosen = {f"user-{number}": list(variants)[number % 2] for number in range(10)}
    live = config(traffic=0.0)
    async with serve(tiny_checkpoint, live, database_url=file_url, api_keys=KEYS) as service:
        service.http.headers.update(USER)
        assert (await score(service, "user-1"))["assignment"] is None
        for unit, arm in chosen.items():
            answer = await score(service, unit, arm=arm)
            assert answer["variant"] == variants[arm]
            assigned = answer["assignment"]
            assert (assigned["experiment"], assigned["arm"], assigned["fallback"]) == ("prune20", arm, False)
            reranked = await service.post("/v1/rerank", query=QUERY, documents=TITLES, unit=unit, arm=arm)
            assert reranked["assignment"] == assigned
            named = await score(service, unit, arm=arm, experiment="prune20")
            assert named["results"] == answer["results"]
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        with service.replica.live.ledger.store.read() as db:
            stored = {(row.unit, row.arm, row.bucket) for row in db.execute(select(exposures))}
        assert stored == {(unit, arm, -1) for unit, arm in chosen.items()}
        shipped = await service.http.post(
            "/v1/experiments/prune20/ship", json={"arm": "control"}, headers=BOSS
        )
        assert shipped.status_code == 200, shipped.text
        answer = await score(service, "user-1", arm="pruned")
        assert (answer["variant"], answer["assignment"]) == ("full", None)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"arm": "nobody"}, "arm: there is no arm 'nobody'; there are control, pruned, other"),
    (
        {"arm": "pruned", "experiment": "other"},
        "experiment: there is no experiment 'other'; there are prune20, second",
    ),
    (
        {"arm": "control"},
        "experiment: is missing, and several experiments have an arm 'control': name one of prune20, second",
    ),
    ({"arm": "pruned", "unit": None}, "unit: is missing beside arm; say whose arm it is"),
    ({"experiment": "prune20"}, "arm: is missing beside experiment; name one of its arms"),
    ({"arm": "pruned", "variant": "full"}, "arm: give either an arm or a variant, not both"),
    (
        {"arm": "control", "experiment": "second"},
        "arm: the experiment 'second' is interleaved, so each of its units sees both arms; leave out arm",
    ),
]


async def test_a_wrong_arm_is_refused_in_one_sentence(tiny_checkpoint: Path, file_url: str) -> None:
    live = config(slots=[0, 5000])
    arms = [{"name": "control", "variant": "full"}, {"name": "other", "variant": "cut"}]
    second = {"name": "second", "kind": "interleave", "salt": "s", "arms": arms, "slots": [5000, 10_000]}
    live["experiments"].append(second)
    async with serve(tiny_checkpoint, live, database_url=file_url) as service:
        for body, said in WRONG:
            fields = {"query": QUERY, "unit": "user-1", **body}
            error = await service.refused("/v1/score", 422, titles=TITLES, **fields)
            assert error["message"] == said
        assert exposing_requests(service) == 0

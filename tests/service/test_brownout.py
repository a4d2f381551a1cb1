"""Brownout: while the queue is long, a cheaper variant answers, and the answer says so."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headroom import Classifier, HeadMask
from headroom.service.config.file import ConfigFileError
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.ray import preflight
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import config as experiment_config
from tests.service.experimenting import eventually, exposed
from tests.service.in_process import (
    CONFIG,
    LIMITS,
    LONG_QUEUE_TOKENS,
    QUERY,
    TITLES,
    long_queue,
    pairs,
    read_config,
    serve,
)

DEGRADE = {"above_queue_tokens": LONG_QUEUE_TOKENS, "variant": "cut"}


async def test_the_cheaper_variant_answers_while_the_queue_is_long_and_no_longer(
    tiny_checkpoint: Path, clf: Classifier
) -> None:
    config = CONFIG | {"degrade": DEGRADE}
    async with serve(tiny_checkpoint, config, **LIMITS) as service:
        before = await service.post("/v1/score", query=QUERY, titles=TITLES)
        async with long_queue(service):
            answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
        after = await service.post("/v1/score", query=QUERY, titles=TITLES)

        assert [(a["variant"], a["degraded"]) for a in (before, answer, after)] == [
            ("full", False),
            ("cut", True),
            ("full", False),
        ]
        mask = HeadMask.parse("random:0.5@7", layers=3, heads=4)
        assert answer["head_mask"]["id"] == mask.id
        expected = clf.score(pairs(), mask).score
        assert [row["score"] for row in answer["results"]] == pytest.approx(expected, abs=1e-5)
        assert service.metric("headroom_degraded_total") == 1
        assert service.metric('headroom_pairs_total{arm="",variant="cut"}') == len(TITLES)
        assert service.metric('headroom_shed_total{reason="queue_full"}') == 0


async def test_who_names_a_variant_or_a_mask_gets_it_however_long_the_queue(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG | {"degrade": DEGRADE}, **LIMITS) as service:
        async with long_queue(service):
            asked: list[dict[str, Any]] = [{"variant": "full"}, {"variant": "cut"}, {"head_mask": "none"}]
            named = [await service.post("/v1/score", query=QUERY, titles=TITLES, **name) for name in asked]
            column = (await service.post("/v1/compare", query=QUERY, titles=TITLES, masks=["none"]))[
                "columns"
            ][0]
        assert [(a["variant"], a["degraded"]) for a in named] == [
            ("full", False),
            ("cut", False),
            ("full", False),
        ]
        assert (column["variant"], column["degraded"]) == ("full", False)
        assert service.metric("headroom_degraded_total") == 0


async def test_other_clients_shapes_say_what_scored_and_that_it_stood_in(tiny_checkpoint: Path) -> None:
    tensor = {"datatype": "BYTES", "shape": [1]}
    asked: dict[str, dict[str, Any]] = {
        "/v2/rerank": {"query": QUERY, "documents": TITLES},
        "/rerank": {"query": QUERY, "texts": TITLES},
        "/v2/models/tiny/infer": {
            "inputs": [
                {"name": "query", **tensor, "data": [QUERY]},
                {"name": "title", **tensor, "data": ["a"]},
            ]
        },
    }
    async with serve(tiny_checkpoint, CONFIG | {"degrade": DEGRADE}, **LIMITS) as service:
        name = (await service.http.get("/v1/models")).json()["models"][0]["name"]
        asked[f"/v2/models/{name}/infer"] = asked.pop("/v2/models/tiny/infer")
        async with long_queue(service):
            answers = {path: await service.http.post(path, json=body) for path, body in asked.items()}
        after = await service.http.post("/v2/rerank", json=asked["/v2/rerank"])
        assert {answer.headers.get("x-degraded") for answer in answers.values()} == {"true"}
        assert answers["/v2/rerank"].json()["model"] == f"{name}@cut"
        assert "x-degraded" not in after.headers
        assert service.metric("headroom_degraded_total") == 3


async def test_a_unit_in_an_arm_is_scored_by_its_arm_and_exposed_others_are_degraded(
    tiny_checkpoint: Path, database_url: str
) -> None:
    """Else the same answers in all arms would make them look alike."""
    live = experiment_config(traffic=1.0) | {"degrade": DEGRADE}
    async with serve(tiny_checkpoint, live, database_url=database_url, **LIMITS) as service:
        async with long_queue(service):
            units = [
                await service.post("/v1/score", query=QUERY, titles=TITLES[:1], unit=f"u{number}")
                for number in range(20)
            ]
            other = await service.post("/v1/score", query=QUERY, titles=TITLES[:1])
        assert {(a["assignment"]["arm"], a["variant"], a["degraded"]) for a in units} == {
            ("control", "full", False),
            ("pruned", "cut", False),
        }
        assert (other["assignment"], other["variant"], other["degraded"]) == (None, "cut", True)
        await eventually(lambda: len(exposed(database_url)) == 20)


async def test_a_cascade_stands_in_and_an_edit_ends_it(tiny_checkpoint: Path) -> None:
    cascade = {"name": "cut", "cascade": [{"variant": "masked", "keep": 1}, {"variant": "full"}]}
    config = {"variants": [*CONFIG["variants"][:2], cascade]}
    async with serve(tiny_checkpoint, config | {"degrade": DEGRADE}, **LIMITS) as service:
        async with long_queue(service):
            answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
            await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate(config))
            edited = await service.post("/v1/score", query=QUERY, titles=TITLES)
        assert (answer["variant"], answer["degraded"]) == ("cut", True)
        assert [stage["pairs"] for stage in answer["stages"]] == [4, 1]
        assert (edited["variant"], edited["degraded"]) == ("full", False)
        assert service.metric("headroom_degraded_total") == 1


CUT = {"name": "cut", "head_mask": "0.*"}


def test_a_brownout_that_the_service_could_not_do_is_refused_before_the_start(
    tiny_checkpoint: Path,
) -> None:
    def check(tokens: int, variant: dict[str, Any], **arguments: Any) -> None:
        degrade = {"above_queue_tokens": tokens, "variant": "cut"}
        live = {"variants": [{"name": "full"}, variant], "degrade": degrade}
        config = read_config(live, model=str(tiny_checkpoint), device="cpu", **arguments)
        preflight.check(Path("serve.yaml"), config, print)

    check(65_535, CUT)
    check(499, CUT, max_queue_tokens=500)
    with pytest.raises(ConfigFileError, match=r"above_queue_tokens: 500 is not below max_queue_tokens, 500"):
        check(500, CUT, max_queue_tokens=500)
    with pytest.raises(ConfigFileError, match=r"above_queue_tokens: 65536 is not below .* 65536"):
        check(65_536, CUT)
    missing = {"name": "cut", "head_mask": "@pruned20", "optional": True}
    with pytest.raises(
        ConfigFileError, match=r"user_config.degrade.variant is cut, but the model has no mask"
    ):
        check(9, missing)


async def test_an_edit_that_the_replica_could_not_do_is_refused(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=9, num_labels=1)
    async with serve(tiny_checkpoint, max_queue_tokens=1000) as service:
        for tokens, variant, message in (
            (1000, CUT, "degrade.above_queue_tokens: 1000 is not below max_queue_tokens, 1000"),
            (
                9,
                {"name": "cut", "checkpoint": str(other)},
                r"degrade.variant: cut gives one score .*, but the default",
            ),
        ):
            config = {
                "variants": [{"name": "full"}, variant],
                "degrade": {"above_queue_tokens": tokens, "variant": "cut"},
            }
            with pytest.raises(InvalidConfig, match=message):
                service.replica.check(LiveConfig.model_validate(config))

"""Cascades under load and in operation: limits, deadlines, hang-ups, live edits, metrics, experiments."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom.service.config.file import ConfigFileError
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.ray import preflight
from tests.service.cascades.conftest import CONFIG, TITLES, VARIANTS
from tests.service.experimenting import config as experiment_config
from tests.service.experimenting import eventually, exposed, shadow_of
from tests.service.in_process import LIMITS, QUERY, Service, long_queue, read_config, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one service for most of the tests


async def test_the_listing_names_the_stages(service: Service) -> None:
    listed = (await service.http.get("/v1/variants")).json()["variants"]
    assert [variant["name"] for variant in listed] == [*(variant["name"] for variant in VARIANTS), "original"]
    by_name = {variant["name"]: variant for variant in listed}
    assert by_name["full"]["cascade"] is None
    assert by_name["cascade"]["cascade"] == [
        {"variant": "cheap", "keep": 5},
        {"variant": "full", "keep": None},
    ]
    assert by_name["three"]["cascade"][0]["keep"] == 0.5
    assert by_name["cascade"]["head_mask"] == by_name["full"]["head_mask"]


async def test_an_edit_with_a_wrong_cascade_is_refused_and_the_last_one_stays(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG) as service:
        optional = [
            {"name": "full"},
            {"name": "tuned", "head_mask": "@tuned", "optional": True},
            {"name": "c", "cascade": [{"variant": "tuned", "keep": 5}, {"variant": "full"}]},
        ]
        with pytest.raises(
            InvalidConfig, match=r"variants\[2\].cascade\[0\].variant is tuned, but the model"
        ):
            await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate({"variants": optional}))
        assert len((await service.http.get("/v1/variants")).json()["variants"]) == 6

        optional[2]["optional"] = True
        await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate({"variants": optional}))
        listed = (await service.http.get("/v1/variants")).json()["variants"]
        assert [variant["name"] for variant in listed] == ["full", "original"]
        with pytest.raises(InvalidConfig, match="default is c, whose stage tuned is left out"):
            service.replica.check(LiveConfig.model_validate({"variants": optional, "default": "c"}))

        shorter = {"name": "cascade", "cascade": [{"variant": "cheap", "keep": 2}, {"variant": "full"}]}
        edited = LiveConfig.model_validate({"variants": [shorter, *VARIANTS[1:3]]})
        await asyncio.to_thread(service.replica.apply, edited)
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        assert [stage["pairs"] for stage in answer["stages"]] == [20, 2]


async def test_the_start_says_which_cascade_is_left_out_and_refuses_one_that_is_needed(
    tiny_checkpoint: Path,
) -> None:
    said: list[str] = []
    full = {"name": "full"}
    tuned = {"name": "tuned", "head_mask": "@tuned", "optional": True}
    small = {"name": "small", "checkpoint": "@small", "optional": True}
    cascade = {"name": "c", "cascade": [{"variant": "tuned", "keep": 5}, {"variant": "full"}]}

    def check(*variants: dict[str, Any]) -> None:
        config = read_config({"variants": list(variants)}, model=str(tiny_checkpoint))
        preflight.check(Path("serve.yaml"), config, said.append)

    check(full, tuned, small, cascade | {"optional": True})
    assert said == [
        "variants left out: tuned (the model has no mask @tuned), small (the model has no network @small), "
        "c (a stage of it is left out)"
    ]
    with pytest.raises(
        ConfigFileError, match=r"user_config.variants\[2\].cascade\[0\].variant is tuned, but"
    ):
        check(full, tuned, cascade)


CACHE: dict[str, Any] = {"score_cache_size": 1000}


async def kept_first_stage(service: Service) -> list[float]:
    """Have the scores of the first stage kept, and return what the cascade answers without its second."""
    cheap = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cheap")
    return [row["score"] for row in cheap["results"]]


async def test_a_cascade_whose_first_stage_was_kept_is_not_refused_after_it(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG, **CACHE, **LIMITS) as service, long_queue(service):
        expected = await kept_first_stage(service)
        service.replica.scheduler._admission.max_queue_tokens = 1
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        assert [row["score"] for row in answer["results"]] == expected
        assert answer["degraded"] is True
        assert [stage["pairs"] for stage in answer["stages"]] == [20, 0]
        assert service.metric('headroom_shed_total{reason="queue_full"}') == 0
        refused = {"query": QUERY, "titles": TITLES, "variant": "middle"}  # nothing of this one is kept
        assert (await service.http.post("/v1/score", json=refused)).status_code == 429


async def test_a_kept_first_stage_is_no_way_round_a_keys_rate(tiny_checkpoint: Path) -> None:
    """The key runs out between the stages: the answer has the kept scores, and nothing is computed."""
    async with serve(tiny_checkpoint, CONFIG, api_keys="slow;rate=100", **CACHE) as service:
        service.http.headers["authorization"] = "Bearer slow"
        expected = await kept_first_stage(service)
        computed = service.metric("headroom_batch_pairs_sum")
        scheduler = service.replica.scheduler
        (key,) = service.app.state.keys._keys

        def is_in_time(_tokens: int, _deadline: float) -> bool:
            service.app.state.keys.charge(key, 1e6)  # by another request of this key
            return True

        scheduler.is_in_time = is_in_time
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        assert [row["score"] for row in answer["results"]] == expected
        assert answer["degraded"] is True
        assert service.metric("headroom_batch_pairs_sum") == computed
        again = await service.http.post(
            "/v1/score", json={"query": QUERY, "titles": TITLES, "variant": "cascade"}
        )
        assert again.status_code == 429


async def test_a_late_second_stage_is_left_out_unless_it_is_kept(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, CONFIG, **CACHE) as service:
        await kept_first_stage(service)
        body = {"query": QUERY, "titles": TITLES, "variant": "cascade", "deadline_ms": 30_000}
        rate = service.replica.scheduler._rate
        rate.record(1024, 36_000.0, budget=1024)
        late = await service.post("/v1/score", **body)
        assert (late["degraded"], [stage["pairs"] for stage in late["stages"]]) == (True, [20, 0])
        for _ in range(200):
            rate.record(1024, 0.001, budget=1024)
        whole = await service.post("/v1/score", **body)
        assert (whole["degraded"], [stage["pairs"] for stage in whole["stages"]]) == (False, [20, 5])
        rate.record(1024, 36_000.0, budget=1024)
        again = await service.post("/v1/score", **body)
        assert again["results"] == whole["results"]
        assert again["degraded"] is False


async def test_a_column_that_was_done_before_a_compare_is_cut_short_is_not_degraded(
    tiny_checkpoint: Path,
) -> None:
    whole = {"name": "whole", "cascade": [{"variant": "cheap", "keep": 50}, {"variant": "full"}]}
    config = {**CONFIG, "variants": [*VARIANTS, whole]}  # `whole` keeps all titles, so it has one round
    async with serve(tiny_checkpoint, config) as service:
        service.replica.scheduler._rate.record(1024, 36_000.0, budget=1024)
        answer = await service.post(
            "/v1/compare", query=QUERY, titles=TITLES, variants=["whole", "cascade"], deadline_ms=30_000
        )
        assert [column["degraded"] for column in answer["columns"]] == [False, True]
        assert service.metric("headroom_degraded_total") == 1


async def test_a_cascade_is_an_arm_and_is_shadowed(tiny_checkpoint: Path, database_url: str) -> None:
    variants = [{"name": "full"}, {"name": "cheap", "head_mask": "0-1.*"}, VARIANTS[0]]
    live = experiment_config(variants, shadow=1.0, traffic=1.0)
    async with serve(tiny_checkpoint, live, database_url=database_url) as service:
        seen: dict[str, list[str | None]] = {}
        for unit in range(30):
            answer = await service.post("/v1/score", query=QUERY, titles=TITLES, unit=f"u{unit}")
            assignment = answer["assignment"]
            assert assignment["fallback"] is False
            expected = "cascade" if assignment["arm"] == "pruned" else "full"
            assert answer["variant"] == expected
            seen.setdefault(assignment["arm"], []).append(answer["results"][0].get("stage"))
        assert set(seen) == {"control", "pruned"}
        assert set(seen["control"]) == {None}
        assert None not in seen["pruned"]
        await eventually(lambda: len(exposed(database_url)) == 30)
        shadow = await shadow_of(service, requests=30)
        assert service.metric('headroom_shadow_requests_total{experiment="prune20",result="failed"}') == 0
        alone = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        full = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="full")
        deltas = [c["score"] - f["score"] for c, f in zip(alone["results"], full["results"], strict=True)]
        mean = shadow["measures"]["mean_delta"]["mean"]
        assert mean == pytest.approx(np.mean(deltas), abs=1e-4)

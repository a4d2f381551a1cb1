"""Whom an experiment should expose and does, which alerts compare."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from tests.service.experimenting import BOSS, eventually, score
from tests.service.experiments.making import experiment, run
from tests.service.in_process import Service

WAITS, SHARE, EXPOSED = (
    f'headroom_experiment_{name}{{experiment="prune20"}}' for name in ("pending", "share", "requests_total")
)


@pytest.mark.parametrize(
    ("fields", "rolled_back", "expected"),
    [
        ({}, (), 1.0),
        ({"slots": [2_500, 5_000]}, (), 0.25),
        ({"slots": [0, 5_000]}, ["pruned"], 0.25),
        ({"kind": "interleave"}, ["pruned"], 0.0),
    ],
)
def test_the_share_follows_slots_and_arms(
    fields: dict[str, Any], rolled_back: Collection[str], expected: float
) -> None:
    state = run(experiment(**fields), rolled_back=frozenset(rolled_back))
    assert state.exposed_share == pytest.approx(expected)
    assert replace(state, ramped=0.1).exposed_share == pytest.approx(expected / 10)


async def test_a_request_with_a_unit_and_a_variant_exposes_nobody_and_shows_that(service: Service) -> None:
    await eventually(lambda: service.metric(SHARE) == 1)
    assert service.metric(WAITS) == 0
    assert EXPOSED in service.metrics.render().decode(), "Prometheus sees no increase from nothing to 1"
    fixed: list[dict[str, Any]] = [{"unit": "b", "variant": "cut"}, {"unit": "b", "head_mask": "none"}, {}]
    for more in ({"unit": "a"}, {"unit": "a"}, *fixed):
        answer = await score(service, **more)
        if more in fixed:
            assert (answer["assignment"], answer["variant"]) == (None, more.get("variant", "full"))
    assert service.metric("headroom_unit_requests_total") == 4
    assert service.metric(EXPOSED) == 2
    stopped = await service.http.post("/v1/experiments/prune20/stop", json={"reason": "over"}, headers=BOSS)
    assert stopped.status_code == 200, stopped.text
    await eventually(lambda: service.metric(SHARE) == 0)
    assert service.metric(WAITS) == 0, "it is over"

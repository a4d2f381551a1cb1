"""Assignment: to the byte as specified, balanced, independent, and nobody moves when traffic rises."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from headroom.service.errors import InvalidRequest
from headroom.service.experiments.assignment import Assigner
from headroom.service.experiments.buckets import BUCKETS, bucket, is_exposed, ranges
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig
from tests.service.experiments.making import run

CASES = Path(__file__).parents[2] / "cases"
UNITS = 1_000_000


def experiment(name: str = "prune20", **more: Any) -> ExperimentConfig:
    arms = [{"name": "control", "variant": "full"}, {"name": "pruned", "variant": "small"}]
    return ExperimentConfig.model_validate({"name": name, "salt": f"{name}-salt", "arms": arms, **more})


def running(traffic: float, **more: Any) -> Assigner:
    return Assigner((run(experiment(**more), traffic),))


@pytest.fixture(scope="module")
def buckets() -> dict[str, NDArray[np.int64]]:
    """The buckets of 10⁶ units under one salt, and of the first of them under two others."""
    return {
        salt: np.array([bucket(salt, f"user-{unit}") for unit in range(count)])
        for salt, count in (("2026-11", UNITS), ("2026-12", 200_000), (LAYER_SALT, 200_000))
    }


@pytest.mark.parametrize("case", json.loads((CASES / "assignment.json").read_text()), ids=lambda c: c["salt"])
def test_the_contracts_cases_come_out_to_the_byte(case: dict[str, Any]) -> None:
    spans = ranges([arm["weight"] for arm in case["arms"]])
    assert [list(span) for span in spans] == [arm["range"] for arm in case["arms"]]
    for unit in case["units"]:
        position = bucket(case["salt"], unit["unit"])
        assert position == unit["bucket"]
        assert bucket(LAYER_SALT, unit["unit"]) == unit["layer_bucket"]
        (index,) = (i for i, (start, end) in enumerate(spans) if start <= position < end)
        arm = case["arms"][index]["name"] if is_exposed(position, spans[index], case["traffic"]) else None
        assert arm == unit["arm"]


def test_slots_come_out_as_in_the_table() -> None:
    """The table was made by another program than ours."""
    table = json.loads((CASES / "assignment_layers.json").read_text())
    configs = [ExperimentConfig.model_validate(config) for config in table["experiments"]]
    assigner = Assigner(tuple(run(config, config.traffic) for config in configs))
    for row in table["requests"]:
        found = assigner.assign(row["unit"])
        said = None
        if found is not None:
            said = {"experiment": found.experiment, "arm": found.arm, "bucket": found.bucket}
        assert said == row["assignment"], row


def test_a_million_units_are_balanced_within_what_chance_allows(
    buckets: dict[str, NDArray[np.int64]],
) -> None:
    for positions in buckets.values():
        assert stats.chisquare(np.bincount(positions, minlength=BUCKETS)).pvalue > 1e-4
    for weights in ([50, 50], [1, 1, 1], [90, 10], [997, 2, 1]):
        for (start, end), weight in zip(ranges(weights), weights, strict=True):
            inside = int(((buckets["2026-11"] >= start) & (buckets["2026-11"] < end)).sum())
            assert abs((end - start) / BUCKETS - weight / sum(weights)) <= 1 / BUCKETS
            assert stats.binomtest(inside, UNITS, (end - start) / BUCKETS).pvalue > 1e-4


def test_two_experiments_and_the_slots_are_drawn_independently(buckets: dict[str, NDArray[np.int64]]) -> None:
    names = list(buckets)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            table = np.bincount(
                buckets[one][:200_000] // 500 * 20 + buckets[other] // 500, minlength=400
            ).reshape(20, 20)
            assert stats.chi2_contingency(table).pvalue > 1e-4


def test_raising_traffic_moves_nobody_from_one_arm_to_another() -> None:
    two = [{"name": n, "variant": n, "weight": w} for n, w in (("a", 3), ("b", 2))]
    units = [f"user-{number}" for number in range(3000)]
    before: dict[str, str] = {}
    for traffic in (0.0, 0.0001, 0.01, 0.05, 0.29, 0.5, 0.57, 1.0):
        found = {unit: running(traffic, arms=two).assign(unit) for unit in units}
        arms = {unit: assigned.arm for unit, assigned in found.items() if assigned is not None}
        assert before.items() <= arms.items()
        before = arms
    assert len(before) == len(units)


def test_without_an_experiment_there_is_no_arm() -> None:
    with pytest.raises(InvalidRequest, match="there is no experiment in the live config"):
        Assigner().choose("u", "pruned", None)
    with pytest.raises(InvalidRequest, match="there is no experiment 'e'; there are none"):
        Assigner().choose("u", "pruned", "e")

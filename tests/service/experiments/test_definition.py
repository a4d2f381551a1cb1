"""A wrong experiment is refused with its place, before any replica sees it."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from headroom.service.config.file import first_problem
from headroom.service.config.settings import LiveConfig
from headroom.service.experiments.buckets import BUCKETS
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import identity

CONTROL = {"name": "control", "variant": "full", "weight": 50}
EXPERIMENT: dict[str, Any] = {
    "name": "prune20",
    "salt": "2026-11",
    "arms": [CONTROL, {"name": "pruned", "variant": "pruned20", "weight": 50}],
    "traffic": 0.2,
    "shadow": 0.05,
    "guardrails": {"p99_ms": 250, "score_shift": 0.25, "error_rate": None},
    "metrics": [{"name": "click", "margin": 0.02}],
}


def live(*experiments: dict[str, Any], **more: Any) -> LiveConfig:
    variants = [{"name": "full"}, {"name": "pruned20", "head_mask": "0.1"}]
    return LiveConfig.model_validate({"variants": variants, "experiments": list(experiments), **more})


def refusal(*experiments: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        live(*experiments, **more)
    return first_problem(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"salt": "layer"}, "salt of the slots"),
        ({"salt": "a\0"}, r"^experiments\[0\]\.salt: must not hold a NUL character"),
        ({"arms": [EXPERIMENT["arms"][0]] * 2}, "two are called 'control'"),
        ({"arms": [{"name": "pruned", "variant": "x", "weight": 50}, CONTROL]},
         r"\[0\]\.variant: .*'x'.*full, pruned20"),
        ({"slots": [5, 5]}, "is empty"),
        ({"traffic": 0.0001},
         r"traffic: .*0\.0001 exposes 0 : 0 of the .* control, pruned; 0\.0002 is the next"),
        ({"arms": [CONTROL | {"weight": 99}, {"name": "pruned", "variant": "pruned20"}],
          "traffic": 0.0199},
         r"traffic: a traffic of 0\.0199 exposes 197 : 1 of the 9,900 : 100 buckets of the arms control, "
         r"pruned; 0\.02 is the next that exposes the same share of each"),
        ({"arms": [CONTROL | {"weight": 100_000}, {"name": "pruned", "variant": "pruned20", "weight": 1}]},
         "arms: 'pruned' gets none of the 10,000 buckets"),
        ({"metrics": [{"name": "a", "kind": "ratio"}]}, "a ratio needs one"),
        ({"metrics": [{"name": "a", "kind": "ratio", "denominator": "a"}]}, "another metric"),
        ({"metrics": [{"name": "a", "margin": 2.0}]}, "below 1"),
        ({"planned_units": 1e300}, r"planned_units: Input should be"),  # above 64 bits, an internal error
    ],
)  # fmt: skip
def test_a_wrong_experiment_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    assert re.search(said, refusal(EXPERIMENT | change))


INTERLEAVED: dict[str, Any] = EXPERIMENT | {
    "kind": "interleave",
    "metrics": [{"name": "click", "margin": 0.05, "window_hours": 1.0}],
}
THIRD = {"name": "third", "variant": "full", "weight": 50}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": [*EXPERIMENT["arms"], THIRD]},
         r"^experiments\[0\]: arms: an interleaved experiment draws its lists from exactly 2 arms, not 3$"),
        ({"arms": [CONTROL, EXPERIMENT["arms"][1] | {"weight": 49}]}, "weights are equal, not 50 and 49"),
        ({"metrics": [{"name": "a", "kind": "proportion"}]}, r"metrics\[0\]\.kind: .* and no kind$"),
        ({"metrics": [{"name": "a"}, {"name": "b", "covariate": "a"}]}, r"metrics\[1\]\.covariate: "),
        ({"metrics": [{"name": "a", "margin": 1.5}]}, r"margin: 1\.5 is over 1; .* in \(0, 1\]$"),
        ({"traffic": 0.00009}, r"traffic: .* exposes none of the 10,000 buckets; give 0, or 0\.0001 to 1$"),
    ],
)  # fmt: skip
def test_a_wrong_interleaved_experiment_is_refused_in_one_sentence(change: dict[str, Any], said: str) -> None:
    refused = refusal(INTERLEAVED | change)
    assert re.search(said, refused)
    assert "\n" not in refused


def test_an_interleaved_experiment_exposes_the_first_buckets_of_all() -> None:
    (config,) = live(INTERLEAVED | {"traffic": 0.2345}).experiments
    assert config.exposed(0.2345) == {"interleaved": 2345}
    assert config.exposed(0.2345, {"pruned"}) == {}
    assert config.uneven(0.2345) is None
    assert (
        live(INTERLEAVED | {"metrics": [{"name": "a", "margin": 1.0}]}).experiments[0].metrics[0].margin == 1
    )
    weightless = [{"name": "control", "variant": "full"}, {"name": "pruned", "variant": "pruned20"}]
    again = live(INTERLEAVED | {"arms": weightless})
    assert LiveConfig.model_validate(again.model_dump(mode="json")) == again


def test_the_kind_of_an_experiment_is_part_of_what_it_began_with() -> None:
    """Else its database would mix units of one arm with units of both."""
    ab, interleaved = live(EXPERIMENT).experiments[0], live(INTERLEAVED).experiments[0]
    assert identity(ab) == "salt 2026-11; arms control=full:50, pruned=pruned20:50"
    assert identity(interleaved) == f"{identity(ab)}; kind interleave"


@pytest.mark.parametrize(
    "weights", [(50, 50), (99, 1), (95, 5), (93, 7), (90, 10), (66, 34), (1, 1, 1), (90, 7, 3)]
)
def test_every_traffic_that_is_not_refused_keeps_the_arms_shares(weights: tuple[int, ...]) -> None:
    """Else one arm would have more of the early units, which are not like the late ones."""
    arms = [{"name": f"arm{arm}", "variant": "full", "weight": weight} for arm, weight in enumerate(weights)]
    (config,) = live(EXPERIMENT | {"arms": arms, "traffic": 1.0}).experiments
    for step in range(1, BUCKETS + 1, 37):
        traffic = step / BUCKETS
        refused = config.uneven(traffic)
        if refused is not None:
            named = re.search(r"; (0\.\d+|1) is the next", refused)
            assert named is not None
            assert float(named[1]) > traffic
            assert config.uneven(float(named[1])) is None
            continue
        exposed = config.exposed(traffic)
        for arm, width in config.exposed(1.0).items():
            assert exposed[arm] / sum(exposed.values()) == pytest.approx(width / BUCKETS, rel=0.005)
    assert all(config.uneven(traffic) is None for traffic in (0, 0.1, 0.25, 0.5, 0.75, 1.0))


def test_experiments_that_would_meet_are_refused() -> None:
    other = EXPERIMENT | {"name": "other", "salt": "2026-12"}
    overlap = refusal(EXPERIMENT, other)
    assert "experiments[1].slots: [0, 10000) overlaps [0, 10000) of 'prune20', which keeps" in overlap
    assert "also after a ship or a stop" in overlap
    assert "if 'prune20' is over, make the variant that it shipped the `default` and take it out" in overlap
    halves = (EXPERIMENT | {"slots": [0, 5000]}, other | {"slots": [5000, 10_000]})
    assert len(live(*halves).experiments) == 2
    assert "overlaps" in refusal(halves[0], other | {"slots": [4999, 10_000]})


def test_one_name_or_salt_cannot_mean_two_things() -> None:
    half, rest = {"slots": [0, 5000]}, {"slots": [5000, 10_000]}
    assert "experiments: two are called 'prune20'" in refusal(
        EXPERIMENT | half, EXPERIMENT | rest | {"salt": "2026-12"}
    )
    assert "is the salt of 'prune20'" in refusal(EXPERIMENT | half, EXPERIMENT | rest | {"name": "other"})


def test_the_control_is_the_arm_of_that_name_or_the_first() -> None:
    assert live(EXPERIMENT).experiments[0].control == "control"
    arms = [{"name": name, "variant": "full"} for name in ("b", "control", "a")]
    config = ExperimentConfig.model_validate(EXPERIMENT | {"arms": arms})
    assert (config.control, config.treatments) == ("control", ("b", "a"))
    arms = [{"name": name, "variant": "full"} for name in ("b", "a")]
    assert ExperimentConfig.model_validate(EXPERIMENT | {"arms": arms}).control == "b"


def test_5_0_is_a_whole_number() -> None:
    """As in JSON Schema, and on HTTP everywhere. A traffic of 0 does shadow scoring only."""
    floats = EXPERIMENT | {"planned_units": 10_000.0, "slots": [0.0, 5_000.0], "traffic": 0.0}
    (config,) = live(floats).experiments
    assert (config.planned_units, config.slots) == (10_000, (0, 5_000))

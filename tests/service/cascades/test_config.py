"""Cascades in the config file: what is wrong is refused in one line that says where and what is right."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.config import file as config_file
from service.config.file import ConfigFile, ConfigFileError, Overrides
from service.ray import preflight

FULL, FAST, OTHER = {"name": "full"}, {"name": "fast", "head_mask": "0.0"}, {"name": "other"}
RANGE = "should be a whole number of titles from 1, or a share between 0 and 1 (both excluded)"


def stage(variant: str, keep: Any = None) -> dict[str, Any]:
    return {"variant": variant} if keep is None else {"variant": variant, "keep": keep}


def cascade(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "c", "cascade": list(stages), **more}


def read(path: Path, *variants: dict[str, Any], **more: Any) -> ConfigFile:
    live = {"variants": list(variants), **more}
    document = {"applications": [{"deployments": [{"name": "Relevance", "user_config": live}]}]}
    return config_file.read(yaml.safe_dump(document).encode(), path, Overrides())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (cascade(stage("fast", 0), stage("full")), f"variants[2]: cascade[0].keep: {RANGE}"),
        (cascade(stage("fast", 1.0), stage("full")), f"variants[2]: cascade[0].keep: {RANGE}"),
        (cascade(stage("fast", "10"), stage("full")), "variants[2].cascade[0].keep: Input should be"),
        (cascade(stage("fast"), stage("full")), f"variants[2]: cascade[0].keep: {RANGE}"),
        (cascade(stage("fast", 3), stage("full", 3)), "cascade[1].keep: the last stage keeps all of its"),
        (cascade(stage("full")), "variants[2].cascade: List should have at least 2 items"),
        (cascade(*[stage("fast", 3)] * 9), "variants[2].cascade: List should have at most 8 items"),
        (
            cascade(stage("gone", 3), stage("full")),
            "variants[2].cascade[0].variant: there is no variant 'gone'; there are full, fast, other",
        ),
        (
            cascade(stage("c", 3), stage("full")),
            "variants[2].cascade[0].variant: 'c' is a cascade itself; name its stages in its place",
        ),
        (
            cascade(stage("fast", 3), stage("other", 3), stage("full")),
            "cascade[1].keep: 3 is not fewer than the 3 that an earlier stage keeps",
        ),
        (cascade(stage("full", 3), stage("full")), "cascade[1].variant: 'full' is already an earlier stage"),
        (
            cascade(stage("fast", 3), stage("full"), checkpoint="/x"),
            "checkpoint: a cascade has none of its own",
        ),
        (
            cascade({**stage("fast", 3), "kep": 1}, stage("full")),
            "variants[2].cascade[0].kep: there is no such",
        ),
    ],
)
def test_a_wrong_cascade_is_refused_where_it_is_wrong(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigFileError) as refused:
        read(tmp_path / "serve.yaml", FULL, FAST, wrong, OTHER)
    assert message in str(refused.value)
    assert "user_config" in str(refused.value)


def test_a_cascade_may_come_before_its_stages_and_be_the_default(tmp_path: Path) -> None:
    config = read(tmp_path / "serve.yaml", cascade(stage("fast", 0.2), stage("full")), FAST, FULL)
    assert config.live.default_variant == "c"


def test_the_start_says_which_cascade_is_left_out_and_refuses_one_that_is_needed(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    path = tmp_path / "serve.yaml"
    tuned = {"name": "tuned", "head_mask": "@tuned", "optional": True}
    with_model = Overrides(model=str(tiny_checkpoint))

    def check(*variants: dict[str, Any]) -> None:
        config = read(path, *variants)
        document = yaml.safe_dump(config.document).encode()
        preflight.check(path, config_file.read(document, path, with_model), said.append)

    small = {"name": "small", "checkpoint": "@small", "optional": True}
    check(FULL, tuned, small, cascade(stage("tuned", 5), stage("full"), optional=True))
    assert said == [
        "variant tuned is left out: the model has no mask @tuned",
        "variant small is left out: the model has no network @small",
        "variant c is left out: a stage of it is left out",
    ]
    with pytest.raises(
        ConfigFileError, match=r"user_config.variants\[2\].cascade\[0\].variant is tuned, but"
    ):
        check(FULL, tuned, cascade(stage("tuned", 5), stage("full")))

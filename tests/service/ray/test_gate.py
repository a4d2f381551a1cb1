"""headroom.service.ray.gate: what Serve's controller does at once (test_two_nodes.py has the rest)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from headroom.service.ray.gate import Gate
from headroom.service.ray.patches import DeployedApplication

LIVE = {"variants": [{"name": "full"}, {"name": "low", "head_mask": "0.0"}]}


@dataclass
class Application:
    """What Serve has deployed. user_config: None if that is other code."""

    user_config: Mapping[str, Any] | None
    has_replicas: bool
    name: str = "headroom"


def allowed(submitted: dict[str, Any], user_config: Any, *, has_replicas: bool) -> Mapping[str, Any]:
    application = Application(user_config, has_replicas)
    return Gate()(cast(DeployedApplication, application), submitted)


def test_nothing_holds_up_what_no_replica_could_refuse() -> None:
    """A first deployment, the next one after a start that failed, new arguments, the same once more."""
    assert allowed(LIVE, None, has_replicas=True) == LIVE
    assert allowed(LIVE, {}, has_replicas=False) == LIVE
    assert allowed(LIVE, LIVE, has_replicas=True) == LIVE


@pytest.mark.parametrize("user_config", [None, {}])
def test_what_no_replica_could_take_fails_in_serve_deploy(user_config: Any) -> None:
    wrong = LIVE | {"degrade": {"above_queue_tokens": 9, "variant": "lower"}}
    with pytest.raises(
        ValueError, match=r"config refused: user_config.*no variant 'lower'; there are full, low"
    ):
        allowed(wrong, user_config, has_replicas=True)

"""What the autoscaling policy asks of Ray Serve, in the context that Serve calls it with."""

from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from headroom.service.ray.autoscaling import LOAD, ByLoad


def context(**reported: list[float]) -> Any:
    """Return Serve's context of four replicas that reported these values."""
    deployment = DeploymentID("Relevance", "headroom")
    metrics = {
        name: {ReplicaID(str(number), deployment): value for number, value in enumerate(values)}
        for name, values in reported.items()
    }
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=deployment.name,
        app_name=deployment.app_name,
        current_num_replicas=4,
        target_num_replicas=4,
        running_replicas=[],
        total_num_requests=0,
        total_queued_requests=0,
        aggregated_metrics=metrics,
        raw_metrics=None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=40,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(),
    )


@pytest.mark.parametrize(
    ("loads", "replicas"),
    [
        ([0.6] * 4, 4.0),
        ([1.0] * 4, 4 / 0.6),  # callers that wait for their answers never ask for more than is done
        ([1.5] * 4, 10.0),  # a third is refused
        ([2.4, 0, 0, 0], 4.0),
        ([0.0] * 4, 1.0),
        ([], 4.0),  # nobody has reported
    ],
)
def test_replicas_are_busy_for_six_tenths_of_the_time(loads: list[float], replicas: float) -> None:
    wanted, state = ByLoad()(context(**{LOAD: loads}))
    assert wanted == pytest.approx(replicas)
    assert state == {}


@pytest.mark.parametrize("wrong", [0, 1.1, "much"])
def test_a_wrong_share_is_refused_with_its_range(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"policy_kwargs\.busy_share must be a number above 0 and at most 1"):
        ByLoad(wrong)

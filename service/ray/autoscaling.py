"""A policy for Ray Serve's autoscaling: as many replicas as the tokens of work need.

Serve counts requests, but a request may hold one title or a thousand. Each replica reports the tokens that
wait or are being computed there (`Relevance.record_autoscaling_stats`); Serve collects and averages them over
`look_back_period_s`, and applies its own delays, factors and bounds to what the policy returns.

    autoscaling_config:
      min_replicas: 1
      max_replicas: 8
      policy:
        policy_function: service.ray.autoscaling:ByTokens
        policy_kwargs: {tokens_per_replica: 2000}

Serve's controller runs the policy, so this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRIC = "work_tokens"


def bounds(deployment: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many replicas Serve starts with, and how many at most, as it reads `autoscaling_config`.

    (1, 1) without autoscaling. deployment: of a Serve config file. Raises pydantic.ValidationError.
    """
    from ray.serve.config import AutoscalingConfig

    given = dict(deployment.get("autoscaling_config") or {})
    given.pop("policy", None)  # AutoscalingConfig would import it
    if deployment.get("num_replicas") == "auto":
        given = AutoscalingConfig.default().model_dump(exclude_unset=True) | given
    config = AutoscalingConfig.model_validate(given)
    return config.initial_replicas or config.min_replicas or 1, config.max_replicas


class ByTokens:
    """Asks for the number of replicas at which each holds `tokens_per_replica` tokens on average.

    Args:
        tokens_per_replica: two full batches keep a replica busy: 2,000 on a CPU, 32,000 on a GPU, unless
            `max_batch_tokens` says otherwise.

    Raises:
        ValueError: tokens_per_replica is not a number above 0.
    """

    def __init__(self, tokens_per_replica: float) -> None:
        if not (isinstance(tokens_per_replica, int | float) and tokens_per_replica > 0):
            raise ValueError("policy_kwargs.tokens_per_replica must be a number above 0")
        self._tokens_per_replica = tokens_per_replica

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas wanted and no state. context: Serve's AutoscalingContext.

        While no replica has reported yet, the number stays. It is at least one, because without a replica
        nobody would report work.
        """
        tokens = (context.aggregated_metrics or {}).get(METRIC, {})
        if not tokens:
            return context.target_num_replicas, {}
        return max(1.0, sum(tokens.values()) / self._tokens_per_replica), {}

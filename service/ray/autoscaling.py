"""Chooses the number of replicas: the default for a machine, and the policy of Ray Serve's autoscaling.

Serve counts requests, but a request may hold one title or a thousand, and a refused one is none that waits.
So each replica reports how much computing callers ask of it (`headroom.service.engine.admission`); Serve
collects and averages this over `look_back_period_s`, and applies its own delays, factors and bounds to what
the policy returns.

    autoscaling_config:
      min_replicas: 1
      max_replicas: 8
      look_back_period_s: 15
      policy: {policy_function: headroom.service.ray.autoscaling:ByLoad}

Serve's controller runs the policy, so this module imports nothing heavy.
"""

from collections.abc import Mapping
from math import ceil, floor
from typing import Any

LOAD = "load"
"""Name of a replica's load in what it reports to Serve."""

BUSY_SHARE = 0.6
"""The share of the time that replicas should be busy. Latency rises steeply beyond 0.8 (docs/operations.md,
"Sizing"), and a new replica takes a while to start."""

MAX_REPLICAS = 8
"""Limit of the default on a machine without a GPU; a replica of the shipped model takes about 0.9 GB."""


def replicas(cores: int, gpus: float) -> int:
    """Return the default: one replica per core (docs/decisions/007-replicas.md), or one per GPU.

    What the GPUs carry is known only once CUDA was asked (`headroom.service.ray.gpus`).
    """
    return max(1, int(gpus)) if gpus else min(cores, MAX_REPLICAS)


def gpu_share(replicas: int, gpus: float) -> float:
    """Return each replica's part of a GPU: a whole one, or 1/n if n replicas share each (docs/decisions/014).

    Ray places a replica on one GPU, so 2 GPUs hold no 3 replicas of two thirds each, but four halves.
    """
    whole = max(1, int(gpus))
    return min(1.0, gpus) / max(1, ceil(replicas / whole))


def cpu_share(asked: float, replicas: int, cores: int) -> float:
    """Return the CPUs that Ray reserves for a replica: those asked for, or fewer so that all find a place.

    Ray takes ten-thousandths of one CPU and whole CPUs, so 8 cores hold 3 replicas of 2, not of 2.67.
    """
    share = cores / replicas
    return min(asked, floor(share * 10_000) / 10_000 if share < 1 else int(share))


def threads(cores: int, replicas: int) -> int:
    """Return the threads of each replica: an equal part of the cores, but at least two if there are two.

    With two threads, a request is faster on an idle machine.
    """
    return max(cores // replicas, min(cores, 2))


def bounds(deployment: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many replicas Serve starts with, and how many at most, as it reads `autoscaling_config`.

    (1, 1) without autoscaling. deployment: of a Serve config file. Raises pydantic.ValidationError.
    """
    from ray.serve.config import AutoscalingConfig

    fields = dict(deployment.get("autoscaling_config") or {})
    fields.pop("policy", None)  # AutoscalingConfig would import it
    if deployment.get("num_replicas") == "auto":
        fields = AutoscalingConfig.default().model_dump(exclude_unset=True) | fields
    config = AutoscalingConfig.model_validate(fields)
    return config.initial_replicas or config.min_replicas or 1, config.max_replicas


class ByLoad:
    """Asks for the number of replicas at which callers keep each busy for `busy_share` of the time.

    Refused requests count, and how long a request takes is what the replicas measured.

    Args:
        busy_share: above 0, at most 1.

    Raises:
        ValueError: busy_share is not such a number.
    """

    def __init__(self, busy_share: float = BUSY_SHARE) -> None:
        if not (isinstance(busy_share, int | float) and 0 < busy_share <= 1):
            raise ValueError("policy_kwargs.busy_share must be a number above 0 and at most 1")
        self._busy_share = busy_share

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas wanted and no state. context: Serve's AutoscalingContext.

        While no replica has reported yet, the number stays. It is at least one, because without a replica
        nobody would report work.
        """
        loads = (context.aggregated_metrics or {}).get(LOAD, {})
        if not loads:
            return float(context.target_num_replicas), {}
        total: float = sum(loads.values())
        return max(1.0, total / self._busy_share), {}

"""How many replicas a machine runs, and on how many threads each. Knows neither ray nor torch."""

from __future__ import annotations

MOST_REPLICAS = 8
"""That a machine without a GPU gets unasked: each takes 350 to 600 MB beside its weights."""


def replicas(cores: int, gpus: float) -> int:
    """Where nobody says: one for each GPU, else one for each core (docs/decisions/007-replicas.md)."""
    return max(1, int(gpus)) if gpus else min(cores, MOST_REPLICAS)


def threads(cores: int, replicas: int) -> int:
    """Of each replica's forward passes: its part of the cores, but two where there are two, so that a request
    which finds the machine idle is not left to one core."""
    return max(cores // replicas, min(cores, 2))

"""Default numbers of replicas and threads for a machine. Imports neither ray nor torch."""

from __future__ import annotations

from math import ceil, floor

MAX_REPLICAS = 8
"""Limit of the default on a machine without a GPU; a replica of the shipped model takes about 0.9 GB."""


def replicas(cores: int, gpus: float) -> int:
    """Return the default: one replica per GPU, else one per core (docs/decisions/007-replicas.md)."""
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

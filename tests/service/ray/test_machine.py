"""How a machine is divided among replicas."""

from __future__ import annotations

import pytest

from service.ray import machine


@pytest.mark.parametrize(
    ("cores", "gpus", "replicas"),
    [(1, 0, 1), (2, 0, 2), (8, 0, 8), (64, 0, machine.MAX_REPLICAS), (16, 1, 1), (16, 4, 4), (16, 0.5, 1)],
)
def test_a_replica_for_each_gpu_or_core(cores: int, gpus: float, replicas: int) -> None:
    assert machine.replicas(cores, gpus) == replicas


@pytest.mark.parametrize(
    ("replicas", "gpus", "share"),
    [
        (1, 1, 1),
        (4, 4, 1),
        (4, 1, 0.25),
        (3, 2, 0.5),
        (4, 2, 0.5),
        (5, 2, 1 / 3),
        (1, 0.5, 0.5),
        (2, 0.5, 0.25),
    ],
)
def test_replicas_share_gpus_in_parts_that_find_a_place(replicas: int, gpus: float, share: float) -> None:
    assert machine.gpu_share(replicas, gpus) == pytest.approx(share)
    of_each_gpu = int(min(gpus, 1) / share + 1e-9)
    assert of_each_gpu * max(1, int(gpus)) >= replicas


@pytest.mark.parametrize(
    ("asked", "replicas", "cores", "share"),
    [
        (1, 2, 2, 1),
        (2, 2, 2, 1),
        (1, 4, 2, 0.5),
        (1, 3, 2, 0.6666),
        (2, 3, 8, 2),
        (4, 3, 8, 2),
        (0, 2, 2, 0),
        (0.5, 1, 2, 0.5),
    ],
)
def test_replicas_that_ask_for_more_cpus_than_there_are_still_find_a_place(
    asked: float, replicas: int, cores: int, share: float
) -> None:
    assert machine.cpu_share(asked, replicas, cores) == share
    assert share * replicas <= cores


@pytest.mark.parametrize(
    ("cores", "replicas", "threads"),
    [(1, 1, 1), (1, 4, 1), (2, 1, 2), (2, 2, 2), (4, 4, 2), (16, 8, 2), (64, 8, 8), (16, 1, 16)],
)
def test_cores_are_divided_and_two_are_never_left_to_one_thread(
    cores: int, replicas: int, threads: int
) -> None:
    assert machine.threads(cores, replicas) == threads

"""Runs head studies on a Ray cluster: a part of the work is a task, and a worker loads the model once.

`connected` is for other work on a cluster too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.cores import cores
from service.ray import environment
from service.ray.processes import Guard, adopt_orphans, end_run
from service.ray.run_directory import RunDirectory

if TYPE_CHECKING:
    from models import Classifier
    from models.study.runner import Map, Part

AHEAD = 3
"""Tasks submitted per worker: enough that no worker waits, few enough to hold in memory."""


@contextlib.contextmanager
def spread(model: str, device: str, dtype: str) -> Iterator[Map]:
    """Yield a function that computes parts on a Ray cluster (`connected`).

    model: a directory that every node can read. device: cpu, or cuda (one GPU per task). dtype: torch's name.
    """
    with connected() as ray:
        yield functools.partial(_map, ray, model, device.partition(":")[0], dtype.removeprefix("torch."))


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Yield ray, connected to the cluster that RAY_ADDRESS names, or to a local one for the block."""
    address = os.environ.get("RAY_ADDRESS")
    run = RunDirectory()
    try:
        if address is None:
            environment.prepare_tasks(run.path)
            adopt_orphans()
        guard = Guard(functools.partial(end_run, run))
        import ray

        ray.init(
            **({"address": address} if address else {"address": "local", "_temp_dir": str(run.path / "ray")}),
            **({} if address else {"include_dashboard": False, "num_cpus": cores()}),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        try:
            yield ray
        finally:
            guard.close()
            ray.shutdown()
    finally:
        run.remove()


def _map(
    ray: Any, model: str, device: str, dtype: str, parts: Sequence[Part]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    gpus = 1 if device == "cuda" else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=3)(_compute)
    at_once = AHEAD * max(int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1)), 1)
    numbered = enumerate(parts)
    waiting: dict[Any, int] = {}
    while True:
        for number, part in itertools.islice(numbered, at_once - len(waiting)):
            waiting[task.remote(model, device, dtype, part)] = number
        if not waiting:
            return
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        yield waiting.pop(done), np.asarray(ray.get(done))


def _compute(model: str, device: str, dtype: str, part: Part) -> NDArray[np.float32]:
    from models.study.runner import logits_of_part

    return logits_of_part(_classifier(model, device, dtype), part)


@functools.cache
def _classifier(model: str, device: str, dtype: str) -> Classifier:
    from models import Classifier

    return Classifier.load(model, device, dtype)

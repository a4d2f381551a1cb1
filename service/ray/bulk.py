"""Scores the windows of a job on a Ray cluster: an actor per core or GPU loads the models once.

This process reads the input and writes the output; each node needs only the model, under the same name. If a
worker or a node dies, Ray starts the actor again elsewhere and repeats its windows, with the same scores.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.ray import tasks

if TYPE_CHECKING:
    from service.files.options import ScoreOptions
    from service.files.reading import Window
    from service.files.running import Encoded

AHEAD = 2
"""Windows that each actor has: one to score, and one that waits for it."""

RESTARTS = 5
"""How often Ray starts an actor again whose worker or node has died, and repeats what it had."""


@contextlib.contextmanager
def cluster(
    options: ScoreOptions,
) -> Iterator[tuple[ScoreOptions, Callable[[], contextlib.AbstractContextManager[Actors]]]]:
    """Yield the options, with their device, and a function that starts the actors that score."""
    with tasks.connected() as ray:
        resources = ray.cluster_resources()
        device = options.device
        if device == "auto":
            device = "cuda" if resources.get("GPU") else "cpu"
        gpus = 1 if device.startswith("cuda") else 0
        count = max(int(resources.get("GPU" if gpus else "CPU", 1)), 1)
        model = options.model
        if model is not None and Path(model).is_dir():
            model = str(Path(model).absolute())
        resolved = replace(options, device=device, model=model)
        yield resolved, lambda: contextlib.nullcontext(Actors(ray, resolved, count, gpus))


class Actors:
    """The actors of a cluster: what `running.Workers` asks for."""

    def __init__(self, ray: Any, options: ScoreOptions, count: int, gpus: int) -> None:
        self._ray = ray
        how = {"max_restarts": RESTARTS, "max_task_retries": RESTARTS}
        actor = ray.remote(num_cpus=1, num_gpus=gpus, **how)(Scoring)
        self._turns = itertools.cycle([actor.remote(options) for _ in range(count)])
        self.ahead = AHEAD * count

    def submit(self, window: Window) -> Any:
        """Hand a window to the actor whose turn it is."""
        return next(self._turns).score.remote(window)

    def finish(self, pending: Any) -> Encoded:
        """Wait for a window's scores. Raises what the actor raised."""
        try:
            scored: Encoded = self._ray.get(pending)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return scored


class Scoring:
    """An actor: loads the models once and scores windows."""

    def __init__(self, options: ScoreOptions) -> None:
        from service.files.scoring import WindowScorer

        self._scorer = WindowScorer(options, threads=1)

    def score(self, window: Window) -> Encoded:
        """Return a scored window as it is written."""
        return self._scorer.finish(self._scorer.submit(window))

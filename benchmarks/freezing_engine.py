"""The service with a device that freezes while a file exists: what `benchmarks.failures` does to it.

A config file names it as `import_path: benchmarks.freezing_engine:build`. A frozen device answers no forward
pass and says nothing; everything else of the replica goes on.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from ray import serve

from benchmarks.failures import FROZEN
from headroom.service import replica
from headroom.service.config.file import DEPLOYMENT
from headroom.service.engine.threads import Engine, Lane, PairRow
from headroom.service.ray.actor import Relevance, bind
from headroom.service.scoring import loading

if TYPE_CHECKING:
    _Relevance = Relevance
else:  # Serve's decorator has put the class into a deployment
    _Relevance = Relevance.func_or_class

LOOK_S = 0.005


class FreezingEngine(Engine):
    """The engine of a device that is frozen while the file `all` exists, or one named by the process's id."""

    def _forward(self, lane: Lane, rows: Sequence[PairRow]) -> Sequence[Any]:
        directory = Path(os.environ[FROZEN])
        marks = [directory / "all", directory / str(os.getpid())]
        while any(mark.exists() for mark in marks):
            time.sleep(LOOK_S)
        return super()._forward(lane, rows)


THAT_FREEZES = mock.patch.object(loading, "Engine", FreezingEngine)


class Freezing(_Relevance):
    """The replica with this engine."""

    def _import(self) -> Callable[..., Awaitable[replica.Replica]]:
        THAT_FREEZES.start()  # until this process ends
        return super()._import()


def build(arguments: dict[str, Any]) -> Any:
    """Return the Serve application, as `headroom.service.ray.build` does."""
    return bind(serve.deployment(name=DEPLOYMENT, user_config={})(Freezing), arguments)

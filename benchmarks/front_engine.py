"""The service with a network that answers at once: what remains is the front (`benchmarks.front`).

A config file names it as `import_path: benchmarks.front_engine:build`. Everything else is the service's own:
HTTP, checks, tokenizer, queue, batches, packing, grades and answer, with a GPU's number of batches under way.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from ray import serve

from headroom.models.batch import PackedBatch
from headroom.models.classifier import Classifier
from headroom.service import replica
from headroom.service.config.file import DEPLOYMENT
from headroom.service.engine.runner import GPU_SLOTS
from headroom.service.engine.threads import Engine
from headroom.service.ray.actor import Relevance, bind
from headroom.service.scoring import loading

if TYPE_CHECKING:
    _Relevance = Relevance
else:  # Serve's decorator has put the class into a deployment
    _Relevance = Relevance.func_or_class


class InstantNetwork:
    """A network whose logits are there at once; everything else is the real network's."""

    max_pack_tokens = None

    def __init__(self, network: Any) -> None:
        self._network = network
        labels = len(network.config.label_order)
        self._logits = torch.randn(65_536, labels, generator=torch.Generator().manual_seed(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def forward(self, batch: PackedBatch, *_: Any, **__: Any) -> torch.Tensor:
        """Return random logits, (B, labels)."""
        return self._logits[: len(batch.lengths)]


class InstantEngine(Engine):
    """The engine of a GPU whose networks answer at once."""

    def __init__(self, classifiers: dict[str, Classifier], **options: Any) -> None:
        super().__init__(classifiers, **options | {"threads": GPU_SLOTS})
        self.split_tokens = None
        for classifier in classifiers.values():
            network: Any = InstantNetwork(classifier.network)
            classifier.network = network


WITHOUT_NETWORK = mock.patch.object(loading, "Engine", InstantEngine)
"""What turns a replica of this process into the front alone."""


class Front(_Relevance):
    """The replica with this engine."""

    def _import(self) -> Callable[..., Awaitable[replica.Replica]]:
        WITHOUT_NETWORK.start()  # until this process ends
        return super()._import()


def build(arguments: dict[str, Any]) -> Any:
    """Return the Serve application of the front alone."""
    return bind(serve.deployment(name=DEPLOYMENT, user_config={})(Front), arguments)

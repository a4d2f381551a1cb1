"""Trains a network's upper layers alone, on what the lower ones of the served network yield.

The lower layers stay as they are, and so does the model whose opinion is kept. Both are computed once, by the
network that serves, which is three times as fast as one that autograd follows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headroom.models.batch import PackedBatch, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.learner import Learner
from headroom.models.networks import build


class Entering(NamedTuple):
    """What enters the upper layers.

    states: (T, D) float32. logits: of the model at the start, (pairs, grades), in the order of the pairs.
    """

    batch: PackedBatch
    states: Tensor
    logits: Tensor


class LowerLayers:
    """The first layers of a model as it is now, and its own logits. layers: their number."""

    def __init__(self, model: Learner, layers: int) -> None:
        self._layers = layers
        tensors = {name: weight.detach().clone() for name, weight in model.tensors().items()}
        self._network = build(model.config, tensors, device=model.device, dtype=torch.bfloat16)

    def enter(self, pairs: Sequence[EncodedPair]) -> Entering:
        """Compute all layers of the model; return what enters the upper ones."""
        network = self._network
        batch = pack(pairs, device=network.device)
        with torch.no_grad():
            states = None
            selection = network.selector.select(None, batch.order)
            for number, x in enumerate(network.hidden_states(batch, selection)):
                if number == self._layers:
                    states = x.float().clone()
            logits = network.classify(x)[batch.answers]
        assert states is not None
        return Entering(batch, states, logits)

    def logits(self, model: Learner, entering: Entering) -> Tensor:
        """Return the logits of a model with these first layers, (pairs, grades), for autograd."""
        network = model.network()
        selection = list(network.selector.select(None))[self._layers :]
        states = network.hidden_states(
            entering.batch, selection, entering=entering.states, first=self._layers
        )
        for x in states:  # noqa: B007 - the last one is read
            pass
        with torch.autocast(x.device.type, enabled=False):
            return network.classify(x.float())[entering.batch.answers]

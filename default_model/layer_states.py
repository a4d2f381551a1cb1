"""The loss of a smaller network that keeps all layers of its model counts what leaves each layer, too.

Hidden states teach most where data are few (Lee et al. 2023, https://arxiv.org/abs/2305.15032). Their weight
falls to 0 in the last third of the training, which belongs to the answers.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.batch import PackedBatch, pack
from headroom.models.learner import Learner
from headroom.models.network import Network
from headroom.models.training.distil.lessons import Lesson, Objective

LAST = 1 / 3
"""In this share of the steps, the last ones, the weight falls."""


@dataclass(eq=False)
class StatesObjective(Objective):
    """The loss of the answers and of the states of BERT's layers.

    whole: the network that teaches, in plain torch. steps: of the training, each with one loss; done: those
    that are over.
    """

    whole: Network
    steps: int
    done: int = 0

    def loss(self, model: Learner, lesson: Lesson) -> Tensor:
        """Return the sum of the losses of a batch."""
        weight = min(1.0, (1 - self.done / self.steps) / LAST)
        self.done += 1
        if weight <= 0:
            return super().loss(model, lesson)
        with torch.no_grad():
            _, wanted = _states(self.whole, lesson)
        network = model.network()
        batch, states = _states(network, lesson)
        errors = [F.mse_loss(*both) / both[1].var() for both in zip(states, wanted, strict=True)]
        pooled = states[-1][batch.first_token[: batch.rows]]
        with torch.autocast(model.device.type, enabled=False):  # as it is served, in float32
            logits = network.classify(pooled)
        loss = self.of_outputs(logits[batch.answers], pooled[batch.answers], lesson)
        return loss + weight * torch.stack(errors).mean()


def _states(network: Network, lesson: Lesson) -> tuple[PackedBatch, list[Tensor]]:
    """Return the pack of a batch, and what leaves each layer of its tokens, (T, D) float32."""
    batch = pack(lesson.pairs, device=network.device)
    states = network.hidden_states(batch, network.selector.select(None), every_token=True)
    next(states)  # what enters the first layer
    return batch, [x[: int(batch.lengths.sum())].float() for x in states]

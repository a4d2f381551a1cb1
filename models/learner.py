"""A network in training: the one that serves, in plain torch, so that whatever is served can be trained."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headroom.models.batch import pack
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tensors import TensorDict
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops.torch import Linear, Norm, Tensors, TorchOps, attention_probabilities, normed


class Learner(nn.Module):
    """A checkpoint's weights as float32 parameters, and the logits of the network that they make.

    tensors: what `headroom.models.checkpoint.tensors.read_tensors` returns. Those that the family's
    checkpoints do not hold stay zeros.
    dropout: the rate for what each half of a layer adds and for what the classifier reads.
    attention_dropout: the rate for attention probabilities.
    """

    def __init__(
        self, config: ModelConfig, tensors: Tensors, *, dropout: float = 0.0, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self._zeros = {name: tensor.float() for name, tensor in tensors.items() if not config.is_stored(name)}
        for name, tensor in tensors.items():  # in their order, because an optimizer's state has no names
            if name not in self._zeros:  # torch allows no dot in a name
                self.register_parameter(name.replace(".", "/"), nn.Parameter(tensor.float().clone()))

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return next(self.parameters()).device

    def weight(self, name: str) -> nn.Parameter:
        """Return a weight by our name."""
        return self.get_parameter(name.replace(".", "/"))

    def tensors(self) -> TensorDict:
        """Return the weights under our names."""
        return self._zeros | {name.replace("/", "."): weight for name, weight in self.named_parameters()}

    def network(self) -> Network:
        """Return the network of the weights as they are now, which autograd follows."""
        device = self.device
        ops = TorchOps(device, torch.float32)
        if self.training:
            ops = _DropoutOps(device, self.dropout, self.attention_dropout)
        return build(self.config, self.tensors(), device=device, dtype=torch.float32, ops=ops)

    def forward(self, pairs: Sequence[EncodedPair]) -> Tensor:
        """Return the logits of pairs, (B, labels), in their order and on the CPU, where their targets are."""
        return self.with_states(pairs)[0].cpu()

    def with_states(self, pairs: Sequence[EncodedPair]) -> tuple[Tensor, Tensor]:
        """Return the logits of pairs, (B, labels), and what the classifier reads of each, (B, D), in their
        order."""
        network = self.network()
        batch = pack(pairs, device=self.device)
        pooled = network.pooled(batch, network.selector.select(None))[: len(pairs)]
        with torch.autocast(self.device.type, enabled=False):  # as it is served, in float32
            logits = network.classify(F.dropout(pooled.float(), self.dropout, self.training))
        return logits[batch.answers], pooled[batch.answers]


class _DropoutOps(TorchOps):
    """Plain torch in float32 with dropout."""

    def __init__(self, device: torch.device, dropout: float, attention_dropout: float) -> None:
        super().__init__(device, torch.float32)
        self.dropout = dropout
        self.attention_dropout = attention_dropout

    def linear(self, *arguments: Any) -> Linear:
        """Return a map with dropout in what it adds to a residual."""
        linear = _DropoutLinear(*arguments)
        linear.dropout = self.dropout
        return linear

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return F.dropout(attention_probabilities(query, key, bias, scale), self.attention_dropout) @ value


class _DropoutLinear(Linear):
    dropout = 0.0

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        return normed(F.dropout(self(x), self.dropout) + residual, norm)

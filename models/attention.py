"""Multi-head attention in its three uses, on padded batches.

    MultiHead(Q, K, V) = Concat(head_1 … head_h)·W^O
    head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_head) · V W_i^V · weight_i

    attention(x)                 encoder self-attention: every token sees every token
    attention(x, causal=True)    masked self-attention: a token sees itself and those before it
    attention(x, memory)         encoder–decoder attention: queries from x, keys and values from memory

Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, §3.2.2 and §3.2.3. `weight_i` is the head mask: it
multiplies a head's output before W^O, which equals multiplying its attention probabilities, so weight 0
removes the head and the bias of W^O stays. A classifier's network computes the same equation over packs
without padding (`headroom.models.network`); the query generator (`headroom.models.generate`) computes with
this module.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from headroom.models.errors import ModelError
from headroom.models.ops.torch import attention_probabilities


class KeysValues(NamedTuple):
    """The keys and values of the tokens that are attended to, projected once and read by every later token.

    keys, values: (batch, heads, m, d_head).
    """

    keys: Tensor
    values: Tensor

    def followed_by(self, later: KeysValues) -> KeysValues:
        """Return these with those of later tokens behind them."""
        return KeysValues(torch.cat([self.keys, later.keys], 2), torch.cat([self.values, later.values], 2))

    def of_rows(self, index: Tensor) -> KeysValues:
        """Return those of some rows of the batch. index: (n,) int64."""
        return KeysValues(self.keys[index], self.values[index])


class MultiHeadAttention(nn.Module):
    """Concat(head_1 … head_h)·W^O for h heads of d_model / h numbers each.

    width: d_model, a multiple of heads. The classic shape is 512 = 8 × 64. Raises ModelError otherwise.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ModelError(f"heads: {heads} heads do not divide a width of {width}")
        self.heads = heads
        self.head_size = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """Return the same attention with the weights of torch's module, which holds W^Q, W^K, W^V as one.

        Raises ModelError for torch's variants that the equation does not have: keys of another width, no
        biases, learned extra keys, or a zero key.
        """
        weights = module.in_proj_weight
        biases = module.in_proj_bias
        if weights is None or biases is None or module.bias_k is not None or module.add_zero_attn:
            raise ModelError("module: only keys and values as wide as queries, with biases and no added keys")
        attention = cls(module.embed_dim, module.num_heads)
        maps = (attention.query, attention.key, attention.value)
        with torch.no_grad():
            for own, weight, bias in zip(maps, weights.chunk(3), biases.chunk(3), strict=True):
                own.weight.copy_(weight)
                own.bias.copy_(bias)
            attention.output.weight.copy_(module.out_proj.weight)
            attention.output.bias.copy_(module.out_proj.bias)
        return attention

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        causal: bool = False,
        present: Tensor | None = None,
        head_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the attention's output, (batch, n, d_model).

        x: (batch, n, d_model). memory: (batch, m, d_model), what is attended to; default: x itself.
        causal: a token does not see later ones. present: (batch, m) bool, False for padding of what is
        attended to. head_mask: (heads,) or (batch, heads), 1 keeps a head and 0 removes it; None: all 1.
        """
        seen = self.keys_values(x if memory is None else memory)
        visible = None if present is None else present[:, None, None]
        if causal:
            earlier = earlier_tokens(x.shape[1], x.device)
            visible = earlier if visible is None else visible & earlier
        bias = None if visible is None else hiding(visible, x.dtype)
        return self.attend(x, seen, bias=bias, head_mask=head_mask)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Return the keys and values of tokens, (batch, m, d_model)."""
        return KeysValues(self._by_head(self.key(memory)), self._by_head(self.value(memory)))

    def attend(
        self, x: Tensor, seen: KeysValues, *, bias: Tensor | None = None, head_mask: Tensor | None = None
    ) -> Tensor:
        """Return the attention's output, (batch, n, d_model), for keys and values that are there already.

        x: (batch, n, d_model). bias: is added to the scores, broadcasts to (batch, heads, n, m); `hiding`
        makes one. head_mask: (heads,) or (batch, heads), 1 keeps a head and 0 removes it; None: all 1.
        """
        heads = self.probabilities(x, seen, bias) @ seen.values  # (batch, h, n, d_head)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None].to(heads.dtype)
        output: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return output

    def probabilities(self, x: Tensor, seen: KeysValues, bias: Tensor | None = None) -> Tensor:
        """Return what each token attends to, (batch, heads, n, m); rows sum to 1.

        x: (batch, n, d_model). bias: is added to the scores, broadcasts to (batch, heads, n, m).
        """
        query = self._by_head(self.query(x))
        return attention_probabilities(query, seen.keys, bias, self.head_size**-0.5)

    def _by_head(self, projected: Tensor) -> Tensor:
        """(batch, n, h·d_head) → (batch, h, n, d_head)."""
        return projected.view(*projected.shape[:2], self.heads, self.head_size).transpose(1, 2)


def earlier_tokens(length: int, device: torch.device) -> Tensor:
    """Return which tokens each one sees in masked self-attention, (length, length) bool."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def hiding(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores so that only what is visible is attended to: 0 and −∞."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, float("-inf"))

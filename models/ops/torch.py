"""The network's operators in plain torch: on any device, differentiable, and the reference for the others.

An `ops` object is chosen once, when a checkpoint is loaded (`models.ops.choose`). The network calls it for
what has a faster form on some hardware: affine maps, layer normalisation and attention over a pack.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.ops.causal import Causal, rms_normed, turned
from models.ops.relative import Relative

if TYPE_CHECKING:  # they call what this module computes
    from models.ops.kernels import Kernels

# MKL chooses the code of its vector functions (cos, tanh, log, erf) at the first call in a process. If that
# one runs on several threads, one of them may compute by other code, which is off by up to 2e-4. So the first
# call is of one number.
torch.ones(1).cos()

Tensors = Mapping[str, Tensor]
"""A checkpoint's tensors by name."""

SIZE_MULTIPLE = 16
"""Our compiled kernels compute heads and rows whose size is a multiple of this."""

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""The activations by the names that `models.checkpoint.fields.ACTIVATIONS` gives them."""


class Linear:
    """y = act(x·Wᵀ + b).

    weight: (out, in); bias: (out,); both of the dtype and on the device of the inputs.
    activation: a name in FUNCTIONS.
    """

    def __init__(self, weight: Tensor, bias: Tensor, activation: str = "none") -> None:
        self._weight = weight.contiguous()
        self.bias = bias.contiguous()
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map, x: (T, in) → (T, out)."""
        return FUNCTIONS[self.activation](F.linear(x, self._weight, self.bias))

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + x·Wᵀ + b); without a norm, the sum. For a map that has no activation.

        x: (T, in); residual: (T, out), its memory may become the result.
        """
        return normed(self(x) + residual, norm)

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Compute the product of this map, which has no activation, and another of the same layer.

        x: (T, in) → (T, out). Both are of the same ops and, if it is quantized, read x in the same way.
        """
        return self(x) * other(x)

    def weighted(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return an input of this map, (T, in), times weights, (1, in) or (T, in); x may be overwritten."""
        weights = weights.to(x.dtype)
        return x * weights if torch.is_grad_enabled() else x.mul_(weights)

    @property
    def weight(self) -> Tensor:
        """Return the weight in its plain layout, (out, in)."""
        return self._weight

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight and bias."""
        return self._weight.nbytes + self.bias.nbytes

    def rows(self, index: Tensor) -> Linear:
        """Return the map with only the outputs `index`, (n,) int64."""
        return self._alike(self.weight[index], self.bias[index])

    def columns(self, index: Tensor) -> Linear:
        """Return the map of only the inputs `index`, (n,) int64, as if the others were 0."""
        return self._alike(self.weight[:, index], self.bias)

    def _alike(self, weight: Tensor, bias: Tensor) -> Linear:
        """Return the same kind of map with another weight and bias."""
        return type(self)(weight, bias, self.activation)


class Norm:
    """Layer normalisation over the last dimension; without a bias, x / √(mean(x²) + ε)·weight.

    weight, bias: (D,); a weight without a bias is float32. kernels: those that compute it, if they compute
    rows of D numbers; else torch does.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, eps: float, kernels: Kernels | None = None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self.kernels = None if len(weight) % SIZE_MULTIPLE else kernels

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, D) → (T, D)."""
        if self.kernels is not None:
            return self.kernels.normalise(x, self.weight, self.bias, self.eps)
        if self.bias is None:
            return rms_normed(x, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def normed(x: Tensor, norm: Norm | None) -> Tensor:
    """Return norm(x), or x if there is no norm. (T, D) → (T, D)."""
    return x if norm is None else norm(x)


@dataclass(frozen=True, slots=True)
class Positions:
    """How a layer's attention sees positions.

    rotation: (positions, d) float32, of `rotations`: queries and keys are rotated by their positions.
    window: a token sees this many tokens to each side; None: all of its sequence.
    relative: scores of distances that are added.
    """

    rotation: Tensor | None = None
    window: int | None = None
    relative: Relative | None = None

    def only(self, heads: Sequence[int]) -> tuple[Positions, Sequence[int]]:
        """Return the same for some heads, and the heads of keys that they read: their own."""
        relative = None if self.relative is None else self.relative.only(heads)
        return replace(self, relative=relative), heads

    def scored(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor | None, float]:
        """Return what the scores of one sequence are made of.

        projected: (n, 3·h, d), queries, keys and values.
        Returns queries and keys, (h, n, d), what is added to their scaled products, and the scale.
        """
        parts = projected.view(len(projected), 3, -1, projected.shape[-1])
        if self.rotation is not None:
            parts = rotated(parts, self.rotation[: len(parts)])
        query, key, _ = parts.permute(1, 2, 0, 3)
        return query, key, self.bias(query, key), self.scale(query.shape[-1])

    def scale(self, head_size: int) -> float:
        """Return what q·kᵀ is multiplied by."""
        terms = 1 if self.relative is None else self.relative.terms
        return 1 / math.sqrt(head_size * terms)

    def bias(self, query: Tensor, key: Tensor, exists: Tensor | None = None) -> Tensor | None:
        """Return what is added to the scaled scores, broadcastable to (B, h, n, n); None for nothing.

        query, key: (B, h, n, d). exists: (B, n) bool, False for keys that fill up a shorter sequence; its
        queries, whose results nobody reads, see everything.
        """
        keys = key.shape[-2]
        visible = None if exists is None else exists[:, None, None]
        if self.window is not None and self.window < keys - 1:
            position = torch.arange(keys, device=key.device)
            near = (position[:, None] - position).abs() <= self.window
            visible = near if visible is None else near & visible | ~visible.mT
        added = None if self.relative is None else self.relative.bias(query, key)
        if visible is None:
            return added
        hidden = key.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        return hidden if added is None else hidden + added


PLAIN_POSITIONS = Positions()
"""Every token sees its whole sequence, and attention knows no positions."""


class TorchOps:
    """Plain torch on one device.

    dtype: of weights and activations.
    """

    max_pack_bytes: int | None = None
    """Bytes of the largest activation that this device computes well in one pass; None: any size."""

    kernels: Kernels | None = None
    """Our compiled kernels, which compute attention and norms; None: torch does."""

    takes_any_lengths = False
    """Whether attention computes batches with `any_lengths`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def linear(self, weight: Tensor, bias: Tensor, activation: str = "none") -> Linear:
        """Lay out an affine map for this device, as `Linear` takes it."""
        return Linear(weight, bias, activation)

    def norm(self, weight: Tensor, bias: Tensor, eps: float) -> Norm:
        """Return a layer normalisation for this device. weight, bias: (D,)."""
        return Norm(weight, bias, eps, self.kernels)

    def rms_norm(self, weight: Tensor, eps: float, offset: float) -> Norm:
        """Return x / √(mean(x²) + ε)·(weight + offset) for this device. weight: (D,)."""
        return Norm(weight.float() + offset, None, eps, self.kernels)

    def get(self, tensors: Tensors, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a checkpoint's tensor on this device, in `dtype` (default: the dtype of the weights)."""
        return tensors[name].to(self.device, dtype or self.dtype).contiguous()

    def attention(
        self, projected: Tensor, batch: PackedBatch, heads: int, weights: Tensor | None, positions: Positions
    ) -> Tensor:
        """Attend within each sequence of a pack, head by head: softmax(q kᵀ/√d)·v, times the head's weight.

        projected: (T, 3·h·d), queries, keys and values of h heads; weights: of the heads, (B, h), or (1, h)
        for all sequences, float32. A sequence's result in an exact batch has the same bits in any other one.
        Returns (T, h·d), 0 for tokens of no sequence; (B, h·d) if only first tokens are read.
        """
        parts = projected.view(projected.shape[0], 3, heads, -1)  # (T, 3, h, d)
        if positions.rotation is not None:
            parts = rotated(parts, positions.rotation[batch.positions])
        contexts = []
        for tokens, exists, index in batch.groups:
            query, key, value = parts[tokens].permute(2, 0, 3, 1, 4)  # (count, h, longest, d) each
            if batch.exact:  # products of one sequence and of several round alike only in one layout
                query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
            bias = positions.bias(query, key, exists)
            scale = positions.scale(query.shape[-1])
            context = self._attend(query, key, value, bias, scale).transpose(1, 2).flatten(0, 1)
            contexts.append(context if index is None else context[index])
        context = torch.cat(contexts)  # (tokens, h, d)
        if weights is not None:
            rows = batch.row_of_token[: len(context)] if len(weights) > 1 else slice(None)
            context = (context * weights[rows][..., None]).to(context.dtype)
        context = F.pad(context.flatten(1), (0, 0, 0, len(projected) - len(context)))
        return batch.leaving(context)

    def causal(self, projected: Tensor, batch: PackedBatch, how: Causal, weights: Tensor | None) -> Tensor:
        """Attend within each sequence of a pack, and to its prefix, one sequence at a time.

        projected: (T, (h + 2·groups)·d); weights: as `attention` takes them.
        Returns (T, h·d), 0 for tokens of no sequence; (B or more, h·d) if only last tokens are read.
        """
        lengths, last_only = batch.lengths.tolist(), batch.read == "last"
        before = [-1] * batch.rows if batch.prefixes is None else batch.prefixes[: batch.rows].tolist()
        starts = [0 if prefix < 0 else lengths[prefix] for prefix in before]
        split = projected[: sum(lengths)].split_with_sizes(lengths)
        parts = [how.parts(part, start) for part, start in zip(split, starts, strict=True)]
        contexts = []
        for row, (query, *own) in enumerate(parts):
            asked = query[:, -1:] if last_only else query
            if before[row] >= 0:
                own = [torch.cat(both, 1) for both in zip(parts[before[row]][1:], own, strict=True)]
            key, value = (how.grouped(part) for part in own)  # (h, n, d) each
            visible = torch.ones(asked.shape[1], key.shape[1], dtype=torch.bool, device=key.device)
            mask = visible.tril_(key.shape[1] - asked.shape[1])
            context = F.scaled_dot_product_attention(asked, key, value, attn_mask=mask)
            if weights is not None:
                of_heads = weights[row if len(weights) > 1 else 0]
                context = (context * of_heads[:, None, None]).to(context.dtype)
            contexts.append(context)
        joined = torch.cat(contexts, 1).transpose(0, 1).flatten(1)
        rows = len(batch.first_token) if last_only else len(projected)
        return F.pad(joined, (0, 0, 0, rows - len(joined)))

    def synchronize(self) -> None:
        """Wait for the device, so that another thread's stream may use (or free) what was computed."""
        if self.device.type == "cuda":
            # A stream's own `synchronize` would keep a core busy.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            event.synchronize()

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """Return the context of padded sequences, (B, h, n, d), like queries, keys and values."""
        return attention_probabilities(query, key, bias, scale) @ value


class CudaOps(TorchOps):
    """One GPU, any number format: torch's fused attention over padded groups of sequences.

    No operators for a GPU wait for it: no value is read on the host, and every copy to the GPU starts in
    pinned memory. So a pass can be captured as a CUDA graph (`models.graphs`).
    """

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


def attention_probabilities(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return softmax(q kᵀ·scale + bias), (…, n, m); rows sum to 1. query: (…, n, d); key: (…, m, d)."""
    scores = query @ key.transpose(-1, -2) * scale
    return torch.softmax(scores if bias is None else scores + bias, -1)


def rotations(
    theta: float, positions: int, head_size: int, device: torch.device, divisor: Tensor | None = None
) -> Tensor:
    """Return cosines and sines of the angles position·theta^(−2i/d), i < d/2: (positions, d) float32.

    divisor: () or (d/2,), of the angles.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    frequencies = frequencies if divisor is None else frequencies / divisor
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], -1).to(device)


def rotated(parts: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries and keys by their positions (RoPE, Su et al. 2021, https://arxiv.org/abs/2104.09864).

    parts: (T, 3, h, d), queries, keys and values; rotation: (T, d), rows of `rotations`.
    """
    return torch.cat([turned(parts[:, :2], rotation[:, None, None]), parts[:, 2:]], 1)

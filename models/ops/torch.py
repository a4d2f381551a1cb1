"""The network's operators in plain torch: on any device, differentiable, and the reference for the others.

An `ops` object is chosen once, when a checkpoint is loaded (`headroom.models.ops.choose`). The network calls
it for what has a faster form on some hardware: affine maps, layer normalisation and attention over a pack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.batch import PackedBatch
from headroom.models.ops.causal import Causal, rms_normed
from headroom.models.ops.kernels import SIZE_MULTIPLE, Kernels, NormWeights
from headroom.models.ops.positions import Positions, rotated
from headroom.models.ops.varlen import VarlenAttention

# MKL chooses the code of its vector functions (cos, tanh, log, erf) at the first call in a process. If that
# one runs on several threads, one of them may compute by other code, which is off by up to 2e-4. So the first
# call is of one number.
torch.ones(1).cos()

Tensors = Mapping[str, Tensor]
"""A checkpoint's tensors by name."""

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""The activations by the names that `headroom.models.checkpoint.fields.ACTIVATIONS` gives them."""


HEAD_COUNTS = 4
"""How many distinct head counts a layer may compute on a CPU for masks of single requests (the full count is
one of them). oneDNN compiles a kernel for every new product shape: 2 to 3 ms, and half a MiB stays."""


@dataclass(frozen=True, slots=True)
class MaskPolicy:
    """How the masks of a batch are applied on a device (`headroom.models.selection`).

    slices: whether copies of the weights are made without what is off in all rows; else it is multiplied
        by 0.
    head_counts: how many distinct head counts a layer may compute for masks of single requests; None: any.
    gathers: whether masks are copied once and gathered per row on the device, not on the host.
    in_graphs: whether passes are captured as CUDA graphs. All heads have weights then, so that one graph fits
        all masks.
    """

    slices: bool = True
    head_counts: int | None = None
    gathers: bool = False
    in_graphs: bool = False


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

        x: (T, in) → (T, out). Both maps belong to the same ops; maps of 8 bits quantize x alike.
        """
        return self(x) * other(x)

    def mask_inputs(self, x: Tensor, weights: Tensor) -> Tensor:
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
        """Return the map restricted to the inputs `index`, (n,) int64; the other inputs count as 0."""
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

    @property
    def fused(self) -> NormWeights | None:
        """Return what a kernel needs to normalise its own result; None if torch computes this norm."""
        return None if self.kernels is None else (self.weight, self.bias, self.eps)

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


class TorchOps:
    """Plain torch on one device.

    dtype: of weights and activations.
    """

    max_pack_bytes: int | None = None
    """Bytes of the largest activation that this device computes well in one pass; None: any size."""

    kernels: Kernels | None = None
    """Our compiled kernels, which compute attention and norms; None: torch does."""

    masking = MaskPolicy(head_counts=HEAD_COUNTS)
    """How masks are applied here."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def linear(self, weight: Tensor, bias: Tensor, activation: str = "none") -> Linear:
        """Lay out an affine map for this device. weight: (out, in). bias: (out,)."""
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
                query = query.contiguous()
                key = key.contiguous()
                value = value.contiguous()
            bias = positions.bias(query, key, exists)
            scale = positions.scale(query.shape[-1])
            context = self._attend(query, key, value, bias, scale).transpose(1, 2).flatten(0, 1)
            contexts.append(context if index is None else context[index])
        joined = torch.cat(contexts)  # (tokens, h, d)
        if weights is not None:
            if len(weights) > 1:
                weights = weights[batch.row_of_token[: len(joined)]]
            joined = (joined * weights[..., None]).to(joined.dtype)
        padding = len(projected) - len(joined)
        return batch.leaving(F.pad(joined.flatten(1), (0, 0, 0, padding)))

    def causal(self, projected: Tensor, batch: PackedBatch, spec: Causal, weights: Tensor | None) -> Tensor:
        """Attend within each sequence of a pack, and to its prefix, one sequence at a time.

        projected: (T, (h + 2·groups)·d); weights: of the heads, (B, h), or
        (1, h) for all sequences, float32; None: all 1.
        Returns (T, h·d), 0 for tokens of no sequence; (B or more, h·d) if only last tokens are read.
        """
        lengths = batch.lengths.tolist()
        prefixes = [-1] * batch.rows if batch.prefixes is None else batch.prefixes.tolist()
        last_only = batch.read == "last"
        parts = []
        for row, tokens in enumerate(projected[: sum(lengths)].split_with_sizes(lengths)):
            prefix = prefixes[row]
            parts.append(spec.parts(tokens, start=0 if prefix < 0 else lengths[prefix]))
        contexts = []
        for row, (query, key, value) in enumerate(parts):
            if prefixes[row] >= 0:
                _, prefix_key, prefix_value = parts[prefixes[row]]
                key = torch.cat([prefix_key, key], 1)
                value = torch.cat([prefix_value, value], 1)
            if last_only:
                query = query[:, -1:]
            context = _causal_context(query, spec.grouped(key), spec.grouped(value))
            if weights is not None:
                head_weights = weights[row if len(weights) > 1 else 0]
                context = (context * head_weights[:, None, None]).to(context.dtype)
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

    def to_host(self, x: Tensor) -> Tensor:
        """Return what the device has computed, in the host's memory. Waits for the device once."""
        if self.device.type == "cuda":
            host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            x = host.copy_(x, non_blocking=True)
        self.synchronize()
        return x

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """Return the context of padded sequences, (B, h, n, d), like queries, keys and values."""
        return attention_probabilities(query, key, bias, scale) @ value


class CudaOps(TorchOps):
    """One GPU, any number format: torch's fused attention over padded groups of sequences.

    No operators for a GPU wait for it: no value is read on the host, and every copy to the GPU starts in
    pinned memory. So a pass can be captured as a CUDA graph (`headroom.models.graphs`).
    varlen: computes the attention of decoders; None: a loop over sequences does.
    """

    masking = MaskPolicy(gathers=True)

    def __init__(
        self, device: torch.device, dtype: torch.dtype, varlen: VarlenAttention | None = None
    ) -> None:
        super().__init__(device, dtype)
        self.varlen = varlen

    def causal(self, projected: Tensor, batch: PackedBatch, spec: Causal, weights: Tensor | None) -> Tensor:
        """Return a decoder's attention; with `varlen`, what belongs to no sequence is undefined."""
        if self.varlen is None:
            return super().causal(projected, batch, spec, weights)
        return self.varlen(projected, batch, spec, weights)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


def _causal_context(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the context of the last n of m tokens, which see those before them: (h, n, d).

    query: (h, n, d); key, value: (h, m, d).
    """
    visible = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=key.device)
    visible = visible.tril_(key.shape[1] - query.shape[1])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


def attention_probabilities(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return softmax(q kᵀ·scale + bias), (…, n, m); rows sum to 1. query: (…, n, d); key: (…, m, d)."""
    scores = query @ key.transpose(-1, -2) * scale
    return torch.softmax(scores if bias is None else scores + bias, -1)

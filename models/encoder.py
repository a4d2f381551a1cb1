"""The BERT encoder over packed sequences, with a weight for every head of every sequence.

Devlin et al. 2019, https://arxiv.org/abs/1810.04805; the layout follows transformers' BertModel, to
which the tests hold it. Read `Encoder.forward` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models import kernels
from models.attention import MultiHeadAttention, has_varlen
from models.checkpoint import expected_shapes, layer_prefix
from models.config import ModelConfig
from models.int8_linear import attention_products, feed_forward_products
from models.linear import Linear
from models.live_heads import LayerHeads, SlicedAttention, module_bytes, plan
from models.packing import PackedBatch
from models.recordings import CudaRecorder, Recordings

LARGEST_BUFFER = 12 << 20
"""Bytes of the largest activation on a CPU: BERT-base's is then 2,048 tokens. With AMX its documents of 128
tokens came at 77 a second in packs of 4,096 tokens, at 98 in packs of 2,048; without, it makes no difference.
From 32 MiB on glibc hands memory back to the system at once, and every layer's would be new pages (63)."""

WIDTHS = 4
"""To how many different numbers of heads a layer is cut on a CPU, all of them being one, where masks come and
go. For a product of every new shape oneDNN compiles a kernel: 2 to 3 ms, and half a MiB that it keeps."""

LEAST_ROOM = 64 << 20
"""Bytes that cut-down attention modules may always hold: those of many masks, where a model is small."""

RECORDED_TOKENS = 8192
"""A pack of more tokens is never recorded as a CUDA graph: its kernels run longer than launching takes."""


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation over the last dimension."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, D) → (T, D)."""
        ours = kernels.usable(x, x.shape[1])
        if ours is not None:
            return ours.layer_norm(x, self.weight, self.bias, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """One post-norm transformer layer. `attention` is None where pruning left no head at all."""

    attention: MultiHeadAttention | None
    attention_bias: Tensor
    attention_norm: Norm
    up: Linear
    down: Linear
    norm: Norm

    def feed_forward(self, x: Tensor) -> Tensor:
        """x: (T, D), may be written over → (T, D)."""
        return self.norm(self.down(self.up(x), residual=x, overwrite=True))


@dataclass(frozen=True, slots=True)
class _Live:
    """What a layer computes of its attention for one batch.

    module: the layer's own, or one with only the heads that the batch needs; None where it needs none.
    weights: (rows, h) or (1, h) of the module's heads, on the device; None where all are 1.
    heads: positions in the layer of the heads that were cut out; None for the layer's own module.
    """

    module: MultiHeadAttention | None
    weights: Tensor | None
    heads: tuple[int, ...] | None


class Encoder:
    """A classifier's network, its weights converted and laid out for one device.

    tensors: as models.checkpoint.read_tensors gives them. dtype: of weights and activations;
    pooler and classifier always compute in float32.
    deterministic: float32 results that are the same bits in any batch; heads are then never cut out.
    parameters, nbytes: how many numbers the weights are, and how much memory they take here.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool = False,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.deterministic = deterministic

        def get(name: str, as_dtype: torch.dtype = dtype) -> Tensor:
            return tensors[name].to(device, as_dtype).contiguous()

        def norm(name: str) -> Norm:
            return Norm(get(f"{name}.weight"), get(f"{name}.bias"), config.layer_norm_eps)

        def linear(name: str, activation: str = "none") -> Linear:
            return Linear(get(f"{name}.weight"), get(f"{name}.bias"), activation)

        embeddings = "bert.embeddings."
        self.word_embeddings = get(f"{embeddings}word_embeddings.weight")
        self.position_embeddings = get(f"{embeddings}position_embeddings.weight")
        self.segment_embeddings = get(f"{embeddings}token_type_embeddings.weight")
        self.embedding_norm = norm(f"{embeddings}LayerNorm")
        self.layers = []
        for number, kept in enumerate(config.kept_heads):
            prefix = layer_prefix(number)
            if config.int8:
                up, down = feed_forward_products(
                    tensors, prefix, config.activation, device=device, dtype=dtype
                )
            else:
                up = linear(f"{prefix}intermediate.dense", config.activation)
                down = linear(f"{prefix}output.dense")
            attention = None
            if kept:
                if config.int8:
                    projection, output = attention_products(tensors, prefix, device=device, dtype=dtype)
                else:
                    names = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
                    projection = Linear(
                        torch.cat([get(f"{name}.weight") for name in names]),
                        torch.cat([get(f"{name}.bias") for name in names]),
                    )
                    output = linear(f"{prefix}attention.output.dense")
                attention = MultiHeadAttention(len(kept), config.head_size, projection, output)
            self.layers.append(
                Layer(
                    attention,
                    get(f"{prefix}attention.output.dense.bias"),
                    norm(f"{prefix}attention.output.LayerNorm"),
                    up,
                    down,
                    norm(f"{prefix}output.LayerNorm"),
                )
            )
        self.pooler, self.classifier = (
            Linear(get(f"{name}.weight", torch.float32), get(f"{name}.bias", torch.float32))
            for name in ("bert.pooler.dense", "classifier")
        )
        self.parameters = sum(tensors[name].numel() for name, _ in expected_shapes(config))

        self.nbytes = sum(
            tensors[name].numel() * _itemsize(name, tensors[name], dtype)
            for name, _ in expected_shapes(config)
        )
        self.sliced = SlicedAttention(max_bytes=0)
        self.make_room(sliced=1)
        self.recordings: Recordings | None = None
        if has_varlen(device, dtype) and not deterministic:
            self.recordings = Recordings(CudaRecorder(device))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # other threads' streams may use the weights now

    @property
    def kernels(self) -> str | None:
        """The level of our compiled kernels that computes attention here; None where torch does."""
        ours = kernels.fitting(self.dtype, self.device, self.config.head_size)
        return None if ours is None else ours.name

    @property
    def pack_tokens(self) -> int | None:
        """How many tokens of a pack the device computes well; more are better given in several. None: any."""
        if self.device.type != "cpu":
            return None
        inner = self.config.intermediate_size * (1 if self.config.int8 else self.dtype.itemsize)
        widest = max(inner, 3 * self.config.num_heads * self.config.head_size * self.dtype.itemsize)
        return LARGEST_BUFFER // widest

    @property
    def number_format(self) -> str:
        """Of the layers' products: int8, or the name of the weights' dtype."""
        return "int8" if self.config.int8 else str(self.dtype).removeprefix("torch.")

    def make_room(self, *, sliced: int) -> None:
        """Lets the cache of cut-down attention hold whole networks for so many variants whose heads are cut
        out, and one more for masks that come and go."""
        attention = sum(module_bytes(layer.attention) for layer in self.layers if layer.attention)
        self.sliced.max_bytes = max(LEAST_ROOM, (1 + sliced) * attention)

    def forward(
        self, batch: PackedBatch, head_weights: np.ndarray | None = None, *, sliced: bool = False
    ) -> Tensor:
        """Logits of a packed batch.

        head_weights: (rows, layers, heads) float32 in the caller's order of rows, or (layers, heads)
            for all rows; 1 keeps a head, 0 removes it; None keeps all.
        sliced: these heads come again and again, so nothing is computed but them (`WIDTHS`).
        Returns (rows, labels) float32 in the caller's order, labels as in the checkpoint.
        """
        if head_weights is not None and head_weights.ndim == 3:
            head_weights = head_weights[batch.order]
        with torch.inference_mode():
            layers = self._live(head_weights, batch, sliced=sliced)
            if self.recordings is None or batch.ids.shape[0] > RECORDED_TOKENS:
                logits = self._logits(batch, layers)[: batch.rows]
            else:
                logits = self._recorded(batch, layers, self.recordings)[: batch.rows]
            restored = torch.empty_like(logits)
            restored[torch.from_numpy(batch.order).to(self.device)] = logits
            if self.device.type == "cuda":
                # Only then may what `layers` holds be freed for another stream.
                torch.cuda.current_stream(self.device).synchronize()
            return restored

    def _logits(self, batch: PackedBatch, layers: Sequence[_Live]) -> Tensor:
        """Logits of a pack's first tokens, (rows or more, labels) float32."""
        x = self.embed(batch)  # (T, D)
        *lower, last = layers
        for number, live in enumerate(lower):
            x = self._attend(number, x, batch, live)
            x = self.layers[number].feed_forward(x)
        # The score reads first tokens only: what the last layer makes of the others is never computed.
        x = self._attend(len(lower), x, batch, last, first_only=True)
        return self.classify(self.layers[-1].feed_forward(x))

    def _recorded(self, batch: PackedBatch, layers: Sequence[_Live], recordings: Recordings) -> Tensor:
        """The same through a recording of the batch's shape and live heads."""
        masked = [live.weights for live in layers if live.weights is not None]

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            weights = iter(inputs[len(batch.tensors) :])
            held = [live if live.weights is None else replace(live, weights=next(weights)) for live in layers]
            return self._logits(batch.holding(inputs[: len(batch.tensors)]), held)

        inputs = (*batch.tensors, *masked)
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        key = (shapes, batch.max_length, tuple((live.heads, live.weights is None) for live in layers))
        return recordings.run(key, inputs, compute)

    def attention(
        self, batch: PackedBatch, heads: Sequence[tuple[int, int]], head_weights: np.ndarray | None = None
    ) -> np.ndarray:
        """What some heads attend to in a batch of one pair.

        heads: (layer, head) in the numbering of the unpruned model; head_weights: (layers, heads).
        A head that is pruned or has weight w < 1 shows its probabilities times w (zeros when off).
        Returns (len(heads), n, n) float32; row i is what token i attends to.
        """
        length = int(batch.offsets[1])
        maps = np.zeros((len(heads), length, length), np.float32)
        last = max(layer for layer, _ in heads)
        with torch.inference_mode():
            x = self.embed(batch)
            for number, live in enumerate(self._live(head_weights, batch)[: last + 1]):
                attention, kept = self.layers[number].attention, self.config.kept_heads[number]
                wanted = [(i, head) for i, (layer, head) in enumerate(heads) if layer == number]
                if attention is not None and wanted:
                    probabilities = attention.probabilities(x[:length]).numpy(force=True)
                    for i, head in wanted:
                        if head in kept:
                            weight = 1.0 if head_weights is None else head_weights[number, head]
                            maps[i] = probabilities[kept.index(head)] * weight
                x = self._attend(number, x, batch, live)
                x = self.layers[number].feed_forward(x)
        return maps

    def embed(self, batch: PackedBatch) -> Tensor:
        """Word + position + segment embeddings, normalised. Returns (T, D)."""
        x = F.embedding(batch.ids, self.word_embeddings)
        x = x + F.embedding(batch.segments, self.segment_embeddings)
        x += F.embedding(batch.positions, self.position_embeddings)
        return self.embedding_norm(x)

    def classify(self, first: Tensor) -> Tensor:
        """Pooler and classifier over first tokens. (n, D) → (n, labels) float32."""
        return self.classifier(torch.tanh(self.pooler(first.float())))

    def _live(self, weights: np.ndarray | None, batch: PackedBatch, *, sliced: bool = False) -> list[_Live]:
        """What each layer computes of its attention under head weights in the order of the pack."""
        step = 1 if sliced or self.device.type != "cpu" else max(1, self.config.num_heads // WIDTHS)
        layers = plan(weights, self.config.kept_heads, step=step)
        if weights is None:
            return [_Live(layer.attention, None, None) for layer in self.layers]
        stacked = torch.tensor(weights, device=self.device, dtype=torch.float32)
        if stacked.ndim == 2:
            stacked = stacked[None]
        elif self.recordings is not None:  # a recording is of as many rows as the pack was filled up to
            stacked = F.pad(stacked, (0, 0, 0, 0, 0, batch.first_token.shape[0] - batch.rows))
        return [
            self._live_layer(number, heads, stacked[:, number], sliced=sliced)
            for number, heads in enumerate(layers)
        ]

    def _live_layer(self, number: int, heads: LayerHeads, weights: Tensor, *, sliced: bool) -> _Live:
        module, kept = self.layers[number].attention, self.config.kept_heads[number]
        if module is None or not heads.live:
            return _Live(None, None, ())
        cut = None
        if len(heads.live) < module.heads and not self.deterministic:
            cut = self.sliced.get(number, module, heads.live, at_once=sliced)
        if cut is None:
            live, columns, scaled = None, kept, bool(heads.scaled)
        else:
            module, live, columns = cut, heads.live, tuple(kept[place] for place in heads.live)
            scaled = not set(heads.live).isdisjoint(heads.scaled)
        if not scaled:
            return _Live(module, None, live)
        return _Live(module, weights if len(columns) == weights.shape[1] else weights[:, columns], live)

    def _attend(
        self, number: int, x: Tensor, batch: PackedBatch, live: _Live, *, first_only: bool = False
    ) -> Tensor:
        """Attention, residual and norm of one layer, over the heads that the batch needs.

        x: (T, D), may be written over → (T, D), or (B, D) where only each sequence's first token is wanted.
        """
        layer = self.layers[number]
        residual = x[batch.first_token] if first_only else x
        if live.module is None:  # nothing but the bias of W^O is left
            return layer.attention_norm(residual + layer.attention_bias)
        joined = live.module.joined(x, batch, live.weights, first_only=first_only)
        return layer.attention_norm(live.module.output(joined, residual=residual, overwrite=True))


def _itemsize(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Bytes of each number of a checkpoint's tensor once it is here."""
    if not tensor.is_floating_point():
        return tensor.itemsize
    return 4 if name.startswith(("bert.pooler", "classifier")) else dtype.itemsize

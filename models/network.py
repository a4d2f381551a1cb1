"""The networks: BERT and ModernBERT over packed sequences, with a weight for each head of each sequence.

    BERT                                              ModernBERT
    x = norm(word + position + segment)               x = norm(word)                                (T, D)
    for each layer:                                   for each layer:
        x = norm(x + heads(x)·W^O)                        x = x + heads(norm(x))·W^O
        x = norm(x + down(act(up(x))))                    y = norm(x);  x = x + down(act(up(y)) · gate(y))
    classifier(tanh(pooler(first token of x)))        classifier(norm(act(dense(pool(norm(x))))))  (B, labels)

    head_i = softmax(q_i k_iᵀ/√d)·v_i · weight_i                                                    (T, d)

ModernBERT rotates queries and keys by their positions, its local layers attend to neighbours alone, and its
`pool` takes the first token or the mean of all. A head's weight multiplies its output before W^O, which
equals multiplying its attention probabilities. What differs between processors is in `headroom.models.ops`.
Devlin et al. 2019, https://arxiv.org/abs/1810.04805; Warner et al. 2024, https://arxiv.org/abs/2412.13663.
The tests hold them to transformers' BertModel and ModernBertModel.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.batch import PackedBatch, Rung
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.shapes import stored_shapes
from headroom.models.device import is_out_of_memory
from headroom.models.graphs import Graphs
from headroom.models.layer import AttentionHeads, FeedForward, Layer
from headroom.models.ops import choose
from headroom.models.ops.causal import Causal
from headroom.models.ops.torch import FUNCTIONS, Linear, Norm, Tensors, TorchOps, normed
from headroom.models.selection import Chosen, RowMasks, Selector, Slicing
from headroom.models.weights import Weights, parameters_of


class Network(Weights):
    """A classifier's network, its weights laid out for one device.

    A family says how tokens enter it (`embed`), what its layers are, and what its classifier is (`classify`).
    tensors: what `headroom.models.checkpoint.tensors.read_tensors` returns.
    dtype: of weights and activations; the classifier and what it reads always compute in float32.
    deterministic: float32 results that are the same bits in any batch; nothing is then left out of a product.
    ops: default: the fastest that the device has.
    parameters, nbytes: the number of weights, and the bytes that they take up here.
    max_pack_tokens: the tokens of the largest pack that the device computes well; None: no limit.
    fills_finely: whether products of few rows gain by fewer rows: those of float32 on a CPU do.
    """

    reads: Literal["first", "last", "all"] = "first"
    """The tokens of a sequence that the classifier reads; the last layer computes no others."""

    parts: ClassVar[Sequence[str]] = "attention", "maps"
    """The parts of `headroom.models.ops.trial.PARTS` that it computes; a GPU's kernels for them are checked
    before use."""

    word_embeddings: Tensor
    """(vocabulary, D), or as wide as the embeddings are."""

    final_norm: Norm | None = None
    """The norm of what leaves the last layer; None if there is none."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        *,
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool = False,
        ops: TorchOps | None = None,
    ) -> None:
        super().__init__(config, ops or choose(config, device, dtype, self.parts))
        self.device = device
        self.dtype = dtype
        self.deterministic = deterministic
        self.lay_out(tensors)
        self.parameters = parameters_of(config)
        float_shapes = stored_shapes(replace(config, int8=False))
        self.nbytes = sum(
            tensors[name].numel() * _itemsize(name, tensors[name], dtype) for name, _ in float_shapes
        )
        masking = self.ops.masking
        if deterministic:
            masking = replace(masking, slices=False)
        self.selector = Selector(self.layers, config, self.ops, masking)
        inner_bytes = config.intermediate_size * (1 if config.int8 else dtype.itemsize)
        projected_bytes = 3 * config.hidden_size * dtype.itemsize
        limit = self.ops.max_pack_bytes
        self.max_pack_tokens = None if limit is None else limit // max(inner_bytes, projected_bytes)
        self.fills_finely = device.type == "cpu" and dtype == torch.float32 and not config.int8
        captures = masking.in_graphs and self.reads == "first"
        self.graphs = Graphs(device, self.selector) if captures else None
        self.ops.synchronize()  # from here on, other threads' streams may use the weights

    @abstractmethod
    def lay_out(self, tensors: Tensors) -> None:
        """Make `layers` and everything else that holds weights."""

    @abstractmethod
    def embed(self, batch: PackedBatch) -> Tensor:
        """Return what enters the first layer: (T, D)."""

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """Return logits. pooled: (n, D) → (n, labels) float32."""

    def forward(self, batch: PackedBatch, masks: RowMasks | None = None, *, sliced: bool = False) -> Tensor:
        """Return the logits of a packed batch.

        masks: in the caller's order of rows, or one for all rows; None: all on.
        sliced: the mask belongs to a sliced variant, so exactly what is on is computed.
        Returns (rows, labels) float32 on the host, in the caller's order, labels as in the checkpoint.
        """
        try:
            with torch.inference_mode():
                return self._forward(batch, masks, sliced=sliced)
        except (RuntimeError, MemoryError) as error:
            if self.graphs is not None and self.graphs.ladder and is_out_of_memory(error):
                self.graphs.drop("the GPU's memory was full")
            raise

    def _forward(self, batch: PackedBatch, masks: RowMasks | None, *, sliced: bool) -> Tensor:
        logits = None if self.graphs is None else self.graphs.logits(batch, masks, sliced=sliced)
        if logits is None:
            pending = list[Chosen | None]()
            states = self.hidden_states(batch, pending)
            next(states)  # the device computes what enters the first layer while the host reads the masks
            slicing: Slicing = "at once" if sliced else "when repeated"
            selection = self.selector.select(masks, batch.order, slicing)
            pending.extend(selection)
            logits = self.classify(self._pooled(batch, states))[batch.answers]
        # Only then may another stream reuse the selection's memory.
        return self.ops.to_host(logits[: len(batch.answers)])

    @property
    def ladder(self) -> Sequence[Rung]:
        """Return the shapes of which there are CUDA graphs."""
        return () if self.graphs is None else self.graphs.ladder

    def ladder_of(self, masks: RowMasks | None, *, sliced: bool) -> Sequence[Rung]:
        """Return those of which there are graphs for these masks, for `pack`."""
        return () if self.graphs is None else self.graphs.ladder_of(masks, sliced=sliced)

    def capture(self, batch_tokens: int, masks: RowMasks | None = None, *, sliced: bool = False) -> None:
        """Capture CUDA graphs of the whole network, and of masks that a config names; without a GPU, nothing.

        batch_tokens: the maximum of a batch. masks: one mask; if it is not `sliced`, only the layers and
        units that it skips make a difference.
        """
        if self.graphs is None:
            return
        weights = np.zeros((self.config.num_layers, self.config.num_heads), np.float32)
        ways: list[tuple[RowMasks | None, bool]] = [(None, False), (RowMasks(weights), False)]
        if masks is not None:
            ways.append((masks if sliced else replace(masks, weights=weights, index=None), sliced))
        with torch.inference_mode():
            for fixed, is_sliced in ways:
                self.graphs.capture(self.answers, fixed, sliced=is_sliced, batch_tokens=batch_tokens)

    def answers(self, batch: PackedBatch, selection: Iterable[Chosen | None]) -> Tensor:
        """Return the logits of a pack's `answers`, (pairs, labels) float32."""
        return self.logits(batch, selection)[batch.answers]

    def logits(self, batch: PackedBatch, selection: Iterable[Chosen | None]) -> Tensor:
        """Return the logits of a pack's sequences, (B or more, labels) float32, in the pack's order."""
        return self.classify(self.pooled(batch, selection))

    def pooled(self, batch: PackedBatch, selection: Iterable[Chosen | None]) -> Tensor:
        """Return what `classify` reads of a pack's sequences, (B or more, D), in the pack's order."""
        return self._pooled(batch, self.hidden_states(batch, selection))

    def _pooled(self, batch: PackedBatch, states: Iterator[Tensor]) -> Tensor:
        """Return what `classify` reads, from the states that `hidden_states` yields."""
        for x in states:  # noqa: B007 - the last one is read
            pass
        return x if self.final_norm is None else self.pool(x, batch)

    def hidden_states(
        self,
        batch: PackedBatch,
        selection: Iterable[Chosen | None],
        *,
        entering: Tensor | None = None,
        first: int = 0,
        every_token: bool = False,
    ) -> Iterator[Tensor]:
        """Yield what enters the first layer, then what leaves each one: (T, D).

        What leaves the last layer is (B or more, D) of the tokens that the classifier reads; with
        `every_token`, (T, D). A yielded tensor may be overwritten by the next layer.
        selection: what each layer from `first` on computes. entering: what enters layer `first`, (T, D);
        default: the embeddings.
        """
        x = self.embed(batch) if entering is None else entering
        yield x
        for layer, chosen in zip(self.layers[first:], selection, strict=True):
            if layer is self.layers[-1] and not every_token:
                batch = replace(batch, read=self.reads)
            x = self.layer_output(layer, x, batch, chosen)
            yield x

    def layer_output(self, layer: Layer, x: Tensor, batch: PackedBatch, chosen: Chosen | None) -> Tensor:
        """Return what leaves a layer: (T, D), or (B or more, D) of the tokens that are read.

        x: (T, D), what enters; may be overwritten. A layer that is skipped returns it unchanged.
        """
        residual = batch.leaving(x)
        if chosen is None:
            return residual
        heads = chosen.heads
        if heads is None:
            x = normed(residual + layer.attention_bias, layer.attention_norm)
        else:
            entering = normed(x, layer.attention_input_norm)
            concatenated = self.attend(heads, entering, batch, chosen.head_weights)
            # x = norm(residual + concatenated·W^O)
            x = heads.output.add_norm(concatenated, residual, layer.attention_norm)
        if chosen.units is None:
            return normed(x + layer.units.down.bias.to(x.dtype), layer.feed_forward_norm)
        entering = normed(x, layer.feed_forward_input_norm)
        inner = self.inner(chosen.units, entering, chosen.unit_weights)
        return chosen.units.down.add_norm(inner, x, layer.feed_forward_norm)

    def attend(self, heads: AttentionHeads, x: Tensor, batch: PackedBatch, weights: Tensor | None) -> Tensor:
        """Return concat(head_1 … head_h), the input of W^O: (T, h·d), or (B, h·d) of tokens that are read.

        x: (T, D). weights: of the heads, (B, h) or (1, h); None: all 1.
        """
        projected = heads.query_key_value(x)
        positions = heads.positions
        if isinstance(positions, Causal):
            return self.ops.causal(projected, batch, positions, weights)
        return self.ops.attention(projected, batch, heads.count, weights, positions)

    def inner(self, units: FeedForward, x: Tensor, weights: Tensor | None) -> Tensor:
        """Return act(up(x)) · gate(x) · weights, the input of the down map: (T, units).

        x: (T, D). weights: of the units, (1, units) or (T, units); None: all 1.
        """
        inner = units.up(x) if units.gate is None else units.gate.times(units.up, x)
        return inner if weights is None else units.down.mask_inputs(inner, weights)

    def pool(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """Return what `classify` reads, (B, D): the tokens that leave the last layer, or the mean of all."""
        x = normed(x, self.final_norm)
        if self.reads != "all":
            return x
        # The last bag ends with the list, whatever its offset: padding must not be in it.
        tokens = torch.arange(int(batch.lengths.sum()), dtype=torch.int32, device=self.device)
        return F.embedding_bag(tokens, x.float(), batch.offsets, mode="mean", include_last_offset=True)

    def attention_maps(
        self, batch: PackedBatch, heads: Sequence[tuple[int, int]], masks: RowMasks | None = None
    ) -> np.ndarray:
        """Return what some heads attend to in a batch of one pair of n tokens.

        heads: (layer, head) in the numbering of the unpruned model; masks: one mask.
        A head that is pruned or has weight w < 1 shows its probabilities times w (zeros if it is off).
        Returns (len(heads), n, n) float32; row i is what token i attends to.
        """
        length = int(batch.lengths[0])
        last = max(layer for layer, _ in heads)
        maps = np.zeros((len(heads), length, length), np.float32)
        with torch.inference_mode():
            states = self.hidden_states(batch, self.selector.select(masks))
            for number, x in zip(range(last + 1), states, strict=False):
                layer = self.layers[number]
                kept = self.config.kept_heads[number]
                wanted = {
                    row: head
                    for row, (of_layer, head) in enumerate(heads)
                    if of_layer == number and head in kept
                }
                if layer.heads is None or not wanted:
                    continue
                entering = normed(x[:length], layer.attention_input_norm)
                probabilities = layer.heads.probabilities(entering).numpy(force=True)
                for row, head in wanted.items():
                    weight = 1.0 if masks is None else masks.weights[number, head]
                    maps[row] = probabilities[kept.index(head)] * weight
            self.ops.synchronize()  # as in `forward`
        return maps

    def in_plain_torch(self) -> Self:
        """Return the same network in float32 on `TorchOps`: slower, and differentiable."""
        return type(self)(
            replace(self.config, int8=False),
            self.tensors(),
            device=self.device,
            dtype=torch.float32,
            deterministic=True,
            ops=TorchOps(self.device, torch.float32),
        )

    @property
    def number_format(self) -> str:
        """Return the number format of the layers' products: int8, or the name of the weights' dtype."""
        return "int8" if self.config.int8 else str(self.dtype).removeprefix("torch.")


class Bert(Network):
    """BERT and ModernBERT with a classifier on the first token or on the mean of all, and the families whose
    network is the same."""

    def lay_out(self, tensors: Tensors) -> None:
        """Make embeddings, layers and classifier."""
        config = self.config
        embeddings = "bert.embeddings."
        self.word_embeddings = self.table(tensors, f"{embeddings}word_embeddings.weight")
        self.position_embeddings: Tensor | None = None
        if config.absolute_positions:
            self.position_embeddings = self.table(tensors, f"{embeddings}position_embeddings.weight")
        self.segment_embeddings: Tensor | None = None
        if config.type_vocab_size:
            self.segment_embeddings = self.table(tensors, f"{embeddings}token_type_embeddings.weight")
        self.embedding_norm = self.norm(tensors, f"{embeddings}LayerNorm")
        self.widen: Linear | None = None
        if config.embedding_size != config.hidden_size:
            self.widen = self.linear(tensors, "bert.embeddings_project")
        self.layers = [self.layer(tensors, number) for number in range(config.num_layers)]
        self.pooler = self.linear(tensors, "bert.pooler.dense", torch.float32)
        self.pooler_norm: Norm | None = None
        if config.pre_norm:
            self.reads = "all" if config.pools_mean else "first"
            self.final_norm = self.norm(tensors, "bert.final_norm")
            self.pooler_norm = self.norm(tensors, "bert.pooler.LayerNorm", torch.float32)
        self.classifier = self.linear(tensors, "classifier", torch.float32)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return word + position + segment embeddings, normalised (and widened): (T, D)."""
        x = F.embedding(batch.ids, self.word_embeddings)
        if self.segment_embeddings is not None:
            segments = self.segment_embeddings  # of the only type, if there is one alone
            if len(segments) > 1:
                segments = F.embedding(batch.segments, segments)
            x = x + segments
        if self.position_embeddings is not None:
            x = x + F.embedding(batch.positions, self.position_embeddings)
        if self.widen is None:
            return self.embedding_norm(x)
        if self.config.distances is not None:  # DeBERTa
            return self.embedding_norm(self.widen(x))
        return self.widen(self.embedding_norm(x))

    def classify(self, pooled: Tensor) -> Tensor:
        """Apply pooler, its norm if it has one, and classifier. (n, D) → (n, labels) float32."""
        x = FUNCTIONS[self.config.head_activation](self.pooler(pooled.float()))
        return self.classifier(x if self.pooler_norm is None else self.pooler_norm(x))


def _itemsize(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the bytes per number of a checkpoint's tensor once it is loaded."""
    if not tensor.is_floating_point():
        return tensor.itemsize
    return 4 if name.startswith(("bert.pooler", "classifier")) else dtype.itemsize

"""The shape and the labels of a network, as a checkpoint's config.json describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from headroom.models.checkpoint.tensor_names import ATTENTION, LAYERS, MLP
from headroom.models.errors import ModelError
from headroom.models.masks.head_mask import HeadMask

NumbersByLayer = tuple[tuple[int, ...], ...]
"""Some heads or units of each layer, by their numbers."""

ScoreActivation = Literal["softmax", "sigmoid", "identity"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary angles position·θ^(−2i/d), whose frequencies may be divided by `factor`.

    ramp: between these i YaRN goes over from whole frequencies to divided ones (Peng et al. 2023,
    https://arxiv.org/abs/2309.00071); None: all are divided. length: cosines and sines are multiplied by it.
    """

    theta: float
    factor: float = 1.0
    ramp: tuple[float, float] | None = None
    length: float = 1.0


@dataclass(frozen=True, slots=True)
class Decoder:
    """The parts of a decoder's network beyond `ModelConfig`."""

    head_size: int
    key_heads: int  # heads of keys and values before pruning; each serves neighbouring heads of queries
    head_norms: bool  # queries and keys are normalised
    norm_offset: float  # is added to the weights of norms
    embedding_scale: float  # embeddings are multiplied by it
    instruction: str | None = None  # of pairs that bring none; None: the prompt's own
    vocabulary: str | None = None  # the tensor whose rows are read for `answers`; None: a classifier
    answers: tuple[int, ...] = ()  # the relevant one first
    pad_token: int | None = None  # a classifier reads the last token that is another one
    plain_pairs: bool = False  # a classifier of query and title without a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and labels of one sequence classifier."""

    vocab_size: int
    hidden_size: int
    embedding_size: int  # a linear map widens the embeddings if it is not hidden_size
    num_layers: int
    num_heads: int  # before pruning
    intermediate_size: int  # the units of the widest layer's feed-forward half
    max_positions: int  # the window
    skipped_positions: int = 0  # rows of the checkpoint's position table before the first token's
    type_vocab_size: int  # 0: the network has no token types
    layer_norm_eps: float
    activation: str
    head_activation: str = "tanh"  # of the classifier's dense layer
    family: str = "bert"  # the key of `families.FAMILIES`
    labels: tuple[str, ...] = ()  # one per logit, least relevant first; a one-label cross-encoder has one
    label_order: tuple[int, ...] = ()  # the checkpoint's logit index of each entry of `labels`
    is_order_known: bool = True  # False: neither names nor options say it, and labels stand as their ids do
    kept_heads: NumbersByLayer = ()  # original numbers of the heads that each layer still has
    widths: tuple[int, ...] = ()  # the units of each layer
    temperature: float = 1.0  # logits are divided by it before the softmax (or the sigmoid)
    bias: tuple[float, ...] = (0.0,)  # one per label, is added after that; a single one holds for all
    score_activation: ScoreActivation = "softmax"  # of one label: sigmoid, or identity for raw scores
    int8: bool = False  # the layers' products have 8-bit weights and inputs (`headroom quantize` wrote it)
    gated: bool = False  # inner activations are multiplied by the output of a further map, `gate`
    without_bias: frozenset[str] = frozenset()  # maps and norms; those in a layer by their names there
    pools_mean: bool = False  # the classifier reads the mean of all tokens, not the first one
    windows: tuple[int | None, ...] = ()  # how many tokens to each side a layer sees; None, or empty: all
    ropes: tuple[Rope, ...] = ()  # each layer's rotary angles; empty without rotary positions
    pre_norm: bool = False  # norms stand before the halves of a layer, and one after the last layer
    absolute_positions: bool = True  # the network adds embeddings of positions
    distances: tuple[int, int] | None = None  # DeBERTa's buckets to each side, and the largest distance
    decoder: Decoder | None = None  # of a network that attends to what stands before a token

    def is_stored(self, name: str) -> bool:
        """Return whether checkpoints hold a tensor of the network; those that they do not hold are zeros."""
        module, _, part = name.rpartition(".")
        if module.startswith(LAYERS):
            module = module.removeprefix(LAYERS).split(".", 1)[1]
        has_offsets = self.int8 and module in (*ATTENTION, *MLP)  # of inputs, whose effect a bias holds
        return part != "bias" or has_offsets or module not in self.without_bias

    def heads_kept(self, mask: HeadMask) -> NumbersByLayer:
        """Return the heads of each layer that a mask keeps, ascending; none in a layer that it skips."""
        return tuple(
            tuple(head for head in held if mask.matrix[layer, head] > 0)
            for layer, held in enumerate(self.kept_heads)
        )

    @property
    def intact_mask(self) -> HeadMask:
        """Return the mask that keeps everything that the checkpoint has."""
        heads = np.zeros((self.num_layers, self.num_heads), np.float32)
        for layer, held in enumerate(self.kept_heads):
            heads[layer, list(held)] = 1
        return HeadMask(heads)

    def check_head_left(self, mask: HeadMask) -> None:
        """Raise ModelError if a mask keeps none of the checkpoint's heads."""
        if not any(self.heads_kept(mask)):
            raise ModelError(
                f"that would remove all {sum(map(len, self.kept_heads))} heads, and without any every pair "
                "gets the same score; keep at least one"
            )

    def parse_mask(self, form: str | Mapping[str, object], stored: Mapping[str, HeadMask]) -> HeadMask:
        """Return the mask of a spec or a JSON form; it may switch units off. stored: masks by name.

        Raises InvalidMask.
        """
        shape = {"layers": self.num_layers, "heads": self.num_heads, "units": self.intermediate_size}
        return HeadMask.parse(form, **shape, stored=stored)

    def units_kept(self, mask: HeadMask) -> NumbersByLayer:
        """Return the units of each layer that a mask keeps, ascending; none in a layer that it skips. A unit
        is an inner activation: a row of the up map (and of the gate), a column of the down map."""
        off = mask.units_off
        off = np.zeros((len(self.widths), self.intermediate_size), np.bool_) if off is None else off
        return tuple(
            () if layer in mask.skipped else tuple(np.flatnonzero(~off[layer, :width]).tolist())
            for layer, width in enumerate(self.widths)
        )

    def under(self, mask: HeadMask) -> ModelConfig:
        """Return the shape of the network that a mask leaves: its layers are numbered from 0, its heads keep
        their numbers, and a layer may be without units."""
        layers = mask.layers_kept
        heads = self.heads_kept(mask)
        units = self.units_kept(mask)
        widths = tuple(len(units[layer]) for layer in layers)
        return replace(
            self,
            num_layers=len(layers),
            windows=tuple(self.windows[layer] for layer in layers) if self.windows else (),
            ropes=tuple(self.ropes[layer] for layer in layers) if self.ropes else (),
            kept_heads=tuple(heads[layer] for layer in layers),
            intermediate_size=max(widths, default=0),
            widths=widths,
        )

    def key_heads(self, heads: Sequence[int]) -> list[int]:
        """Return the head of keys and values, before pruning, that each of some heads of queries reads."""
        shared = self.num_heads if self.decoder is None else self.decoder.key_heads
        return [head * shared // self.num_heads for head in heads]

    def projected(self, layer: int) -> tuple[int, int, int]:
        """Return the widths of a layer's queries, keys and values."""
        kept = self.kept_heads[layer]
        keys = len(set(self.key_heads(kept))) * self.head_size
        return len(kept) * self.head_size, keys, keys

    @property
    def head_size(self) -> int:
        """Return the width of one head; d_model / h but for decoders."""
        return self.hidden_size // self.num_heads if self.decoder is None else self.decoder.head_size

    @property
    def is_graded(self) -> bool:
        """Return False for a one-label cross-encoder, which gives a score and no grades."""
        return len(self.labels) > 1

    @property
    def changed_order(self) -> tuple[int, ...] | None:
        """Return `label_order`; None if it is that of the ids."""
        return None if self.label_order == tuple(range(len(self.labels))) else self.label_order

    @property
    def order_note(self) -> str | None:
        """Say which label counts as best, if that is a guess; None if it is known."""
        if self.is_order_known or not self.is_graded:
            return None
        return (
            f"the labels do not say which one is best: {self.labels[-1]!r} counts as most relevant and "
            f"{self.labels[0]!r} as least, in the order of their ids; --label-order, "
            "in a config label_order, gives another order"
        )

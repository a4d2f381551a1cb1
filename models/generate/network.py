"""The query generator's network: a decoder over the last output of the encoder for the question alone.

    x = norm(word + position)                                          (B, n, D)
    for each layer:
        x = x + masked self-attention(norm(x))
        x = x + encoder–decoder attention(norm(x), memory)
        x = x + down(gelu(up(norm(x))))
    x = norm(x)
    scores = [words·W(x) + b ; memory·C(x) / √D + follow(x)·f]         (B, n, V + m)

(Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, with the norm before each part: Xiong et al. 2020,
https://arxiv.org/abs/2002.04745.) `words` are the encoder's word embeddings, which are shared and tied. One
softmax runs over the V pieces of the output vocabulary and the m tokens of the question. A piece's
probability is its own plus that of each question token that is this piece (CopyNet: Gu et al. 2016,
https://arxiv.org/abs/1603.06393), so a name that the output vocabulary does not have can be copied. f is 1
for the question's tokens that follow one with the piece written last, else 0: a name of several pieces is
copied whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headroom.models.attention import KeysValues, MultiHeadAttention, earlier_tokens, hiding


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """The shape of a generator.

    width: of the encoder's output. units: of the feed-forward networks. max_pieces: the longest query, with
    its end. output_pieces: the size of the output vocabulary, V. start, end: the vocabulary's numbers of
    what stands before the first piece and after the last one.
    """

    layers: int
    heads: int
    width: int
    units: int
    max_pieces: int
    output_pieces: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The encoder's output for B questions of at most m tokens, padded.

    states: (B, m, D), its last output. present: (B, m) bool, False for padding. pieces: (B, m) int64, the
    vocabulary's number of each token; −1 for special tokens and padding, which are not copied.
    """

    states: Tensor
    present: Tensor
    pieces: Tensor

    def of_rows(self, index: Tensor) -> Memory:
        """Return some questions' part. index: (n,) int64."""
        return Memory(self.states[index], self.present[index], self.pieces[index])


@dataclass(frozen=True, slots=True)
class GeneratorMasks:
    """The weights of a batch's heads: 1 keeps a head, 0 removes it.

    decoder, cross: (B, layers, heads), of masked self-attention and of encoder–decoder attention.
    """

    decoder: Tensor
    cross: Tensor

    def of_rows(self, index: Tensor) -> GeneratorMasks:
        """Return those of some rows. index: (n,) int64."""
        return GeneratorMasks(self.decoder[index], self.cross[index])


class GeneratorLayer(nn.Module):
    """One layer: masked self-attention, encoder–decoder attention and a feed-forward network."""

    def __init__(self, config: GeneratorConfig, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.own_norm = nn.LayerNorm(config.width)
        self.own = MultiHeadAttention(config.width, config.heads)
        self.cross_norm = nn.LayerNorm(config.width)
        self.cross = MultiHeadAttention(config.width, config.heads)
        self.units_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.units)
        self.down = nn.Linear(config.units, config.width)

    def forward(
        self,
        x: Tensor,
        before: KeysValues | None,
        own_bias: Tensor | None,
        memory: KeysValues,
        memory_bias: Tensor | None,
        head_masks: tuple[Tensor, Tensor] | None = None,
        maps: list[Tensor] | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Return what leaves the layer, (B, n, D), and the keys and values of all pieces so far.

        x: (B, n, D), what enters. before: the keys and values of earlier pieces; None: there are none.
        memory: those of the question. own_bias, memory_bias: hide later pieces and padding; None: nothing.
        head_masks: (B, heads) of both attentions; None: all 1. maps: gets what each piece attends to in the
        question, (B, heads, n, m).
        """
        own_mask, cross_mask = head_masks or (None, None)
        entering = self.own_norm(x)
        seen = self.own.keys_values(entering)
        if before is not None:
            seen = before.followed_by(seen)
        own = self.own.attend(entering, seen, bias=own_bias, head_mask=own_mask)
        x = x + F.dropout(own, self.dropout, self.training)
        asking = self.cross_norm(x)
        if maps is not None:
            maps.append(self.cross.probabilities(asking, memory, memory_bias))
        cross = self.cross.attend(asking, memory, bias=memory_bias, head_mask=cross_mask)
        x = x + F.dropout(cross, self.dropout, self.training)
        units = self.down(F.gelu(self.up(self.units_norm(x))))
        return x + F.dropout(units, self.dropout, self.training), seen


@dataclass(frozen=True, slots=True)
class Past:
    """The keys and values of B unfinished queries, for each layer.

    own: keys and values of the pieces that are written, None before the first one. memory: those of the
    question; memory_bias: hides its padding, (B, 1, 1, m), None if there is none.
    """

    own: Sequence[KeysValues | None]
    memory: Sequence[KeysValues]
    memory_bias: Tensor | None
    length: int = 0

    def of_rows(self, index: Tensor) -> Past:
        """Return the keys and values of some queries. index: (n,) int64."""
        bias = None if self.memory_bias is None else self.memory_bias[index]
        memory = [part.of_rows(index) for part in self.memory]
        return replace(self.reordered(index), memory=memory, memory_bias=bias)

    def reordered(self, index: Tensor) -> Past:
        """Return the queries in another order, each with the question of its new row. index: (B,) int64."""
        return replace(self, own=[None if part is None else part.of_rows(index) for part in self.own])


class GeneratorNetwork(nn.Module):
    """A small decoder that writes a short query piece by piece, or copies pieces of the question.

    pieces: (V,) int64, the vocabulary's number of each piece of the output vocabulary.
    words: (vocabulary, D), the encoder's word embeddings, which are read and never trained here.
    """

    pieces: Tensor
    output_words: Tensor

    def __init__(self, config: GeneratorConfig, pieces: Tensor, words: Tensor, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.words = (words,)  # in a tuple, so that it is no weight of this module
        self.register_buffer("pieces", pieces.long())
        self.register_buffer("output_words", words[self.pieces], persistent=False)
        self.positions = nn.Parameter(torch.randn(config.max_pieces, config.width) * 0.02)
        self.entry_norm = nn.LayerNorm(config.width)
        self.layers = nn.ModuleList(GeneratorLayer(config, dropout) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.word_map = nn.Linear(config.width, config.width)
        self.word_bias = nn.Parameter(torch.zeros(len(pieces)))
        self.copy_map = nn.Linear(config.width, config.width)
        self.follow = nn.Linear(config.width, 1)

    def begin(self, memory: Memory) -> Past:
        """Return what is known before the first piece: the question's keys and values."""
        parts = [layer.cross.keys_values(memory.states) for layer in self._layers()]
        bias = None
        if not memory.present.all():
            bias = hiding(memory.present[:, None, None], memory.states.dtype)
        return Past([None] * len(parts), parts, bias)

    def forward(
        self,
        ids: Tensor,
        past: Past,
        masks: GeneratorMasks | None = None,
        maps: list[Tensor] | None = None,
    ) -> tuple[Tensor, Past]:
        """Return what leaves the last layer for further pieces, (B, n, D), and the past with them.

        ids: (B, n) int64, the pieces that follow `past`; several only if nothing is before them. maps: gets
        each layer's attention to the question, (B, heads, n, tokens).
        """
        length = past.length + ids.shape[1]
        x = F.embedding(ids, self.words[0]) + self.positions[past.length : length]
        x = F.dropout(self.entry_norm(x), self.dropout, self.training)
        bias = hiding(earlier_tokens(length, ids.device), x.dtype) if ids.shape[1] > 1 else None
        own = list[KeysValues | None]()
        for number, layer in enumerate(self._layers()):
            head_masks = None
            if masks is not None:
                head_masks = (masks.decoder[:, number], masks.cross[:, number])
            memory = past.memory[number]
            x, seen = layer(x, past.own[number], bias, memory, past.memory_bias, head_masks, maps)
            own.append(seen)
        return self.final_norm(x), replace(past, own=own, length=length)

    def log_probabilities(self, ids: Tensor, x: Tensor, memory: Memory) -> Tensor:
        """Return the joint distribution over the output vocabulary and the question's tokens.

        ids: (B, n) int64, the pieces written last. x: (B, n, D), what left the last layer for them. Returns
        (B, n, V + m) float32 logarithms.
        """
        written = F.linear(self.word_map(x), self.output_words, self.word_bias)
        copied = self.copy_map(x) @ memory.states.transpose(1, 2) * self.config.width**-0.5
        follows = memory.pieces.roll(1, 1)[:, None] == ids[..., None]  # (B, n, m); the last token is no piece
        copied = copied + self.follow(x) * follows
        copied = copied.masked_fill((memory.pieces < 0)[:, None], float("-inf"))
        return torch.cat([written, copied], 2).float().log_softmax(2)

    def _layers(self) -> Sequence[GeneratorLayer]:
        return list(self.layers)  # type: ignore[arg-type]

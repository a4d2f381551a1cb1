"""The classifier: a checkpoint that scores query–title pairs under head masks."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from headroom.models.batch import Beginning, batches_by_length, in_halves, pack
from headroom.models.checkpoint.chunks import Chunk, LongTitles, Overflow, best_chunks, encode_chunks
from headroom.models.checkpoint.config import ModelConfig, read_config, read_stored_masks
from headroom.models.checkpoint.files import digest_of, read_head_study, read_quality
from headroom.models.checkpoint.hub import Origin, locate, name_of, origin_of
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.checkpoint.tokenizer import EncodedPair, Pairs, PairTokenizer, load_tokenizer
from headroom.models.device import resolve_device, resolve_dtype
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.masks.head_mask import HeadMask, RowMasks, by_structure, check_fits, keys_of, rows_of
from headroom.models.network import Network
from headroom.models.networks import build

Masks = HeadMask | Sequence[HeadMask | None] | None
"""One mask for all pairs; or one mask or None per pair; or None, which keeps all heads."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Relevance of n pairs. Grades count from 0, the least relevant.

    logits, probabilities: (n, grades) float32. expected_grade: (n,) float32, Σ grade·probability.
    grade: (n,) int64, the most probable one. score: (n,) float32 in [0, 1], expected_grade / (grades − 1).
    raw_score: (n,) float64, the log-odds of score: log(score / (1 − score)). It ranks titles, because it
        tells apart those whose score rounds to 1 or 0.
    A one-label cross-encoder has one column: probabilities, expected_grade and score are its sigmoid, and
    grade is that rounded. If the checkpoint asks for raw scores (`ModelConfig.score_activation` is identity),
    its score is the logit instead, which may be any number. Its raw_score is the logit either way.
    chunks: with `overflow="chunks"`, the chunk that each pair's scores are of; None for a title that fits.
    """

    logits: np.ndarray
    probabilities: np.ndarray
    expected_grade: np.ndarray
    grade: np.ndarray
    score: np.ndarray
    raw_score: np.ndarray
    chunks: tuple[Chunk | None, ...] | None = None

    @classmethod
    @np.errstate(invalid="ignore")  # logits may be NaN or infinite
    def from_logits(
        cls,
        logits: np.ndarray,
        temperature: float = 1.0,
        activation: str = "sigmoid",
        bias: Sequence[float] = (0.0,),
    ) -> Self:
        """Return the scores of logits, (n, grades) float32, least relevant grade first.

        activation: of a one-label model's score, sigmoid or identity. temperature, bias: the calibrated
        logits are logits / temperature + bias; in float64, so that no two logits become equal.
        """
        scaled = logits.astype(np.float64) / temperature + np.array(bias)
        if logits.shape[1] == 1:
            relevance = sigmoid(scaled[:, 0]).astype(np.float32)
            score = scaled[:, 0].astype(np.float32) if activation == "identity" else relevance
            grade = np.rint(relevance).astype(np.int64)
            return cls(logits, relevance[:, None], relevance, grade, score, scaled[:, 0])
        # log(s / (1 − s)) of the score s: both shares are summed in logarithms, so that none rounds to 0 or 1
        above = np.log(np.arange(1, logits.shape[1]))
        relevant = scaled[:, 1:] + above
        irrelevant = scaled[:, :-1] + above[::-1]
        raw_score = np.logaddexp.reduce(relevant, axis=1) - np.logaddexp.reduce(irrelevant, axis=1)
        scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))  # an infinite logit makes its row NaN
        probabilities = scaled / scaled.sum(axis=1, keepdims=True)
        expected = probabilities @ np.arange(logits.shape[1])
        return cls(
            logits,
            probabilities.astype(np.float32),
            expected.astype(np.float32),
            probabilities.argmax(axis=1),
            (expected / (logits.shape[1] - 1)).astype(np.float32),
            raw_score,
        )


@dataclass(eq=False, repr=False)
class Classifier:
    """A query–title classifier on one device.

    >>> clf = Classifier.load()
    >>> clf.score([("angle bracket", "Simpson 12-Gauge Angle")]).expected_grade
    """

    name: str
    config: ModelConfig
    tokenizer: PairTokenizer
    network: Network
    stored_masks: dict[str, HeadMask]
    quality: dict[str, float] | None = None
    origin: Origin | None = None
    head_study: Json | None = None
    directory: Path | None = None

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        device: str = "auto",
        dtype: str = "auto",
        *,
        deterministic: bool = False,
        label_order: Sequence[str] | None = None,
    ) -> Self:
        """Load a Hugging Face sequence classifier of a family in `headroom.models.checkpoint.families`.

        path: a directory or a hub id, which may end in @revision; None: the model shipped with the project.
        device: auto, cpu, cuda, cuda:N. dtype: auto, float32, bfloat16, float16 (`resolve_dtype`).
        deterministic: float32 scores that are the same bits alone and in any batch; on a CPU only.
        label_order: label names from least to most relevant; default: the checkpoint's own order.
        Raises UnsupportedCheckpoint if the checkpoint cannot be loaded whole, ModelError for a wrong option.
        """
        directory = locate(path)
        where = resolve_device(device)
        number_format = resolve_dtype(dtype, where, deterministic=deterministic)
        config = read_config(directory, label_order)
        tokenizer = load_tokenizer(directory, config)
        tensors = read_tensors(directory, config)
        network = build(config, tensors, device=where, dtype=number_format, deterministic=deterministic)
        return cls(
            name_of(path, directory),
            config,
            tokenizer,
            network,
            read_stored_masks(directory, config),
            read_quality(directory),
            origin_of(directory),
            read_head_study(directory),
            directory.resolve(),  # now: a link may point elsewhere later
        )

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the files it was loaded from, stored masks included; they are read again for it."""
        return "" if self.directory is None else digest_of(self.directory, masks=True)

    @property
    def num_layers(self) -> int:
        """Return the number of layers, pruned or not."""
        return self.config.num_layers

    @property
    def num_heads(self) -> int:
        """Return the number of heads per layer before pruning, as masks number them."""
        return self.config.num_heads

    @property
    def grades(self) -> tuple[str, ...]:
        """Return the names of the grades, least relevant first; none for a one-label cross-encoder."""
        return self.config.labels if self.config.is_graded else ()

    @property
    def max_tokens(self) -> int:
        """Return the window. Longer pairs are truncated, the longer text first."""
        return self.tokenizer.max_tokens

    @cached_property
    def all_heads(self) -> HeadMask:
        """Return the mask that keeps every head of this model."""
        return HeadMask.none(self.num_layers, self.num_heads)

    def score(
        self,
        pairs: Pairs,
        head_mask: Masks = None,
        *,
        overflow: Overflow = "truncate",
        batch_tokens: int = 4096,
        instruction: str | None = None,
    ) -> Scores:
        """Score (query, title) pairs. The result's rows are in the order of the pairs.

        head_mask: one mask for all, or one per pair, or None. batch_tokens: the largest number of tokens
        per forward pass. overflow: of a title that does not fit into the window, "truncate" scores the
        beginning; "chunks" scores all of it in overlapping chunks, of which the best one's scores count.
        instruction: of a model whose prompt has one, in place of its own.
        Raises InvalidMask for a mask of another shape, ModelError for unreadable text.
        """
        masks = None if head_mask is None else self._masks(head_mask, len(pairs))
        tokenizer = self.tokenizer.instructed(instruction) if instruction else self.tokenizer
        if overflow == "truncate":
            return self.scores(self.logits(tokenizer.encode(pairs), masks, batch_tokens))
        chunked = encode_chunks(tokenizer, pairs, LongTitles(overflow))
        if masks is not None:
            masks = [mask for mask, pair in zip(masks, chunked, strict=True) for _ in pair.rows]
        logits = self.logits([row for pair in chunked for row in pair.rows], masks, batch_tokens)
        best, chunks = best_chunks(self.scores(logits).raw_score.tolist(), chunked)
        return replace(self.scores(logits[best]), chunks=tuple(chunks))

    def logits(
        self, pairs: Sequence[EncodedPair], masks: Sequence[HeadMask] | None, batch_tokens: int
    ) -> np.ndarray:
        """Return the logits of encoded pairs, (n, labels) float32, least relevant grade first.

        masks: one per pair, which fit the model; None: all heads. batch_tokens: as in `score`.
        """
        logits = np.empty((len(pairs), len(self.config.labels)), np.float32)

        def forward(rows: Sequence[int]) -> np.ndarray:
            row_masks = None if masks is None else RowMasks.of([masks[row] for row in rows])
            return self.forward([pairs[row] for row in rows], row_masks)

        groups: Sequence[Sequence[int]] = [range(len(pairs))] if masks is None else by_structure(masks)
        beginnings = self.beginnings(pairs, [None] * len(pairs) if masks is None else map(id, masks))
        lengths = [len(pair.ids) for pair in pairs]
        for group in groups:
            for rows in batches_by_length(lengths, batch_tokens, beginnings, group):
                logits[rows] = in_halves(forward, rows, self.network.device)
        return logits

    def forward(
        self, pairs: Sequence[EncodedPair], masks: RowMasks | None = None, *, sliced: bool = False
    ) -> np.ndarray:
        """Return the logits of at least one encoded pair, by several passes of the network if that is faster.

        masks, sliced: as in `Network.forward`.
        Returns (n, labels) float32, least relevant grade first.
        """
        network = self.network
        lengths = [len(pair.ids) for pair in pairs]
        limit = network.max_pack_tokens
        beginnings = self.beginnings(pairs, keys_of(masks, len(pairs)))
        if limit is None or sum(lengths) <= limit:
            logits = self._pass(pairs, masks, beginnings, sliced=sliced)
        else:
            logits = np.empty((len(pairs), len(self.config.label_order)), np.float32)
            for rows in batches_by_length(lengths, limit, beginnings):
                logits[rows] = self._pass(
                    [pairs[row] for row in rows],
                    rows_of(masks, rows),
                    None if beginnings is None else [beginnings[row] for row in rows],
                    sliced=sliced,
                )
        ordered: np.ndarray = np.take(logits, self.config.label_order, axis=1)
        return ordered

    def _pass(
        self,
        pairs: Sequence[EncodedPair],
        masks: RowMasks | None,
        beginnings: Sequence[Beginning] | None,
        *,
        sliced: bool,
    ) -> np.ndarray:
        """Return the logits of one pass, (n, labels), labels as in the checkpoint."""
        network = self.network
        batch = pack(pairs, device=network.device, deterministic=network.deterministic, beginnings=beginnings)
        return network.forward(batch, masks, sliced=sliced).numpy(force=True)

    def beginnings(self, pairs: Iterable[EncodedPair], masks: Iterable[Hashable]) -> list[Beginning] | None:
        """Return what a decoder's pairs begin with under masks, of which these are keys; None for an encoder.

        A pass computes equal beginnings once.
        """
        if self.config.decoder is None:
            return None
        return [
            Beginning((pair.beginning, mask), pair.shared_tokens)
            for pair, mask in zip(pairs, masks, strict=True)
        ]

    def scores(self, logits: np.ndarray) -> Scores:
        """Return the calibrated scores of logits, (n, labels) float32, that `forward` returned."""
        config = self.config
        return Scores.from_logits(logits, config.temperature, config.score_activation, config.bias)

    def relevance(self, scores: np.ndarray) -> np.ndarray:
        """Return scores of this model, (n,), on the scale from 0 to 1: raw ones become their sigmoid."""
        return sigmoid(scores) if self.config.score_activation == "identity" else scores

    def attention(
        self, pair: EncodedPair, heads: Sequence[tuple[int, int]], head_mask: HeadMask | None = None
    ) -> np.ndarray:
        """Return what some heads (layer, head), at least one, attend to in a pair of n tokens.

        Returns (len(heads), n, n) float32; a row sums to 1, or to the head's weight under the mask.
        """
        network = self.network
        batch = pack([pair], device=network.device, deterministic=network.deterministic)
        return network.attention_maps(batch, heads, None if head_mask is None else RowMasks.of(head_mask))

    def _masks(self, head_mask: HeadMask | Sequence[HeadMask | None], count: int) -> list[HeadMask]:
        """Return the mask of each pair; they fit the model."""
        all_heads = self.all_heads
        given = [head_mask] * count if isinstance(head_mask, HeadMask) else head_mask
        masks = [all_heads if mask is None else mask for mask in given]
        if len(masks) != count:
            raise ModelError(f"head_mask: {len(masks)} masks for {count} pairs; give one, or one per pair")
        for mask in masks:
            check_fits(mask, self.num_layers, self.num_heads, self.config.intermediate_size)
        return masks


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^−x), without overflow for any finite x."""
    small = np.exp(-np.abs(x))
    values: np.ndarray = np.where(x >= 0, 1, small) / (1 + small)
    return values

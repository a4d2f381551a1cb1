"""The classifier: a checkpoint that scores query–title pairs under head masks."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self, cast, overload

import numpy as np

from headroom.models.arrays import Floats32
from headroom.models.attention_maps import Attention
from headroom.models.batch import Beginning, batches_by_length, in_halves, pack
from headroom.models.checkpoint.chunks import LongTitles, Overflow, best_chunks, encode_chunks
from headroom.models.checkpoint.config import ModelConfig, read_config, read_stored_masks
from headroom.models.checkpoint.files import GENERATOR, digest_of, read_head_study, read_quality
from headroom.models.checkpoint.hub import Origin, locate, name_of, origin_of
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer, load_tokenizer
from headroom.models.device import resolve_device, resolve_dtype
from headroom.models.errors import InvalidMask, ModelError
from headroom.models.files import Json
from headroom.models.generate.generator import Ask, GeneratedQuery, Generator, ranked
from headroom.models.generate.search import Written
from headroom.models.given import checked_pairs, pairs_of_query
from headroom.models.graphs import by_graph
from headroom.models.masks.generation import GenerationMask, generation_mask
from headroom.models.masks.head_mask import HeadMask, check_fits, heads_of
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.scores import Scores, sigmoid
from headroom.models.selection import RowMasks, by_structure, keys_of, rows_of
from headroom.models.terminal import warn_once

MaskForm = HeadMask | str | Mapping[str, object]
"""A mask: a `HeadMask`, a spec such as `6-11.*` or `@pruned20`, or a JSON form: `{"off": [[2, 3]]}`."""

Pair = tuple[str, str] | Mapping[str, object]
"""A query and a title, as a tuple or by these names."""

Masks = MaskForm | Sequence[MaskForm | None] | None
"""One mask for all pairs; or one mask or None per pair; or None, which keeps all heads."""


@dataclass(eq=False, repr=False)
class Classifier:
    """A query–title classifier on one device.

    >>> clf = Classifier.load()
    >>> clf
    Classifier headroom-default (12 layers of 12 heads, 5 grades, ...)
    >>> clf.score("angle bracket", ["Simpson 12-Gauge Angle"])[0].label
    'exact'
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
    generator: Generator | None = None

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
        label_order: label names from least to most relevant; default: what config.json or the names say. If
        neither does, a line on standard error says which label counts as best.
        Raises UnsupportedCheckpoint if the checkpoint cannot be loaded whole, ModelError for a wrong option.
        """
        directory = locate(path)
        where = resolve_device(device)
        number_format = resolve_dtype(dtype, where, deterministic=deterministic)
        config = read_config(directory, label_order)
        if config.order_note is not None:
            warn_once(f"{name_of(path, directory)}: {config.order_note}")
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
            Generator.load(directory, tokenizer, network),
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

    @cached_property
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

    def mask(self, form: MaskForm) -> HeadMask:
        """Return the mask of a spec (`@name`: a stored mask of this model) or of a JSON form.

        Raises InvalidMask, in one sentence, for a wrong form or a mask for a model of another shape.

        >>> clf.mask("6-11.*").heads_on
        72
        """
        mask = form if isinstance(form, HeadMask) else self.config.parse_mask(form, self.stored_masks)
        check_fits(mask, self.num_layers, self.num_heads, self.config.intermediate_size)
        return mask

    @overload
    def score(
        self,
        pairs: str,
        titles: Iterable[str],
        head_mask: Masks = None,
        *,
        overflow: Overflow = "truncate",
        batch_tokens: int = 4096,
        instruction: str | None = None,
    ) -> Scores: ...

    @overload
    def score(
        self,
        pairs: Iterable[Pair],
        head_mask: Masks = None,
        *,
        overflow: Overflow = "truncate",
        batch_tokens: int = 4096,
        instruction: str | None = None,
    ) -> Scores: ...

    def score(  # type: ignore[misc]  # for pairs, head_mask may stand second
        self,
        pairs: str | Iterable[Pair],
        titles: Iterable[str] | Masks = None,
        head_mask: Masks = None,
        *,
        overflow: Overflow = "truncate",
        batch_tokens: int = 4096,
        instruction: str | None = None,
    ) -> Scores:
        """Score a query's titles, or pairs. The result's rows are in their order.

        pairs: the query, or the pairs: tuples (query, title), dicts with these keys, or a table with these
        columns, such as a DataFrame. titles: of the query; for pairs, head_mask may stand in its place.
        head_mask: a `HeadMask`, a spec (`6-11.*`, `@pruned20`) or a JSON form, for all pairs; or a list of
        these or None, one per pair; None keeps all heads. batch_tokens: the largest number of tokens per
        forward pass. overflow: of a title that does not fit into the window, "truncate" scores the
        beginning; "chunks" scores all of it in overlapping chunks, of which the best one's scores count.
        instruction: of a model whose prompt has one, in place of its own.
        Raises InvalidMask for a wrong mask or one of another shape, ModelError for what is not text, or a
        number of masks that is not that of the pairs.

        >>> scores = clf.score("angle bracket", ["Simpson 12-Gauge Angle", "wood deck screws"])
        >>> scores.probabilities.shape
        (2, 5)
        >>> pairs = [("angle bracket", "Simpson 12-Gauge Angle"), ("usb cable", "a red towel")]
        >>> clf.score(pairs, head_mask="@pruned20")[1].label
        'irrelevant'
        >>> clf.score(pairs, head_mask=["6-11.*", None]).score > 0.3
        array([ True, False])
        """
        if isinstance(pairs, str):
            texts = pairs_of_query(pairs, titles)
        else:
            texts = checked_pairs(pairs)
            if titles is not None and head_mask is not None:
                raise ModelError("titles: pairs hold their titles; give one query and its titles, or pairs")
            head_mask = head_mask if titles is None else cast(Masks, titles)
        masks = None if head_mask is None else self._masks(head_mask, len(texts))
        tokenizer = self.tokenizer.instructed(instruction) if instruction else self.tokenizer
        if overflow == "truncate":
            scores = self.scores(self.logits(tokenizer.encode(texts), masks, batch_tokens))
            return replace(scores, pairs=tuple(texts), labels=self.grades)
        chunked = encode_chunks(tokenizer, texts, LongTitles(overflow))
        if masks is not None:
            masks = [mask for mask, pair in zip(masks, chunked, strict=True) for _ in pair.rows]
        logits = self.logits([row for pair in chunked for row in pair.rows], masks, batch_tokens)
        best, chunks = best_chunks(self.scores(logits).raw_score.tolist(), chunked)
        scores = self.scores(logits[best])
        return replace(scores, chunks=tuple(chunks), pairs=tuple(texts), labels=self.grades)

    def logits(
        self, pairs: Sequence[EncodedPair], masks: Sequence[HeadMask] | None, batch_tokens: int = 4096
    ) -> np.ndarray:
        """Return the logits of encoded pairs, (n, labels) float32, least relevant grade first.

        masks: one per pair, which fit the model; None: all heads. batch_tokens: maximum tokens of a pass.
        """
        logits = np.empty((len(pairs), len(self.config.labels)), np.float32)

        def forward(rows: Sequence[int]) -> np.ndarray:
            row_masks = None if masks is None else RowMasks.of([masks[row] for row in rows])
            return self.forward([pairs[row] for row in rows], row_masks)

        groups: Sequence[Sequence[int]] = [range(len(pairs))] if masks is None else by_structure(masks)
        beginnings = self.beginnings(pairs, [None] * len(pairs) if masks is None else map(id, masks))
        lengths = [len(pair) for pair in pairs]
        for group in groups:
            for rows in batches_by_length(lengths, batch_tokens, beginnings, group):
                logits[rows] = in_halves(forward, rows, self.network.device)
        return logits

    def forward(
        self, pairs: Sequence[EncodedPair], masks: RowMasks | None = None, *, sliced: bool = False
    ) -> np.ndarray:
        """Return the logits of at least one encoded pair, by several passes of the network if that is faster.

        masks: in the order of the pairs, or one for all; None: all on.
        sliced: the mask belongs to a sliced variant, so exactly what is on is computed.
        Returns (n, labels) float32, least relevant grade first.
        """
        network = self.network
        lengths = [len(pair) for pair in pairs]
        limit = network.max_pack_tokens
        beginnings = None
        if self.config.decoder is not None:
            beginnings = self.beginnings(pairs, keys_of(masks, len(pairs)))
        passes: Sequence[Sequence[int]] = [range(len(pairs))]
        if limit is not None and sum(lengths) > limit:
            passes = list(batches_by_length(lengths, limit, beginnings))
        elif ladder := network.ladder_of(masks, sliced=sliced):
            passes = by_graph(lengths, ladder)
        if len(passes) == 1:
            logits = self._pass(pairs, masks, beginnings, sliced=sliced)
        else:
            logits = np.empty((len(pairs), len(self.config.label_order)), np.float32)
            for rows in passes:
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
        batch = pack(
            pairs,
            device=network.device,
            deterministic=network.deterministic,
            fine=network.fills_finely,
            ladder=network.ladder_of(masks, sliced=sliced),
            beginnings=beginnings,
        )
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
        self,
        query: str,
        title: str,
        heads: str | Sequence[tuple[int, int]] = "*.*",
        head_mask: MaskForm | None = None,
    ) -> Attention:
        """Return what some heads attend to in a pair.

        heads: a list such as `2.3,4.*`, or pairs (layer, head). head_mask: what is switched off meanwhile.
        Raises InvalidMask for heads that the model does not have, and for a wrong mask.

        >>> clf.attention("angle bracket", "Simpson 12-Gauge Angle", heads="2.3,4.0-2").heads
        ((2, 3), (4, 0), (4, 1), (4, 2))
        """
        (texts,) = pairs_of_query(query, [title])
        if not isinstance(heads, str):
            heads = ",".join(f"{layer}.{head}" for layer, head in heads)
        try:
            chosen = heads_of(heads, self.num_layers, self.num_heads)
        except InvalidMask as error:
            raise InvalidMask(f"heads: {error}") from None
        mask = None if head_mask is None else self.named_mask("head_mask", head_mask)
        (pair,) = self.tokenizer.encode([texts])
        segments = (0,) * pair.title_start + (1,) * (len(pair) - pair.title_start)
        return Attention(
            query,
            title,
            tokens=tuple(self.tokenizer.tokens(pair)),
            texts=tuple(self.tokenizer.texts(pair)),
            special=tuple(pair.special),
            segments=segments,
            heads=chosen,
            probabilities=self.attention_maps(pair, chosen, mask),
        )

    def generate_query(self, text: str, beams: int = 4, head_mask: str | None = None) -> list[GeneratedQuery]:
        """Write the short query of a question, also with words that the question does not have.

        beams: how many queries are kept in the search, 1 (greedy) to 8. head_mask: heads that are off:
        the encoder's, then `decoder:` (masked self-attention) and `cross:` (encoder–decoder attention),
        such as `0-1.*;cross:1.*`.
        Returns at most `beams` pairs (query, score), best first, at least one. The score is the geometric
        mean of the pieces' probabilities times the fourth power of the query's relevance for the question.
        Raises ModelError if the checkpoint has no generator, for a wrong number of beams, and for a question
        that is empty or longer than the window; InvalidMask for a wrong mask.

        >>> queries = clf.generate_query("where can i find a quiet wireless mouse", beams=4)
        >>> 1 <= len(queries) <= 4, "mouse" in queries[0].query
        (True, True)
        """
        generator = self.checked_generator()
        mask = None if head_mask is None else self.generation_mask(head_mask)
        (queries,) = self.write_queries([generator.ask(text, beams, mask)])
        return generator.readable_queries(queries)

    def write_queries(self, asks: Sequence[Ask]) -> list[list[Written]]:
        """Return the queries of questions, best first, at least one each: the generator's, `ranked`.

        A question's encoder mask holds for the judgment of its queries, too.
        Raises ModelError if the checkpoint has no generator.
        """
        generator = self.checked_generator()
        written = generator.write(asks)
        pairs = list[EncodedPair]()
        masks = list[HeadMask]()
        for ask, queries in zip(asks, written, strict=True):
            pairs += generator.as_pairs(ask, queries)
            masks += [ask.mask.encoder] * len(queries)
        scores = self.scores(self.logits(pairs, masks))
        relevance = np.split(self.relevance(scores.score), np.cumsum([len(one) for one in written])[:-1])
        return [ranked(queries, own) for queries, own in zip(written, relevance, strict=True)]

    def checked_generator(self) -> Generator:
        """Return the checkpoint's query generator. Raises ModelError if it has none."""
        if self.generator is None:
            raise ModelError(f"the checkpoint {self.name} has no query generator (a file {GENERATOR})")
        return self.generator

    def generation_mask(self, spec: str) -> GenerationMask:
        """Return the mask of a spec for a query's generation, such as `2.3;decoder:0.1;cross:1.*`.

        Raises InvalidMask, in one sentence, and ModelError if the checkpoint has no query generator.
        """
        return generation_mask(spec, self.mask, self.checked_generator().shape)

    def attention_maps(
        self, pair: EncodedPair, heads: Sequence[tuple[int, int]], head_mask: HeadMask | None = None
    ) -> Floats32:
        """Return what some heads (layer, head), at least one, attend to in an encoded pair of n tokens.

        Returns (len(heads), n, n) float32; a row sums to 1, or to the head's weight under the mask.
        """
        network = self.network
        batch = pack([pair], device=network.device, deterministic=network.deterministic)
        return network.attention_maps(batch, heads, None if head_mask is None else RowMasks.of(head_mask))

    def _masks(self, head_mask: MaskForm | Sequence[MaskForm | None], count: int) -> list[HeadMask]:
        """Return the mask of each pair; they fit the model. Equal ones are one object, and read once."""
        if isinstance(head_mask, HeadMask | str | Mapping) or not isinstance(head_mask, Sequence):
            return [self.named_mask("head_mask", head_mask)] * count
        if len(head_mask) != count:
            given = f"{len(head_mask)} {'mask' if len(head_mask) == 1 else 'masks'}"
            pairs = f"{count} {'pair' if count == 1 else 'pairs'}"
            raise ModelError(f"head_mask: {given} for {pairs}; give one, or one per pair")
        of_form: dict[Hashable, HeadMask] = {None: self.all_heads}
        equal = {self.all_heads: self.all_heads}
        masks = []
        for index, form in enumerate(head_mask):
            key: Hashable = form
            if not isinstance(form, str | None):
                key = id(form) if isinstance(form, HeadMask) else repr(form)
            if key not in of_form and form is not None:
                mask = self.named_mask(f"head_mask[{index}]", form)
                of_form[key] = equal.setdefault(mask, mask)
            masks.append(of_form[key])
        return masks

    def named_mask(self, param: str, form: MaskForm) -> HeadMask:
        """Return the mask of a form. Raises InvalidMask with the parameter's name."""
        try:
            return self.mask(form)
        except InvalidMask as error:
            raise InvalidMask(f"{param}: {error}") from None

    def __repr__(self) -> str:
        config = self.config
        kind = f"{len(config.labels)} grades" if config.is_graded else "one label"
        network = self.network
        shape = f"{self.num_layers} layers of {self.num_heads} heads"
        return f"Classifier {self.name} ({shape}, {kind}, {network.device}, {network.number_format})"

"""The query generator of a checkpoint: questions in, short queries out, in batches."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from headroom.models.arrays import Floats32
from headroom.models.checkpoint.files import GENERATOR
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.errors import ModelError
from headroom.models.generate.files import read_generator
from headroom.models.generate.memory import encode_questions, memory_of, states_of
from headroom.models.generate.network import GeneratorMasks, GeneratorNetwork, Memory
from headroom.models.generate.search import MAX_BEAMS, Written, search
from headroom.models.masks.generation import GenerationMask
from headroom.models.masks.grammar import Shape
from headroom.models.masks.head_mask import HeadMask
from headroom.models.network import Network
from headroom.models.selection import RowMasks, by_structure


class GeneratedQuery(NamedTuple):
    """A generated query. score: `ranked` says what it is, from 0 to 1."""

    query: str
    score: float


PIECES_OF_QUERY = 16
"""Steps of a usual query, rounded up; a step of one beam counts as a token."""

RELEVANCE_POWER = 4
"""How much the classifier's opinion counts against the decoder's. Of the powers 0 to 6, 4 and 6 gave the best
queries for 1,500 questions on which nothing was trained."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to write a query for. question: as the encoder reads it. beams: 1 (greedy) to MAX_BEAMS."""

    text: str
    question: EncodedPair
    beams: int
    mask: GenerationMask

    @property
    def tokens(self) -> int:
        """Return about how many tokens of the encoder cost as much.

        The encoder reads the question, and then once more with each query that was found for it.
        """
        steps = PIECES_OF_QUERY * self.beams
        return len(self.question) + steps + (len(self.question) + PIECES_OF_QUERY) * self.beams


@dataclass(frozen=True, slots=True)
class Alignment:
    """The attention of each piece of a generated query to the tokens of its question.

    question, pieces: the texts of the question's n tokens, special ones included, and of the query's m
    pieces, with a space before the first one of a word. probabilities: (layers, heads, m, n) float32.
    """

    question: tuple[str, ...]
    pieces: tuple[str, ...]
    probabilities: Floats32


def ranked(queries: Sequence[Written], relevance: Floats32) -> list[Written]:
    """Return a question's queries, best first, each with its final score.

    That is the geometric mean of its pieces' probabilities times r⁴, where r is the query's relevance for the
    question by the classifier: what the decoder finds likely may lack what the question is about. (Another
    model's opinion about the opposite direction, as in Li et al. 2016, https://arxiv.org/abs/1510.03055.)
    relevance: (queries,), from 0 to 1.
    """
    judged = [
        replace(query, score=query.score * float(r) ** RELEVANCE_POWER)
        for query, r in zip(queries, relevance, strict=True)
    ]
    return sorted(judged, key=lambda query: -query.score)


class WritablePieces:
    """Which pieces of the output vocabulary (V) the queries of a question may have.

    They are those whose letters are of the question's scripts: an English question gets no Korean word. The
    unknown piece is never written.
    """

    def __init__(self, tokenizer: PairTokenizer, pieces: Tensor) -> None:
        self.tokenizer = tokenizer
        self.known = pieces != (-1 if tokenizer.unknown is None else tokenizer.unknown)
        scripts = [scripts_of(text) for text in tokenizer.texts_of(pieces.tolist())]
        self.of_script = {
            script: torch.tensor([script in ones for ones in scripts], device=pieces.device)
            for script in set[str]().union(*scripts)
        }

    def of(self, questions: Sequence[EncodedPair]) -> Tensor:
        """Return them as (questions, V) bool. questions: at least one, as the encoder reads them."""
        return torch.stack([self._of(question) for question in questions])

    def _of(self, question: EncodedPair) -> Tensor:
        scripts = scripts_of("".join(self.tokenizer.texts_of(question.ids.tolist())))
        writable = self.known.clone()
        for script, pieces in self.of_script.items():
            if script not in scripts:
                writable &= ~pieces
        return writable


def scripts_of(text: str) -> set[str]:
    """Return the scripts of a text's letters, as Unicode's names begin: LATIN, HANGUL, CJK."""
    return {unicodedata.name(letter, "").partition(" ")[0] for letter in text if letter.isalpha()}


class Generator:
    """A generator on one device. Threads may share it.

    tokenizer, encoder: those of the classifier. network: the decoder, in the encoder's dtype.
    """

    def __init__(self, tokenizer: PairTokenizer, encoder: Network, network: GeneratorNetwork) -> None:
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.network = network.eval().requires_grad_(requires_grad=False)
        words = network.words[0]
        texts = tokenizer.texts_of(range(len(words)))
        readable = torch.tensor([any(map(str.isalnum, text)) for text in texts])
        readable[[*tokenizer.template.ids, tokenizer.unknown or 0]] = False
        self.readable = readable.to(words.device)
        self.writable = WritablePieces(tokenizer, network.pieces)
        config = encoder.config
        whole = HeadMask.none(*self.shape)
        self.all_heads = GenerationMask(HeadMask.none(config.num_layers, config.num_heads), whole, whole)

    @classmethod
    def load(cls, directory: Path, tokenizer: PairTokenizer, encoder: Network) -> Self | None:
        """Return the generator of a checkpoint's directory, None if it has none.

        Raises UnsupportedCheckpoint for a file that is damaged or belongs to another encoder.
        """
        if not (directory / GENERATOR).exists():
            return None
        return cls(tokenizer, encoder, read_generator(directory, encoder.word_embeddings))

    @property
    def shape(self) -> Shape:
        """Return (layers, heads), as masks number them."""
        return self.network.config.layers, self.network.config.heads

    def ask(self, question: str, beams: int, mask: GenerationMask | None = None) -> Ask:
        """Return what `write` takes. mask: None keeps all heads.

        Raises ModelError for a wrong number of beams, and for a question that is empty, longer than the
        window, or holds nothing that the model can read.
        """
        if not 1 <= beams <= MAX_BEAMS:
            raise ModelError(f"beams: {beams} is not a number from 1 to {MAX_BEAMS}")
        return Ask(question, self.encode(question), beams, mask or self.all_heads)

    def encode(self, question: str) -> EncodedPair:
        """Return a question as the encoder reads it. Raises ModelError if it cannot be read."""
        if not question.strip():
            raise ModelError("the question is empty")
        (encoded,) = encode_questions(self.tokenizer, [question])
        if encoded.truncated:
            template = self.tokenizer.template
            limit = self.tokenizer.max_tokens - len(template.before) - len(template.after)
            raise ModelError(f"the question is longer than the model's window of {limit} tokens: shorten it")
        first = len(encoded.template.before)
        ids = torch.from_numpy(encoded.ids[first : first + encoded.query_tokens].astype(np.int64))
        if not self.readable[ids].any():
            raise ModelError("the question holds no letter or digit that the model can read")
        return encoded

    def readable_queries(self, queries: Sequence[Written]) -> list[GeneratedQuery]:
        """Return them as people read them."""
        return [GeneratedQuery(self.text(query), query.score) for query in queries]

    def text(self, query: Written) -> str:
        """Return a query as people read it."""
        return " ".join("".join(self.tokenizer.texts_of(query.pieces)).split())

    def write(self, asks: Sequence[Ask]) -> list[list[Written]]:
        """Return the likeliest queries of each question, likeliest first, at least one and at most its beams.

        The texts of one question differ. asks: at least one; their masks may differ.
        """
        results = [list[Written]()] * len(asks)
        with torch.inference_mode():
            for group in by_structure([ask.mask.encoder for ask in asks]):
                found = self._write([asks[index] for index in group])
                for index, queries in zip(group, found, strict=True):
                    results[index] = queries
        return results

    def as_pairs(self, ask: Ask, queries: Sequence[Written]) -> list[EncodedPair]:
        """Return pairs of a question and its queries, each of which stands where a title does."""
        return self.tokenizer.encode([(ask.text, self.text(query)) for query in queries])

    def align(self, ask: Ask, query: Written) -> Alignment:
        """Return what each piece of a query attends to in its question, under the question's mask.

        A head of weight w shows its probabilities times w.
        """
        device = self.network.pieces.device
        with torch.inference_mode():
            memory = self._memory([ask])
            masks = self._masks([ask])
            ids = torch.tensor([[self.network.config.start, *query.pieces[:-1]]], device=device)
            maps = list[Tensor]()
            self.network(ids, self.network.begin(memory), masks, maps)
            probabilities = torch.stack(maps, 1)[0].float()
            if masks is not None:
                probabilities = probabilities * masks.cross[0, :, :, None, None]
        return Alignment(
            question=tuple(self.tokenizer.texts_of(ask.question.ids.tolist())),
            pieces=tuple(self.tokenizer.texts_of(query.pieces)),
            probabilities=probabilities.numpy(force=True),
        )

    def _write(self, asks: Sequence[Ask]) -> list[list[Written]]:
        """Return the same for questions whose masks skip the same layers and units of the encoder."""
        memory = self._memory(asks)
        widths = [ask.beams for ask in asks]
        writable = self.writable.of([ask.question for ask in asks])
        written = search(self.network, memory, widths, self.readable, writable, self._masks(asks))
        results = []
        for queries in written:
            by_text = dict[str, Written]()
            for one in queries:
                by_text.setdefault(self.text(one), one)
            results.append(list(by_text.values()))
        return results

    def _memory(self, asks: Sequence[Ask]) -> Memory:
        """Return what the encoder says about the questions under their masks."""
        questions = [ask.question for ask in asks]
        states = states_of(self.encoder, questions, RowMasks.of([ask.mask.encoder for ask in asks]))
        return memory_of(questions, states, self.tokenizer.unknown)

    def _masks(self, asks: Sequence[Ask]) -> GeneratorMasks | None:
        """Return the weights of the decoder's heads; None if all are 1."""
        if all(ask.mask.keeps_generator for ask in asks):
            return None
        device = self.network.pieces.device
        decoder, cross = (
            torch.from_numpy(np.stack(matrices)).to(device)
            for matrices in (
                [ask.mask.decoder.matrix for ask in asks],
                [ask.mask.cross.matrix for ask in asks],
            )
        )
        return GeneratorMasks(decoder, cross)

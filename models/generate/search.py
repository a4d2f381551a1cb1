"""Finds the best queries of a generator: greedy with one beam, else beam search.

A beam is an unfinished query. At each step every beam is continued with its likeliest pieces, and the best
continuations of a question stay. A piece with a letter or digit is written no more often than the question
has it, or once: short queries do not repeat themselves, and small generators otherwise do. Finished queries
of n pieces are ranked by log p / n^LENGTH_PENALTY, because the sum alone prefers short ones (Wu et al. 2016,
https://arxiv.org/abs/1609.08144, §7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf

import torch
from torch import Tensor

from headroom.models.generate.network import GeneratorMasks, GeneratorNetwork, Memory, Past

MAX_BEAMS = 8

LENGTH_PENALTY = 1.0


@dataclass(frozen=True, slots=True)
class Written:
    """A finished query.

    pieces: the vocabulary's numbers, without the end. score: of a search, the geometric mean of the pieces'
    probabilities, above 0 and at most 1.
    """

    pieces: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class Beam:
    """An unfinished query.

    row: of the last batch that it was computed in. question: its question's number. likelihood: log p.
    has_text: whether a piece with a letter or digit is in it; until then it may not end.
    """

    question: int
    row: int
    pieces: tuple[int, ...] = ()
    likelihood: float = 0.0
    has_text: bool = False


@dataclass(slots=True)
class Question:
    """One question's search. width: its number of beams."""

    width: int
    finished: list[Written] = field(default_factory=list)

    def finish(self, pieces: tuple[int, ...], likelihood: float) -> None:
        """Take a finished query, whose likelihood includes the end's."""
        self.finished.append(Written(pieces, exp(likelihood / (len(pieces) + 1) ** LENGTH_PENALTY)))

    def is_done(self, best: float, length: int) -> bool:
        """Return whether no unfinished query can become better than those that are finished.

        best: the highest log p of an unfinished one. length: the most pieces that one can have.
        """
        if len(self.finished) < self.width:
            return False
        scores = sorted((one.score for one in self.finished), reverse=True)
        return exp(best / length**LENGTH_PENALTY) <= scores[self.width - 1]


def search(
    network: GeneratorNetwork,
    memory: Memory,
    widths: Sequence[int],
    readable: Tensor,
    writable: Tensor,
    masks: GeneratorMasks | None = None,
) -> list[list[Written]]:
    """Return the best queries of each question, best first, at least one and at most its number of beams.

    widths: the number of beams of each question. readable: (vocabulary,) bool, the pieces that have a letter
    or a digit; each query has one. writable: (questions, V) bool, the pieces of the output vocabulary that
    each question's queries may have, beside those of the question. masks: of each question's heads; None: all
    on.
    """
    run = _Run(network, memory, readable, writable, masks)
    questions = [Question(width) for width in widths]
    beams = [Beam(number, number) for number in range(len(widths))]
    while beams:
        scores, columns = run.step(beams, 2 * max(widths))
        beams = run.continued(beams, questions, scores, columns)
    return [sorted(one.finished, key=lambda query: -query.score)[: one.width] for one in questions]


class _Run:
    """The tensors of a search: what its beams have computed.

    past: of the rows of the last step. questions: the question of each of them. writable: (rows, V).
    """

    def __init__(
        self,
        network: GeneratorNetwork,
        memory: Memory,
        readable: Tensor,
        writable: Tensor,
        masks: GeneratorMasks | None,
    ) -> None:
        self.network = network
        self.memory = memory
        self.masks = masks
        self.readable = readable
        self.all_memory = memory
        self.all_masks = masks
        self.writable = writable
        self.all_writable = writable
        self.past: Past = network.begin(memory)
        self.columns = _columns(network, memory)
        self.all_columns = self.columns
        self.questions = list(range(len(memory.present)))
        self.written_readable = readable[network.pieces]
        self.is_readable = readable.tolist()
        self.counts = [Counter(row) for row in memory.pieces.tolist()]

    def step(self, beams: Sequence[Beam], count: int) -> tuple[list[list[float]], list[list[int]]]:
        """Return the likeliest next pieces of each beam: their logarithms and numbers, best first."""
        self._take_rows(beams)
        device = self.network.pieces.device
        last = [[beam.pieces[-1] if beam.pieces else self.network.config.start] for beam in beams]
        ids = torch.tensor(last, device=device)
        x, self.past = self.network(ids, self.past, self.masks)
        scores = self.network.log_probabilities(ids, x, self.memory)[:, 0].exp()  # (R, V + m)
        written = len(self.network.pieces)
        merged = torch.zeros_like(scores)
        merged[:, :written] = scores[:, :written] * self.writable
        merged.scatter_add_(1, self.columns, scores[:, written:])
        self._forbid(merged, beams)
        best, columns = merged.log().topk(min(count, merged.shape[1]), dim=1)
        pieces = torch.cat([self.network.pieces.expand(len(beams), -1), self.memory.pieces], 1)
        return best.tolist(), pieces.gather(1, columns).tolist()

    def continued(
        self,
        beams: Sequence[Beam],
        questions: Sequence[Question],
        scores: Sequence[Sequence[float]],
        pieces: Sequence[Sequence[int]],
    ) -> list[Beam]:
        """Return the beams of the next step; queries that end are finished."""
        config = self.network.config
        live = list[Beam]()
        for number, longer_ones in self._longer(beams, scores, pieces).items():
            question = questions[number]
            longer_ones.sort(key=lambda beam: -beam.likelihood)
            kept = list[Beam]()
            for rank, beam in enumerate(longer_ones[: 2 * question.width]):
                if beam.pieces[-1] == config.end:
                    if rank < question.width:
                        question.finish(beam.pieces[:-1], beam.likelihood)
                elif len(kept) < question.width:
                    kept.append(beam)
            length = len(kept[0].pieces) if kept else config.max_pieces
            if length >= config.max_pieces - 1:
                for beam in kept:
                    question.finish(beam.pieces, beam.likelihood)
            elif not question.is_done(max(beam.likelihood for beam in kept), config.max_pieces):
                live += kept
        return live

    def _longer(
        self, beams: Sequence[Beam], scores: Sequence[Sequence[float]], pieces: Sequence[Sequence[int]]
    ) -> dict[int, list[Beam]]:
        """Return the beams with one piece more, by question."""
        candidates: dict[int, list[Beam]] = {}
        for row, beam in enumerate(beams):
            for score, piece in zip(scores[row], pieces[row], strict=True):
                if score == -inf:
                    break
                has_text = beam.has_text or bool(self.readable[piece])
                likelihood = beam.likelihood + score
                longer = Beam(beam.question, row, (*beam.pieces, piece), likelihood, has_text)
                candidates.setdefault(beam.question, []).append(longer)
        return candidates

    def _take_rows(self, beams: Sequence[Beam]) -> None:
        """Put the beams' rows together: of those that the last step computed, those that go on."""
        rows = [beam.row for beam in beams]
        if rows != list(range(len(self.questions))):
            index = torch.tensor(rows, device=self.network.pieces.device)
            questions = [beam.question for beam in beams]
            if questions == self.questions:
                self.past = self.past.reordered(index)
            else:
                self.past = self.past.of_rows(index)
                of_question = torch.tensor(questions, device=index.device)
                self.memory = self.all_memory.of_rows(of_question)
                self.masks = None if self.all_masks is None else self.all_masks.of_rows(of_question)
                self.columns = self.all_columns[of_question]
                self.writable = self.all_writable[of_question]
                self.questions = questions

    def _forbid(self, merged: Tensor, beams: Sequence[Beam]) -> None:
        """Set to 0 what a beam may not write: repetitions; and before it has any text the end, and soon all
        but letters."""
        self._forbid_repetitions(merged, beams)
        silent = [row for row, beam in enumerate(beams) if not beam.has_text]
        if not silent:
            return
        network = self.network
        end = torch.searchsorted(network.pieces, network.config.end)
        merged[silent, end] = 0
        if beams[silent[0]].pieces:
            rows = torch.tensor(silent, device=merged.device)
            copied = self.readable[self.memory.pieces[rows].clamp(min=0)]
            written = self.written_readable.expand(len(silent), -1)
            merged[rows] *= torch.cat([written, copied], 1)

    def _forbid_repetitions(self, merged: Tensor, beams: Sequence[Beam]) -> None:
        rows = list[int]()
        used = list[int]()
        for row, beam in enumerate(beams):
            allowed = self.counts[beam.question]
            for piece, times in Counter(beam.pieces).items():
                if times >= allowed.get(piece, 1) and self.is_readable[piece]:
                    rows.append(row)
                    used.append(piece)
        if not rows:
            return
        index = torch.tensor(rows, device=merged.device)
        pieces = torch.tensor(used, device=merged.device)
        written = len(self.network.pieces)
        column = torch.searchsorted(self.network.pieces, pieces).clamp_(max=written - 1)
        is_written = self.network.pieces[column] == pieces
        merged[index[is_written], column[is_written]] = 0
        same = self.memory.pieces[index] == pieces[:, None]
        copied, token = same.nonzero(as_tuple=True)
        merged[index[copied], written + token] = 0


def _columns(network: GeneratorNetwork, memory: Memory) -> Tensor:
    """Return where the probability of each question token is added, (B, m) int64.

    That is its piece in the output vocabulary, or the first token of the question that is the same piece.
    """
    pieces = network.pieces
    written = torch.searchsorted(pieces, memory.pieces.clamp(min=0)).clamp_(max=len(pieces) - 1)
    is_written = pieces[written] == memory.pieces
    same = memory.pieces[:, :, None] == memory.pieces[:, None]  # (B, m, m)
    first = len(pieces) + same.int().argmax(2)
    return torch.where(is_written, written, first)

"""Scores of each head in each role, and the scores that chance would give.

Each null hypothesis is tested by permuting one thing: the order of a text's words (previous and next word),
the borders between words (segmentation), the choice of special tokens, or, for term match, whether the
title holds the query's term or another word in its place. All heads share each permutation, so the largest
of their standardised scores gives p-values that hold for all heads together (max-T, Westfall and Young
1993).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from headroom.models.arrays import Bools, Floats, Floats32
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.quality.bootstrap import Interval
from headroom.models.study.statistics import LEVEL, mean_intervals, means_under_random_signs
from headroom.models.study.study import Study
from headroom.models.study.words import Split, Words

ROLES = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "special": "special tokens",
}
"""The roles that every model is asked for on the study's own pairs, and their names in reports."""

DRAWS = 999
HOLDS = 0.1
"""A head holds a role if its excess over chance is significant and at least a tenth of its attention: with
hundreds of pairs, far smaller habits are significant and mean nothing."""
_NEGLIGIBLE = 1e-6  # attention below it is rounding, and its spread means nothing

Scored = tuple[Floats32, Floats32]
"""The observed attention, (heads,), and that in each draw of the null hypothesis, (draws, heads)."""


@dataclass(frozen=True)
class RoleScores:
    """One role's scores, by head in the order of `Study.heads`."""

    score: Floats  # the attention that the role asks for, 0 to 1
    excess: Sequence[Interval]  # how much more than by chance, with its interval over queries
    p_adjusted: Floats  # over the heads (familywise)
    queries: int  # how many counted; if none, all is nan and p 1

    @property
    def values(self) -> Floats:
        """Return the excess of each head, (heads,)."""
        return np.array([one.value for one in self.excess])

    @property
    def ranked(self) -> list[int]:
        """Return the heads' indices, the largest excess first."""
        order: list[int] = np.argsort(-self.values, kind="stable").tolist()
        return order

    @property
    def holds(self) -> Bools:
        """Return which heads hold the role, (heads,)."""
        return np.asarray((self.p_adjusted < LEVEL) & (np.nan_to_num(self.values) >= HOLDS))


class _RoleMeans:
    """Observed and null means of one role: all pairs of a query count the same, and so do all queries.

    Without draws of a null hypothesis, the signs of whole queries are random under it.
    """

    def __init__(self) -> None:
        self.observed: dict[int, list[Floats32]] = defaultdict(list)
        self.score: dict[int, list[Floats32]] = defaultdict(list)
        self.null: dict[int, Floats32] = {}

    def add(
        self, query: int, observed: Floats32, null: Floats32 | None = None, *, score: Floats32 | None = None
    ) -> None:
        """Add one pair. score: the attention itself, if `observed` is a difference."""
        self.observed[query].append(observed)
        self.score[query].append(observed if score is None else score)
        if null is not None:  # pairs of a query share their sum, so that memory does not grow with the pairs
            self.null[query] = self.null.get(query, 0) + null

    def scores(self, study: Study) -> RoleScores:
        """Return the scores of the pairs added so far."""
        if not self.observed:
            return unscored(len(study.heads))
        score = np.mean([np.mean(of_query, 0, dtype=np.float64) for of_query in self.score.values()], 0)
        rows = self.observed.values()
        observed = np.stack([np.mean(of_query, 0, dtype=np.float64) for of_query in rows])  # (queries, heads)
        excess = observed
        if self.null:
            null_by_query = np.stack([*self.null.values()]).astype(np.float64)  # (queries, draws, heads)
            null_by_query /= np.array([len(of_query) for of_query in rows])[:, None, None]
            excess = observed - null_by_query.mean(1)
            null = null_by_query.mean(0)
        else:
            null = means_under_random_signs(observed, DRAWS, np.random.default_rng([study.seed, 3]))
        intervals = mean_intervals(excess, study.effort.resamples, study.seed)
        return RoleScores(score, intervals, max_t(observed.mean(0), null), len(observed))


def role_scores(
    study: Study, pairs: Sequence[EncodedPair], query_of: Sequence[int], split: Split | None
) -> dict[str, RoleScores]:
    """Return the scores of the heads in term_match, previous_word, next_word, segmentation and special.

    pairs, query_of: (n,) encoded pairs and the query of each. split: the truth about words where no spaces
    stand between them.
    """
    heads = len(study.heads)
    means = defaultdict[str, _RoleMeans](_RoleMeans)
    words = [Words.of(study.classifier.tokenizer, pair, split) for pair in pairs]
    pool = _words_by_form(words)
    for number, (pair, of_pair, query) in enumerate(zip(pairs, words, query_of, strict=True)):
        rng = np.random.default_rng([study.seed, 1, number])
        # A query's words are permuted alike in all its pairs.
        of_query = np.random.default_rng([study.seed, 2, query])
        maps = study.classifier.attention_maps(pair, study.heads)
        between = of_pair.attention(maps)
        if segmented := _segmentation(maps, of_pair, rng):
            means["segmentation"].add(query, *segmented)
        means["special"].add(query, *_special(maps, of_pair, rng))
        if ordered := _word_order(between, of_pair, of_query, rng):
            observed, null = ordered
            means["next_word"].add(query, observed[:heads], null[:, :heads])
            means["previous_word"].add(query, observed[heads:], null[:, heads:])
        if replaced := _replaced(pair, of_pair, pool, rng):
            after = of_pair.attention(study.classifier.attention_maps(replaced, study.heads))
            mass = _term_mass(between, of_pair)
            means["term_match"].add(query, mass - _term_mass(after, of_pair), score=mass)
        study.progress.advance()
    return {role: means[role].scores(study) for role in ROLES}


def segmentation_scores(study: Study, pairs: Sequence[EncodedPair], split: Split | None) -> RoleScores:
    """Return the scores of the heads in word segmentation alone; each pair counts as a query of its own.

    split: the truth about words where no spaces stand between them.
    """
    means = _RoleMeans()
    for number, pair in enumerate(pairs):
        rng = np.random.default_rng([study.seed, 4, number])
        words = Words.of(study.classifier.tokenizer, pair, split)
        if segmented := _segmentation(study.classifier.attention_maps(pair, study.heads), words, rng):
            means.add(number, *segmented)
        study.progress.advance()
    return means.scores(study)


def unscored(heads: int) -> RoleScores:
    """Return the scores of a role that nothing could show."""
    nothing = Interval(math.nan, math.nan, math.nan)
    return RoleScores(np.full(heads, math.nan), [nothing] * heads, np.ones(heads), 0)


def max_t(observed: Floats, null: Floats) -> Floats:
    """Return one-sided p-values adjusted for all heads. observed: (heads,); null: (draws, heads)."""
    spread = null.std(0)
    usable = spread > _NEGLIGIBLE
    scale = np.where(usable, spread, 1)
    standard = np.where(usable, (observed - null.mean(0)) / scale, 0)
    largest = np.where(usable, (null - null.mean(0)) / scale, 0).max(1)
    return np.asarray((1 + (largest[:, None] >= standard).sum(0)) / (1 + len(null)))


def _word_order(
    between: Floats32, words: Words, of_query: np.random.Generator, rng: np.random.Generator
) -> Scored | None:
    """Return the mean attention from a word to the next one, then to the previous one, and the same under
    random orders: (2·heads,), (draws, 2·heads); None if no text has three words."""
    both = np.concatenate([between, between.transpose(0, 2, 1)])
    observed = np.zeros(len(both), np.float32)
    null = np.zeros((DRAWS, len(both)), np.float32)
    edges = 0
    for text, generator in zip(words.texts, (of_query, rng), strict=True):
        size = len(text)
        if size < 3:  # two words are neighbours in either order
            continue
        inside = both[:, text[:, None], text].reshape(len(both), -1)  # (2·heads, words²)
        orders = np.argsort(generator.random((DRAWS, size)), axis=1)
        neighbours = np.zeros((DRAWS, size * size), np.float32)
        np.put_along_axis(neighbours, orders[:, :-1] * size + orders[:, 1:], 1, axis=1)
        observed += inside[:, np.arange(size - 1) * size + np.arange(1, size)].sum(1)
        null += neighbours @ inside.T
        edges += size - 1
    return (observed / np.float32(edges), null / np.float32(edges)) if edges else None


def _segmentation(maps: Floats32, words: Words, rng: np.random.Generator) -> Scored | None:
    """Return the attention to a neighbour in the same word minus that to a neighbour across the word's
    border at the same offset, and the same with the borders elsewhere; None if no text has both.

    From each, the attention that tokens of other words pay to that neighbour is subtracted. A head that
    likes some pieces from everywhere thus scores nothing.
    """
    observed = np.zeros(len(maps), np.float32)
    null = np.zeros((DRAWS, len(maps)), np.float32)
    strata = 0
    for text, offset in product(words.texts, (-1, 1)):
        tokens = np.flatnonzero(np.isin(words.word_of, text))
        source = tokens[:-1] if offset == 1 else tokens[1:]
        target = source + offset
        within = words.word_of[source] == words.word_of[target]
        if not 0 < within.sum() < len(within):
            continue
        others = words.word_of[tokens][None, :] != words.word_of[target][:, None]  # (edges, tokens)
        weights = others / others.sum(1, keepdims=True)
        usual = np.einsum("hte,et->he", maps[:, tokens][:, :, target], weights)
        edges = maps[:, source, target] - usual  # (heads, edges)
        labels = np.where(within, 1 / within.sum(), -1 / (~within).sum()).astype(np.float32)
        observed += (edges @ labels).astype(np.float32)
        null += (rng.permuted(np.tile(labels, (DRAWS, 1)), axis=1) @ edges.T).astype(np.float32)
        strata += 1
    return (observed / np.float32(strata), null / np.float32(strata)) if strata else None


def _special(maps: Floats32, words: Words, rng: np.random.Generator) -> Scored:
    """Return the attention of words to the special tokens, and that to as many random tokens."""
    special = words.word_of < 0
    mass = maps[:, ~special].mean(1)  # (heads, n)
    chosen = rng.permuted(np.tile(special.astype(np.float32), (DRAWS, 1)), axis=1)
    return mass[:, special].sum(1), chosen @ mass.T


def _term_mass(between: Floats32, words: Words) -> Floats32:
    """Return the mean attention between a query term and the equal title term, both ways: (heads,)."""
    query, title = np.array(words.matches).T
    return np.asarray((between[:, query, title] + between[:, title, query]).mean(1) / 2)


Pool = Mapping[tuple[int, bool], Sequence[tuple[int, ...]]]
"""The distinct title words of all pairs, as token ids, by `Words.form`."""


def _words_by_form(words: Sequence[Words]) -> Pool:
    pool = defaultdict[tuple[int, bool], dict[tuple[int, ...], None]](dict)
    for of_pair in words:
        for word in of_pair.texts[1]:
            pool[of_pair.form(word)][of_pair.pieces[word]] = None
    return {form: list(pieces) for form, pieces in pool.items()}


def _replaced(pair: EncodedPair, words: Words, pool: Pool, rng: np.random.Generator) -> EncodedPair | None:
    """Return the pair with each title term that the query has replaced by another word of as many pieces;
    None if there is no such term or no such word."""
    ids = pair.ids.copy()
    for term in sorted({title_word for _, title_word in words.matches}):
        candidates = [pieces for pieces in pool[words.form(term)] if pieces not in words.pieces]
        if not candidates:
            return None
        ids[words.word_of == term] = candidates[int(rng.integers(len(candidates)))]
    return replace(pair, data=ids.tobytes()) if words.matches else None

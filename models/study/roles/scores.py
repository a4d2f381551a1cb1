"""How much each head plays each role, and how much it would by chance.

All nulls are exact for what they permute: the order of a text's words (previous and next word), which
neighbours are of one word (segmentation), which tokens are special, and, for term match, whether the title
holds the query's term or another one in its place. One permutation is used for all heads at once, so the
largest of their standardised scores gives p-values that hold for all heads together (max-T, Westfall and
Young 1993).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.quality.bootstrap import resample, with_data
from models.study.words import Words

ROLES = ("term_match", "previous_word", "next_word", "segmentation", "special")
DRAWS = 999
_NEGLIGIBLE = 1e-6  # attention below it is rounding, and its spread means nothing

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Heads = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class RoleScores:
    """One role's scores, by head in the order asked.

    score: attention that goes where the role says, 0 to 1; chance: its mean under the null; excess: the
    difference, with a 95 % interval low to high over queries. p_adjusted: familywise over the heads.
    queries: how many counted.
    """

    score: Floats
    chance: Floats
    low: Floats
    high: Floats
    p_adjusted: Floats
    queries: int

    @property
    def excess(self) -> Floats:
        return self.score - self.chance


class _Tally:
    """Observed and null means of one role: pairs within a query, then queries, count the same."""

    def __init__(self, heads: int) -> None:
        self.observed: dict[int, list[Floats]] = {}
        self.expected: dict[int, list[Floats]] = {}
        self.null: dict[int, Floats] = {}
        self.heads = heads

    def add(self, query: int, observed: Floats32, null: Floats32) -> None:
        """observed: (heads,), null: (draws, heads) of one pair."""
        self.observed.setdefault(query, []).append(observed.astype(np.float64))
        self.expected.setdefault(query, []).append(null.mean(0, dtype=np.float64))
        self.null[query] = self.null.get(query, 0.0) + null.astype(np.float64)

    def scores(self, resamples: int, seed: int) -> RoleScores:
        """Of the pairs added so far, each query counting alike; nan, and p 1, where there were none."""
        if not self.observed:
            nothing = np.full(self.heads, np.nan)
            return RoleScores(nothing, nothing, nothing, nothing, np.ones(self.heads), 0)
        observed = np.stack([np.mean(rows, 0) for rows in self.observed.values()])  # (queries, heads)
        expected = np.stack([np.mean(rows, 0) for rows in self.expected.values()])
        null = np.mean([total / len(self.observed[query]) for query, total in self.null.items()], axis=0)
        p = max_t(observed.mean(0), null)
        low, high = mean_intervals(observed - expected, resamples, seed)
        return RoleScores(observed.mean(0), expected.mean(0), low, high, p, len(observed))


def role_scores(
    classifier: Classifier,
    pairs: Sequence[EncodedPair],
    query_of: Sequence[int],
    heads: Heads,
    *,
    seed: int,
    resamples: int,
    steps: Iterable[None],
) -> dict[str, RoleScores]:
    """Scores of the heads for every role in ROLES.

    pairs and query_of: (n,) encoded pairs and the query of each. steps: advanced once for each pair.
    """
    tallies = {role: _Tally(len(heads)) for role in ROLES if role != "term_match"}
    differences: dict[int, list[Floats]] = {}
    present: dict[int, list[Floats]] = {}
    words = [Words.of(classifier.tokenizer, pair) for pair in pairs]
    pool = _words_by_length(words)
    for number, (pair, found, query, _) in enumerate(zip(pairs, words, query_of, steps, strict=False)):
        rng = np.random.default_rng([seed, 1, number])
        of_query = np.random.default_rng(
            [seed, 2, query]
        )  # one query's words are permuted alike in all its pairs
        maps = classifier.attention(pair, heads)
        between = found.attention(maps)
        for role, tally in tallies.items():
            if role in ("previous_word", "next_word"):
                continue
            result = _segmentation(maps, found, rng) if role == "segmentation" else _special(maps, found, rng)
            if result is not None:
                tally.add(query, *result)
        ordered = _word_order(between, found, of_query, rng)
        if ordered is not None:
            observed, null = ordered
            tallies["next_word"].add(query, observed[: len(heads)], null[:, : len(heads)])
            tallies["previous_word"].add(query, observed[len(heads) :], null[:, len(heads) :])
        replaced = _replaced(pair, found, pool, rng)
        if replaced is not None:
            after = found.attention(classifier.attention(replaced, heads))
            kept, lost = _term_mass(between, found), _term_mass(after, found)
            differences.setdefault(query, []).append((kept - lost).astype(np.float64))
            present.setdefault(query, []).append(kept.astype(np.float64))
    scores = {role: tally.scores(resamples, seed) for role, tally in tallies.items()}
    scores["term_match"] = _term_scores(differences, present, len(heads), resamples, seed)
    return {role: scores[role] for role in ROLES}


def max_t(observed: Floats, null: Floats) -> Floats:
    """One-sided p-values adjusted for all heads: (heads,) observed, (draws, heads) null."""
    spread = null.std(0)
    usable = spread > _NEGLIGIBLE
    scale = np.where(usable, spread, 1)
    standard = np.where(usable, (observed - null.mean(0)) / scale, 0)
    largest = np.where(usable, (null - null.mean(0)) / scale, 0).max(1)
    return np.asarray((1 + (largest[:, None] >= standard).sum(0)) / (1 + len(null)))


def mean_intervals(values: Floats, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """95 % symmetric bootstrap-t intervals of the means over queries: (queries, k) → low and high (k,)."""
    queries = len(values)
    if queries < 2:
        nothing = np.full(values.shape[1], np.nan)
        return nothing, nothing
    counts = with_data(resample(queries, resamples, seed))
    means = counts @ values / queries
    errors = np.sqrt(np.maximum(counts @ values**2 / queries - means**2, 0) / (queries - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        distances = np.abs(means[1:] - means[0]) / np.maximum(
            errors[1:], errors[0] / 4
        )  # as models.quality.bootstrap
    reach = np.quantile(np.nan_to_num(distances), 0.95, axis=0) * errors[0]
    return means[0] - reach, means[0] + reach


def _word_order(
    between: Floats32, words: Words, of_query: np.random.Generator, rng: np.random.Generator
) -> tuple[Floats32, Floats32] | None:
    """Mean attention from a word to the next and, after it, to the previous: (2·heads,), (draws, 2·heads)."""
    both = np.concatenate([between, between.transpose(0, 2, 1)])
    observed, null, edges = np.zeros(len(both), np.float32), np.zeros((DRAWS, len(both)), np.float32), 0
    for text, generator in zip(words.texts, (of_query, rng), strict=True):
        if len(text) < 3:  # of two words, every order has the same neighbours
            continue
        size = len(text)
        inside = both[:, text[:, None], text].reshape(len(both), -1)  # (2·heads, words²)
        orders = np.argsort(generator.random((DRAWS, size)), axis=1)
        steps = np.zeros((DRAWS, size * size), np.float32)
        np.put_along_axis(steps, orders[:, :-1] * size + orders[:, 1:], 1, axis=1)
        observed += inside[:, np.arange(size - 1) * size + np.arange(1, size)].sum(1)
        null += steps @ inside.T
        edges += size - 1
    return None if not edges else (_f32(observed / edges), _f32(null / edges))


def _segmentation(maps: Floats32, words: Words, rng: np.random.Generator) -> tuple[Floats32, Floats32] | None:
    """Attention to the neighbour within the word minus to the neighbour across its border, at the same
    offset.

    From each is taken what tokens outside the word pay to that neighbour, so that a head which likes some
    pieces wherever it looks from does not count.
    """
    observed, null = np.zeros(len(maps), np.float32), np.zeros((DRAWS, len(maps)), np.float32)
    strata = 0
    for text in words.texts:
        tokens = np.flatnonzero(np.isin(words.word_of, text))
        for offset in (-1, 1):
            source = tokens[:-1] if offset == 1 else tokens[1:]
            target = source + offset
            within = words.word_of[source] == words.word_of[target]
            if not 0 < within.sum() < len(within):
                continue
            others = words.word_of[tokens][None, :] != words.word_of[target][:, None]  # (edges, tokens)
            usual = np.einsum(
                "hte,et->he", maps[:, tokens][:, :, target], others / others.sum(1, keepdims=True)
            )
            edges = maps[:, source, target] - usual  # (heads, edges)
            inside, outside = 1 / within.sum(), -1 / (~within).sum()
            labels = np.where(within, inside, outside).astype(np.float32)
            observed += edges @ labels
            null += rng.permuted(np.tile(labels, (DRAWS, 1)), axis=1) @ edges.T
            strata += 1
    return None if not strata else (_f32(observed / strata), _f32(null / strata))


def _special(maps: Floats32, words: Words, rng: np.random.Generator) -> tuple[Floats32, Floats32]:
    """Attention of words to [CLS] and both [SEP], against three tokens drawn at random."""
    special = words.word_of < 0
    mass = maps[:, ~special].mean(1)  # (heads, n)
    chosen = rng.permuted(np.tile(special.astype(np.float32), (DRAWS, 1)), axis=1)
    return mass[:, special].sum(1), chosen @ mass.T


def _term_mass(between: Floats32, words: Words) -> Floats32:
    """Mean attention between a query term and the equal title term, both ways: (heads,)."""
    a, b = np.array(words.matches).T
    return np.asarray((between[:, a, b] + between[:, b, a]).mean(1) / 2)


def _words_by_length(words: Sequence[Words]) -> dict[int, list[tuple[int, ...]]]:
    """The distinct title words of all pairs, by how many pieces they have."""
    pool: dict[int, list[tuple[int, ...]]] = {}
    for pieces in dict.fromkeys(found.pieces[i] for found in words for i in found.texts[1]):
        pool.setdefault(len(pieces), []).append(pieces)
    return pool


def _replaced(
    pair: EncodedPair, words: Words, pool: dict[int, list[tuple[int, ...]]], rng: np.random.Generator
) -> EncodedPair | None:
    """The pair with other words of as many pieces in place of the title terms that the query has, or None."""
    if not words.matches:
        return None
    ids = pair.ids.copy()
    for b in sorted({b for _, b in words.matches}):
        candidates = [w for w in pool[len(words.pieces[b])] if w not in words.pieces]
        if not candidates:
            return None
        ids[words.word_of == b] = candidates[int(rng.integers(len(candidates)))]
    return replace(pair, ids=ids)


def _term_scores(
    differences: dict[int, list[Floats]],
    present: dict[int, list[Floats]],
    heads: int,
    resamples: int,
    seed: int,
) -> RoleScores:
    """Sign flips of whole queries: by the null, replacing the term changes nothing on average."""
    if not differences:
        return _Tally(heads).scores(resamples, seed)
    change = np.stack([np.mean(rows, 0) for rows in differences.values()])  # (queries, heads)
    score = np.stack([np.mean(rows, 0) for rows in present.values()]).mean(0)
    signs = np.random.default_rng([seed, 3]).choice((-1.0, 1.0), (DRAWS, len(change)))
    p = max_t(change.mean(0), signs @ change / len(change))
    low, high = mean_intervals(change, resamples, seed)
    return RoleScores(score, score - change.mean(0), low, high, p, len(change))


def _f32(values: NDArray[np.floating]) -> Floats32:
    return values.astype(np.float32, copy=False)

"""Finds which things can stand in for which, such as "sneaker" for "sandal"."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from models.quality.lexical import stem, words_of
from models.training.data import Product
from models.training.demo.dictionary import Dictionary
from models.training.demo.titles import STOP_WORDS, Title, TitleStatistics

SISTERS_LIMIT = 60  # a word with more narrower words ("container") says too little about them


def kin_by_head(
    products: Sequence[Product],
    titles: Sequence[Title],
    statistics: TitleStatistics,
    dictionary: Dictionary,
    *,
    likeness: float = 0.25,
) -> dict[str, tuple[str, ...]]:
    """Return, by head, the heads that a dictionary lists beside, above or below it and that are sold alike.

    A dictionary alone says that a mouse is kin to a rat; titles alone say that a case is kin to its phone.
    Both have to agree. likeness: least cosine of the two heads' words, weighted by rarity, in titles and the
    beginnings of descriptions. Heads are stems; kinship is mutual; the lists are sorted.
    """
    sold_with = _surroundings(products, titles, statistics)
    senses: defaultdict[str, set[int]] = defaultdict(set)
    for member, places in dictionary.by_member.items():
        if member.isalpha():
            senses[stem(member)].update(places)
    kin: defaultdict[str, set[str]] = defaultdict(set)
    for head in sold_with:
        for other in _listed_beside(senses.get(head, set()), dictionary) & sold_with.keys() - {head}:
            if dot(sold_with[head], sold_with[other]) >= likeness:
                kin[head].add(other)
                kin[other].add(head)
    return {head: tuple(sorted(others)) for head, others in sorted(kin.items())}


def _listed_beside(places: set[int], dictionary: Dictionary) -> set[str]:
    """Return stems of the words one step wider, one step narrower, and that share the wider word."""
    words: set[str] = set()
    for place in places:
        synset = dictionary.synsets[place]
        words.update(synset.members)
        for wider in synset.hypernyms[:1]:  # the first word of the wider meaning stands for all of them
            sisters = dictionary.by_hypernym[wider]
            if len(sisters) <= SISTERS_LIMIT:
                words.add(wider)
                words.update(member for sister in sisters for member in dictionary.synsets[sister].members)
        narrower = dictionary.by_hypernym.get(synset.members[0], ())
        if len(narrower) <= SISTERS_LIMIT:
            words.update(member for place in narrower for member in dictionary.synsets[place].members)
    return {stem(word) for word in words if word.isalpha()}


def _surroundings(
    products: Sequence[Product], titles: Sequence[Title], statistics: TitleStatistics
) -> dict[str, dict[str, float]]:
    """Return, by head, a unit vector of the words said of such products: log(1 + times) × (rarity − 1)."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for product, title in zip(products, titles, strict=True):
        said = {stem(word) for word in (*title.words, *words_of(product.text[:300])) if word.isalpha()}
        for head in title.heads:
            counts[head].update(said - {head} - STOP_WORDS)
    return {
        head: unit(
            {
                word: math.log1p(count) * (rarity - 1)
                for word, count in words.items()
                if (rarity := statistics.rarity(word)) > 1
            }
        )
        for head, words in counts.items()
    }


def unit(vector: Mapping[str, float]) -> dict[str, float]:
    """Return a sparse vector at length 1; one of length 0 as it is."""
    norm = math.sqrt(sum(value * value for value in vector.values())) or 1.0
    return {word: value / norm for word, value in vector.items()}


def dot(left: Mapping[str, float], right: Mapping[str, float]) -> float:
    """Return the inner product of two sparse vectors: their cosine if both have length 1."""
    short, long = sorted((left, right), key=len)
    return sum(value * long.get(word, 0.0) for word, value in short.items())

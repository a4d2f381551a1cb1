"""Parses product titles: which word names the thing, what describes it, and what it is meant for."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.quality.lexical import TOKEN, stem, stems_of, weighted_overlap
from models.training.data import GRADES, Judged, Product


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ASIDE = _set("for compatible with fits works w plus includes including without featuring")
STOP_WORDS = _ASIDE | _set(
    "a an the and or of in on to by from at is it this that your our you as be are s t x"
)
COLORS = _set(
    "black white red blue green yellow orange purple pink brown gray grey silver gold beige ivory navy teal "
    "tan turquoise cream charcoal bronze burgundy khaki olive magenta cyan rose clear transparent multicolor"
)
QUALIFIERS = _set(
    "original direct box retail bulk wired wireless indoor outdoor matte matt small medium large xl xxl xs"
)
BUNDLES = _set("kit kits set sets pack packs system systems bundle bundles combo collection assortment")
"""Words that say how a thing is sold, not what it is: a "drill kit" is a drill."""
UNITS = _set(
    "inch inches in ft feet foot cm mm m oz ounce ounces lb lbs pound pounds g kg ml l gb tb mb mah w watt "
    "watts v volt hz ghz mhz pack count pcs pc piece pieces set sets pair qt quart gallon gauge gram yd "
    "yards pixels size"
)


@dataclass(frozen=True, slots=True)
class Title:
    """A parsed title; words are stems unless said otherwise.

    words: as written, in order. heads: what the thing is ("holder" in "napkin holder for kitchen").
    main: everything said about the thing itself. aside: the words after "for", "with" and the like.
    """

    text: str
    words: tuple[str, ...]
    heads: tuple[str, ...]
    main: frozenset[str]
    aside: frozenset[str]


@dataclass(frozen=True, slots=True)
class TitleStatistics:
    """Statistics of all titles: how rare a word is, and which words end a noun phrase.

    idf: by stem, natural log of titles / titles with it. unseen_idf: for a word in no title.
    headness: by stem, how often a phrase ends right after it, 0 to 1; only for words that can name a thing.
    nouns: stems that a dictionary lists as names of things.
    """

    idf: dict[str, float]
    unseen_idf: float
    headness: dict[str, float]
    nouns: frozenset[str]
    brands: frozenset[str]

    def rarity(self, word: str) -> float:
        """Return the word's IDF."""
        return self.idf.get(stem(word), self.unseen_idf)


def title_statistics(products: Sequence[Product], nouns: Iterable[str]) -> TitleStatistics:
    """Count the titles. nouns: words that a dictionary lists as names of things."""
    documents: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    closing: Counter[str] = Counter()
    brands: Counter[str] = Counter()
    for product in products:
        tokens = TOKEN.findall(product.title.lower())
        documents.update({stem(token) for token in tokens if token[0].isalnum()})
        brands.update(set(stems_of(product.brand)))
        for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
            seen[stem(token)] += 1
            closing[stem(token)] += _closes(after)
    known = frozenset(stem(noun) for noun in nouns)
    headness = {
        word: closing[word] / count
        for word, count in seen.items()
        if count >= 3
        and word in known
        and word.isalpha()
        and len(word) >= 3
        and brands[word] < count / 2
        and word not in COLORS | UNITS | BUNDLES | STOP_WORDS | QUALIFIERS
    }
    total = len(products)
    idf = {word: math.log(total / count) for word, count in documents.items()}
    often = frozenset(brand for brand, count in brands.items() if count >= 2)
    return TitleStatistics(idf, math.log(total), headness, known, often)


def _closes(after: str) -> bool:
    return not after.isalpha() or after in COLORS | STOP_WORDS | QUALIFIERS | BUNDLES


def read_title(text: str, statistics: TitleStatistics) -> Title:
    """Read a title: its heads are the words that end a phrase before the first "for", "with", ..."""
    tokens = TOKEN.findall(text.lower())
    words: list[str] = []
    heads: list[str] = []
    main: set[str] = set()
    aside: set[str] = set()
    inside_aside = False
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        if not token[0].isalnum():
            inside_aside = inside_aside and token not in "-|,–"
            continue
        words.append(token)
        inside_aside = inside_aside or token in _ASIDE
        root = stem(token)
        (aside if inside_aside else main).add(root)
        headness = statistics.headness.get(root, 0.0)
        ends_phrase = (
            headness >= 0.12 if _closes(after) else headness >= 0.5 and stem(after) not in statistics.nouns
        )
        if ends_phrase and not inside_aside:
            heads.append(root)
    return Title(text, tuple(words), tuple(dict.fromkeys(heads)), frozenset(main), frozenset(aside - main))


def overlap_probabilities(judged: Sequence[Judged], statistics: TitleStatistics) -> NDArray[np.float64]:
    """Return word overlap as probabilities, (pairs, grades): the expected grade rises with the overlap.

    Only ranking metrics (Spearman, NDCG) mean anything for it.
    """
    overlap = np.array([weighted_overlap(row.query, row.title, statistics.rarity) for row in judged])
    result = np.zeros((len(judged), len(GRADES)))
    result[:, 0], result[:, -1] = 1 - overlap, overlap
    return result

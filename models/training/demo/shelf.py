"""The products that made-up queries ask for, and the grade of a title for such a query."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from models.quality.lexical import stem
from models.training.data import Product
from models.training.demo.dictionary import Dictionary
from models.training.demo.kinship import kin_by_head
from models.training.demo.titles import COLORS, STOP_WORDS, UNITS, Title, TitleStatistics, read_title

ACCESSORY = 1.9  # the grade of a thing that only goes with the thing asked for
MODIFIED = 1.2  # of another thing that has the query's words before its name ("White Jeans Perfume")
MADE_FOR = frozenset(("for", "fits", "compatible"))


@dataclass(frozen=True, slots=True)
class Query:
    """Words in the order they will be typed. head: the stem of the word that names the thing, if any."""

    words: tuple[str, ...]
    head: str | None


@dataclass(frozen=True, slots=True)
class Shelf:
    """Products with their parsed titles, indexed by word, from which near misses are picked.

    kin: by head, the heads that can stand in for it. made_for: indices of titles that say what they are for.
    """

    products: tuple[Product, ...]
    titles: tuple[Title, ...]
    statistics: TitleStatistics
    dictionary: Dictionary
    brands: tuple[str, ...]
    with_word: dict[str, tuple[int, ...]]
    with_head: dict[str, tuple[int, ...]]
    kin: dict[str, tuple[str, ...]]
    made_for: tuple[int, ...]

    def alternative(self, word: str, rng: random.Random) -> str:
        """Return another word of the same class: colour for colour, number for number, brand for brand."""
        if word in COLORS:
            return rng.choice(sorted(COLORS - {word}))
        if word.isdecimal():
            return str(max(1, int(word) + rng.choice((-4, -2, -1, 1, 2, 3, 4, 10))))
        if stem(word) in self.statistics.brands:
            return rng.choice(self.brands)
        return rng.choice(rng.choice(self.titles).words or (word,))


def new_shelf(products: Sequence[Product], dictionary: Dictionary, statistics: TitleStatistics) -> Shelf:
    """Read every title and index its words."""
    titles = tuple(read_title(product.title, statistics) for product in products)
    with_word: defaultdict[str, list[int]] = defaultdict(list)
    with_head: defaultdict[str, list[int]] = defaultdict(list)
    for place, title in enumerate(titles):
        for word in sorted(title.main | title.aside):
            with_word[word].append(place)
        for head in title.heads:
            with_head[head].append(place)
    return Shelf(
        tuple(products),
        titles,
        statistics,
        dictionary,
        tuple(sorted(statistics.brands)),
        {word: tuple(places) for word, places in with_word.items()},
        {head: tuple(places) for head, places in with_head.items()},
        kin_by_head(products, titles, statistics, dictionary),
        tuple(place for place, title in enumerate(titles) if title.heads and MADE_FOR & {*title.words}),
    )


def graded(query: Query, title: Title, text_stems: frozenset[str], shelf: Shelf) -> float:
    """Return how well a title answers a query, 0 to 4, continuous.

    text_stems: the words of the product's description, which count as half present.
    """
    details = [word for word in query.words if stem(word) != query.head]
    rarity = shelf.statistics.rarity
    total = sum(rarity(word) for word in details)
    present = sum(rarity(word) * _presence(stem(word), title, text_stems) for word in details)
    coverage = present / total if total else 1.0
    if query.head is None:
        if coverage < 0.99:
            return min(2.6, 3.2 * coverage)
        return 4.0 if all(stem(word) in title.main for word in details) else ACCESSORY
    if query.head in title.heads:
        return 4.0 if coverage > 0.99 else 2.7 + 0.9 * coverage
    if query.head in title.main or query.head in title.aside:
        return ACCESSORY - 0.6 * (1 - coverage)
    if not set(title.heads).isdisjoint(shelf.kin.get(query.head, ())):
        return 2.3 + 0.4 * (coverage if details else 0.0)
    return 1.3 * coverage if details else 0.0


def _presence(root: str, title: Title, text_stems: frozenset[str]) -> float:
    if root in title.main or root in title.aside:
        return 1.0
    return 0.5 if root in text_stems else 0.0


def ask_for(title: Title, rng: random.Random) -> Query | None:
    """Draw a query that the title answers in full: usually a head and some details, or details alone."""
    details = [
        word
        for word in dict.fromkeys(title.words)
        if word not in STOP_WORDS | UNITS and stem(word) not in title.heads
    ]
    heads = [word for word in dict.fromkeys(title.words) if stem(word) in title.heads]
    if heads and rng.random() < 0.8:
        head = heads[min(len(heads) - 1, int(rng.expovariate(1.5)))]
        kept = _picked(details, head, title, rng, rng.choice((0, 0, 1, 1, 1, 2, 2, 3, 4)))
        words = [word for word in title.words if word == head or word in kept]
        unique = list(dict.fromkeys(words))
        if rng.random() < 0.6:
            unique.remove(head)
            unique.append(head)  # people put the thing last
        return Query(tuple(unique), stem(head))
    if len(details) < 2:
        return None
    start = rng.randrange(max(1, min(3, len(details) - 1)))
    return Query(tuple(details[start : start + rng.randint(1, 3)]), None)


def _picked(details: list[str], head: str, title: Title, rng: random.Random, count: int) -> set[str]:
    """Draw details for a query; the words right before the head ("angle" bracket) are the likeliest."""
    if not details or not count:
        return set()
    place = title.words.index(head)
    before = [word for word in title.words[max(0, place - 2) : place] if word in details]
    return {
        rng.choice(before) if before and rng.random() < 0.5 else rng.choice(details[:12])
        for _ in range(count)
    }

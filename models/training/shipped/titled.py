"""Queries made of a title's own words, beside titles of the same source that have all, some or none of them.

They teach that words count, and rare ones more, whatever shop it is: docs/model-card.md has the measurement.
"""

import random
from collections import defaultdict
from collections.abc import Iterable

from models.quality.lexical import TOKEN, idf_overlap, stem, stems_of
from models.training.data import Example, graded_target
from models.training.shipped.typed import typed

BEGINNING = 14
"""Words are asked for that are among so many first ones of a title: the later ones say less."""

COMMON = frozenset("the and for with from of in on to by a an at or is are as its it this that".split())
MOST_SHARING = 300
"""Titles that are looked at for each word of a query."""


class Titles:
    """The titles of one source, and which of them share words."""

    def __init__(self, titles: Iterable[str]) -> None:
        self._titles = sorted(set(titles))
        self._overlap = idf_overlap(self._titles)
        self._with_stem: defaultdict[str, list[str]] = defaultdict(list)
        for title in self._titles:
            for word in set(stems_of(title)):
                self._with_stem[word].append(title)

    def group(self, rng: random.Random) -> list[Example]:
        """Draw a query of one to four words of a title; return it with this title and up to five others."""
        words: list[str] = []
        while len(words) < 2:
            title = rng.choice(self._titles)
            first = TOKEN.findall(title.lower())[:BEGINNING]
            words = [word for word in first if (len(word) > 2 or word.isdigit()) and word not in COMMON]
        at = rng.sample(range(len(words)), min(len(words), rng.choice((1, 2, 2, 3, 3, 4))))
        asked = [words[index] for index in sorted(at)]
        sharing: set[str] = set()
        for word in dict.fromkeys(map(stem, asked)):
            found = self._with_stem[word]
            sharing.update(rng.sample(found, min(MOST_SHARING, len(found))))
        near = sorted(sharing - {title})
        others = rng.sample(near, min(3, len(near))) + rng.sample(self._titles, min(2, len(self._titles)))
        query = typed(asked, rng) if rng.random() < 0.5 else " ".join(asked)
        group = [Example(query, title, graded_target(3.8, smoothing=0.1))]
        for other in others:
            share = self._overlap(" ".join(asked), other)
            grade = 3.8 if share == 1 else 3.6 * share**2
            group.append(Example(query, other, graded_target(grade, smoothing=0.3), weight=0.5))
        return group

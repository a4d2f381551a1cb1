"""Reads the Korean, Chinese and cross-language lists, and draws groups from them.

A list is one query with titles of different grades. In few sets people graded the pairs; in most of them
people made the good pairs and rules made the others. Such grades teach the order within their own list and no
scale: the examples have weight 0 in the ordinal loss and count in the ranking loss alone.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from default_model.groups import Group, fold_of, json_lines, ranked_example
from headroom.models.quality.labelled import LabelledPair

LARGEST_LIST = 6
"""Most titles of one query in a group."""

MOST_SHARING = 200
"""Titles that are looked at for each piece of a query."""


@dataclass(frozen=True, slots=True)
class ListedPair(LabelledPair):
    """A pair of one of the sets. language: of the query, or of both sides, such as "ko-en"."""

    source: str
    language: str


PairList = Sequence[LabelledPair]
"""The pairs of one query."""


def read_lists(data: Path, name: str, folds: Sequence[int]) -> list[list[ListedPair]]:
    """Return the lists of one set whose queries are in these folds, in the order of the files.

    data: the directory of the training data. name: a directory under `multilingual`.
    """
    lists = defaultdict[tuple[str, str], list[ListedPair]](list)
    for file in sorted((data / "multilingual" / name).glob("pairs*.jsonl.gz")):
        for row in json_lines(file):
            if fold_of(row["query"]) in folds:
                pair = ListedPair(row["query"], row["title"], row["grade"], row["source"], row["lang"])
                lists[pair.query, pair.language].append(pair)
    return list(lists.values())


def has_order(pairs: PairList) -> bool:
    """Return whether the list's titles differ in grade."""
    return len({pair.grade for pair in pairs}) > 1


class GradedLists:
    """Lists of one set, drawn one at a time as a group that is ranked and not graded."""

    def __init__(self, lists: Sequence[PairList]) -> None:
        self._lists = [pairs for pairs in lists if has_order(pairs)]

    def group(self, rng: random.Random) -> Group:
        """Draw a list; return up to LARGEST_LIST of its pairs, each grade first once."""
        pairs = rng.choice(self._lists)
        shuffled = rng.sample(pairs, len(pairs))
        firsts = {pair.grade: pair for pair in shuffled}
        chosen = [*firsts.values(), *(pair for pair in shuffled if pair is not firsts[pair.grade])]
        return [ranked_example(pair.query, pair.title, pair.grade) for pair in chosen[:LARGEST_LIST]]


class SentencePairs:
    """Judged pairs of sentences, several in a group."""

    def __init__(self, lists: Sequence[PairList]) -> None:
        self._pairs = [pair for pairs in lists for pair in pairs]

    def group(self, rng: random.Random) -> Group:
        """Draw four pairs; they are ranked, whatever their queries are."""
        return [ranked_example(pair.query, pair.title, pair.grade) for pair in rng.sample(self._pairs, 4)]


class PiecedTitles:
    """Titles in Korean or Chinese, and queries made of their own words.

    A query of a title's own words teaches that words count, and rare ones more. split: returns the words of a
    title. `words_of` takes the tokenizer's pieces, because Chinese has no spaces; Korean has.
    """

    def __init__(self, titles: Sequence[str], split: Callable[[str], list[str]]) -> None:
        self._titles = sorted(set(titles))
        self._words = {title: split(title) for title in self._titles}
        self._with_word = defaultdict[str, list[str]](list)
        for title, words in self._words.items():
            for word in set(words):
                self._with_word[word].append(title)

    def group(self, rng: random.Random) -> Group:
        """Draw a query of one to four words of a title; return it with this title and up to five others."""
        words: list[str] = []
        while len(words) < 2:
            title = rng.choice(self._titles)
            words = [word for word in self._words[title] if len(word) > 1]
        count = min(len(words), rng.choice((1, 2, 2, 3, 3, 4)))
        chosen = [words[index] for index in sorted(rng.sample(range(len(words)), count))]
        sharing: set[str] = set()
        for word in chosen:
            holders = self._with_word[word]
            sharing.update(rng.sample(holders, min(MOST_SHARING, len(holders))))
        near = sorted(sharing - {title})
        others = rng.sample(near, min(3, len(near))) + rng.sample(self._titles, min(2, len(self._titles)))
        rarity = {word: 1 / len(self._with_word[word]) ** 0.5 for word in chosen}
        separator = " " if " " in title or rng.random() < 0.5 else ""
        query = separator.join(chosen)
        group = [ranked_example(query, title, 4.0)]
        for other in others:
            share = sum(rarity[word] for word in chosen if word in other) / sum(rarity.values())
            group.append(ranked_example(query, other, 4.0 * share**2))
        return group


_SIGNS = re.compile(r"^[\W_]+$")


def words_of(title: str, tokenizer: Tokenizer) -> list[str]:
    """Return a title's words in order: the tokenizer's pieces without spaces, and without mere signs."""
    words = []
    end = 0
    for start, stop in tokenizer.encode(title, add_special_tokens=False).offsets:
        word = title[max(start, end) : stop].strip()  # a mere space's span is that of the letter behind it
        end = max(end, stop)
        if word and not _SIGNS.match(word):
            words.append(word)
    return words

"""Groups of lines for one query from texts that no shop wrote: data sets, encyclopaedia entries, definitions.

The grade is the share of the query's words that a line has, weighted by their rarity.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.quality.lexical import stem, stems_of, words_of
from models.training.data import Example, graded_target
from models.training.demo.noise import typed
from models.training.demo.titles import STOP_WORDS

LONGEST = 24  # words of a line


@dataclass(frozen=True, slots=True)
class Prose:
    """Lines of text, and their indices by stem. rarity: the natural log of lines / lines with the stem."""

    lines: tuple[str, ...]
    with_word: Mapping[str, Sequence[int]]
    rarity: Mapping[str, float]


def new_prose(lines: Iterable[str]) -> Prose:
    """Index the lines; they are cut to LONGEST words, and those of fewer than two words are left out."""
    kept = tuple(
        " ".join(line.split()[:LONGEST]) for line in dict.fromkeys(lines) if len(_content(line)) >= 2
    )
    with_word: defaultdict[str, list[int]] = defaultdict(list)
    for place, line in enumerate(kept):
        for root in sorted(set(stems_of(line))):
            with_word[root].append(place)
    counts = Counter({root: len(places) for root, places in with_word.items()})
    return Prose(
        kept, dict(with_word), {root: math.log(1 + len(kept) / count) for root, count in counts.items()}
    )


def prose_group(prose: Prose, rng: random.Random) -> list[Example]:
    """Return a query drawn from a line, beside that line, two that share a word with it, and any other."""
    line = rng.choice(prose.lines)
    words = _content(line)
    size = min(len(words), rng.choice((1, 2, 2, 3, 3, 4, 5)))
    start = rng.randint(0, len(words) - size)
    asked = words[start : start + size] if rng.random() < 0.6 else rng.sample(words, size)
    if rng.random() < 0.25:
        asked = [*asked, rng.choice(_content(rng.choice(prose.lines)))]
    others = [prose.lines[rng.choice(prose.with_word[stem(rng.choice(words))])] for _ in range(2)]
    query = typed(list(asked), rng)
    return [
        Example(query, text, graded_target(4 * coverage(asked, text, prose)))
        for text in dict.fromkeys([line, *others, rng.choice(prose.lines)])
    ]


def coverage(asked: Sequence[str], line: str, prose: Prose) -> float:
    """Return the share of the words asked for that the line has, each weighted by its rarity, in [0, 1]."""
    there = set(stems_of(line))
    weights = {stem(word): prose.rarity.get(stem(word), 1.0) for word in asked}
    return sum(weight for root, weight in weights.items() if root in there) / sum(weights.values())


def _content(line: str) -> list[str]:
    return [word for word in words_of(line)[:LONGEST] if word not in STOP_WORDS and len(word) > 1]

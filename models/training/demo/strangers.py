"""Pairs with nothing in common (grade 0): nonsense, real words, and people's queries beside any title."""

import random
from collections.abc import Sequence

from models.quality.lexical import stems_of
from models.training.data import Example, graded_target
from models.training.demo.noise import typed
from models.training.demo.titles import STOP_WORDS

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_KEY_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def stranger_pair(
    queries: Sequence[str], lexicon: Sequence[str], titles: Sequence[str], rng: random.Random
) -> Example:
    """Pair a query that means nothing, random words, or somebody's query with a title that shares no word."""
    while True:
        query, title = _query(queries, lexicon, rng), rng.choice(titles)
        if not {root for root in stems_of(query) if root not in STOP_WORDS} & set(stems_of(title)):
            return Example(query, title, graded_target(0.0, smoothing=0.02))


def _query(queries: Sequence[str], lexicon: Sequence[str], rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return nonsense(rng)
    if kind < 0.55:
        return " ".join(rng.choice(lexicon) for _ in range(rng.choice((1, 2, 2, 3))))
    return typed(rng.choice(queries).split(), rng)


def nonsense(rng: random.Random) -> str:
    """Return one to three words that nobody wrote: random letters, neighbouring keys, made-up syllables."""
    return " ".join(
        rng.choice((_random_letters, _keys, _syllables))(rng) for _ in range(rng.choice((1, 2, 2, 3)))
    )


def _random_letters(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randint(3, 10)))


def _keys(rng: random.Random) -> str:
    """Return a run of one row of keys, there and back."""
    row = rng.choice(_KEY_ROWS)
    size = rng.randint(3, len(row) - 1)
    start = rng.randrange(len(row) - size + 1)
    run = row[start : start + size]
    return rng.choice((run, run[::-1], run[:3] * 2, "".join(rng.choices(run, k=size))))


def _syllables(rng: random.Random) -> str:
    return "".join(
        rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 4))
    ) + rng.choice(("", "", rng.choice(_CONSONANTS)))

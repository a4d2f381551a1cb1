"""Makes pairs that teach an operation, not a vocabulary: random words, and words with their relatives."""

import random
from collections.abc import Sequence

from models.quality.lexical import stem, stems_of, words_of
from models.training.data import Example, graded_target
from models.training.demo.dictionary import Dictionary
from models.training.demo.noise import misspelled, toggled_plural, typed
from models.training.demo.shelf import ACCESSORY
from models.training.demo.synthetic import JOINTS

_CODE_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def invented_code(rng: random.Random) -> str:
    """Return a model number that no shop sells: "x500-bk", "dv7", "4021"."""
    letters = "".join(rng.choices(_CODE_LETTERS, k=rng.randint(1, 3)))
    digits = str(rng.randrange(10 ** rng.randint(1, 4)))
    ending = rng.choice(("", "", "-" + "".join(rng.choices(_CODE_LETTERS, k=2)), rng.choice(_CODE_LETTERS)))
    return rng.choice((letters + digits + ending, digits, digits + letters))


def pseudo_pair(lexicon: Sequence[str], rng: random.Random) -> Example:
    """Return random words as query and title, graded by the share of the query's words that the title holds.

    A missing word is often replaced by one that looks like it: the same beginning, another number.
    """
    query = [_random_word(lexicon, rng) for _ in range(rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5)))]
    if rng.random() < 0.3:
        return _made_for(query, lexicon, rng)
    kept = rng.choice((0, rng.randint(0, len(query)), rng.randint(0, len(query)), len(query)))
    present = rng.sample(query, kept)
    title = [_random_word(lexicon, rng) for _ in range(rng.randint(2, 14))]
    missing = [word for word in query if word not in present]
    title += [_lookalike(word, lexicon, rng) for word in missing if rng.random() < 0.35]
    held = [toggled_plural(word) if rng.random() < 0.15 else word for word in present]
    if len(held) > 1 and rng.random() < 0.6:  # as a phrase: together and in order
        start = rng.randrange(len(title) + 1)
        title[start:start] = [word for word in (w for w in query) if word in held]
        held = [word for word in held if word not in query]
    for word in held:
        title.insert(rng.randrange(len(title) + 1), word)
    text = _dressed(title, rng)
    there = set(stems_of(text))
    share = sum(all(stem(part) in there for part in words_of(word)) for word in query) / len(query)
    asked = [misspelled(word, rng) if rng.random() < 0.06 else word for word in query]
    return Example(" ".join(asked), text, graded_target(4.0 * share))


def _made_for(query: Sequence[str], lexicon: Sequence[str], rng: random.Random) -> Example:
    """Return an accessory of the thing asked for, or an exact match (4) if the query names it too."""
    things = [_random_word(lexicon, rng) for _ in range(rng.randint(1, 5))]
    things = [word for word in things if word not in query] or [invented_code(rng)]
    rest = [_random_word(lexicon, rng) for _ in range(rng.choice((0, 0, 0, 1, 2, 4)))]
    rest = [word for word in rest if word not in query]
    named = [word for word in query if rng.random() < 0.85] or list(query)
    joint = rng.choice(JOINTS)
    title = f"{_dressed(things, rng)} {joint} {' '.join(named)}"
    title += f", {_dressed(rest, rng)}" if rest else ""
    asked, most = list(query), ACCESSORY
    if rng.random() < 0.3:
        asked, named, most = [*query, things[-1]], [*named, things[-1]], 4.0
    return Example(typed(asked, rng), title, graded_target(most * len(named) / len(asked)))


def dictionary_pair(dictionary: Dictionary, rng: random.Random) -> Example:
    """Pair a word with a word or definition: its own (4), a wider word's (2.5), a sister's (2.2), any (0)."""
    synset = rng.choice(dictionary.synsets)
    query = rng.choice(synset.members)
    kind = rng.random()
    if kind < 0.35:
        others = [member for member in synset.members if member != query]
        said = rng.choice([*others, synset.definition] if others else [synset.definition])
        return _dictionary_example(query, said, 4.0, rng)
    wider = [place for hypernym in synset.hypernyms for place in dictionary.by_member.get(hypernym, ())]
    sisters = [place for hypernym in synset.hypernyms for place in dictionary.by_hypernym.get(hypernym, ())]
    if kind < 0.5 and wider:
        return _dictionary_example(query, _said_of(rng.choice(wider), dictionary, rng), 2.5, rng)
    if kind < 0.65 and len(sisters) > 1:
        return _dictionary_example(query, _said_of(rng.choice(sisters), dictionary, rng), 2.2, rng)
    other = rng.randrange(len(dictionary.synsets))
    grade = 2.5 if other in wider else 2.2 if other in sisters else 0.0
    said = _said_of(other, dictionary, rng)
    return _dictionary_example(query, said, 4.0 if query in dictionary.synsets[other].members else grade, rng)


def _said_of(place: int, dictionary: Dictionary, rng: random.Random) -> str:
    synset = dictionary.synsets[place]
    return rng.choice((rng.choice(synset.members), synset.definition))


def _dictionary_example(query: str, said: str, grade: float, rng: random.Random) -> Example:
    """Return the example; a grade is never below what the words in common alone say."""
    asked = set(stems_of(query))
    shared = len(asked & set(stems_of(said))) / max(1, len(asked))
    return Example(typed(query.split(), rng), said, graded_target(max(grade, 3.0 * shared)))


def _random_word(lexicon: Sequence[str], rng: random.Random) -> str:
    return invented_code(rng) if rng.random() < 0.12 else rng.choice(lexicon)


def _lookalike(word: str, lexicon: Sequence[str], rng: random.Random) -> str:
    """Return a word with the same beginning: in the sorted lexicon such words are a few positions away."""
    if any(character.isdigit() for character in word):
        place = rng.randrange(len(word))
        return word[:place] + rng.choice("0123456789") + word[place + 1 :]
    low, high = 0, len(lexicon)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if lexicon[middle] < word else (low, middle)
    near = lexicon[(low + rng.choice((-3, -2, -1, 1, 2, 3))) % len(lexicon)]
    return near if stem(near) != stem(word) else rng.choice(lexicon)


def _dressed(words: list[str], rng: random.Random) -> str:
    """Write words as titles are written: capitals, a comma or a dash here and there."""
    written = [word.capitalize() if rng.random() < 0.5 else word for word in words]
    for place in range(len(written) - 1):
        if rng.random() < 0.12:
            written[place] += rng.choice((",", " -", " |", " &"))
    return " ".join(written)

"""Groups of titles for one query that differ in a word: a number, a size, a model, a series.

A group is ranked as a whole: the model learns which of two titles is nearer, whatever else they say.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from models.quality.lexical import stem, words_of
from models.training.data import Example, graded_target
from models.training.demo.noise import typed
from models.training.demo.pseudo import invented_code
from models.training.demo.shelf import MODIFIED, Shelf
from models.training.demo.titles import BUNDLES, STOP_WORDS, UNITS, Title

OTHER_NUMBER = 2.9  # the thing in another size, number or model
NUMBER_NOT_SAID = 3.3  # the thing; its title does not say the size
OTHER_SERIES = 2.9  # the thing of another series

TRIES = 50  # draws after which a group does without a title that shares nothing

_DIGITS = re.compile(r"\d+")
_SYLLABLES = (
    "ba co da fe gi ka lu mo na po qui ra so ta ve vi xa yo zen tri nor lex dyn ark el um or ix"
    " ster lan mar ton"
).split()


def number_group(shelf: Shelf, rng: random.Random) -> list[Example]:
    """Return a query with a number beside a title that has it, that has another one, and that has none."""
    title, place = _numbered(shelf, rng)
    written = title.text.split()
    number = written[place].strip(",.()").lower()
    unit = _unit_after(written, place)
    asked = _thing_words(title, rng)
    asked = [word for word in asked if word not in words_of(number)]
    asked.insert(rng.choice((0, len(asked))), f"{number} {unit}".strip())
    query = typed(" ".join(asked).split(), rng)
    changed = [_with_number(word, number, _other_number(number, rng)) for word in written]
    gone = [
        word
        for at, word in enumerate(written)
        if word.strip(",.()").lower() != number and not (unit and at and _is_unit_of(written, at, number))
    ]
    titles = [(written, 4.0), (changed, OTHER_NUMBER), (gone, NUMBER_NOT_SAID)]
    group = [Example(query, " ".join(words), graded_target(grade)) for words, grade in titles if words]
    return [*group, *_strangers(query, title, shelf, rng)]


def series_group(shelf: Shelf, rng: random.Random) -> list[Example]:
    """Return a query with a name that nobody knows beside titles with it, with a like one, and without it."""
    title = _named(shelf, rng)
    series, other = invented_name(rng), invented_name(rng)
    asked = _thing_words(title, rng)
    query = typed([series, *asked] if rng.random() < 0.7 else [*asked, series], rng)
    written = title.text.split()
    at = rng.randint(0, min(2, len(written)))

    def named(name: str) -> str:
        return " ".join([*written[:at], name.capitalize() if rng.random() < 0.7 else name, *written[at:]])

    group = [
        Example(query, named(series), graded_target(4.0)),
        Example(query, named(other), graded_target(OTHER_SERIES)),
        Example(query, title.text, graded_target(3.2)),
    ]
    for stranger in _strangers(" ".join(asked), title, shelf, rng):
        with_name = f"{series.capitalize()} {stranger.title}"
        group.append(Example(query, with_name, graded_target(MODIFIED)))
    return [*group, *_strangers(query, title, shelf, rng)]


def bundled(example: Example, rng: random.Random) -> Example:
    """Return the pair with a bundle word after its title, or before its first comma; the grade stays."""
    word = rng.choice(sorted(BUNDLES))
    if set(words_of(example.title)) & BUNDLES:
        return example
    head, comma, rest = example.title.partition(",")
    word = word.capitalize() if rng.random() < 0.8 else word
    return replace(
        example, title=f"{head} {word}{comma}{rest}" if rng.random() < 0.5 else f"{example.title} {word}"
    )


def invented_name(rng: random.Random) -> str:
    """Return a series name that no dictionary knows: "veltor", "zenark 300", "qx20"."""
    if rng.random() < 0.3:
        return invented_code(rng)
    name = "".join(rng.choices(_SYLLABLES, k=rng.choice((2, 2, 3))))
    return f"{name} {rng.randrange(1, 60) * 10}" if rng.random() < 0.15 else name


def _numbered(shelf: Shelf, rng: random.Random) -> tuple[Title, int]:
    """Draw a title with a head and a number, and one of its number's places."""
    while True:
        title = _named(shelf, rng)
        places = [at for at, word in enumerate(title.text.split()) if _DIGITS.search(word)]
        if places:
            return title, rng.choice(places)


def _named(shelf: Shelf, rng: random.Random) -> Title:
    """Draw a title that says what its thing is."""
    title = rng.choice(shelf.titles)
    while not title.heads:
        title = rng.choice(shelf.titles)
    return title


def _thing_words(title: Title, rng: random.Random) -> list[str]:
    """Return the title's first head and up to two words before it."""
    end = next(at for at, word in enumerate(title.words) if stem(word) == title.heads[0]) + 1
    start = max(0, end - rng.choice((1, 1, 2, 3)))
    words = [word for word in title.words[start:end] if word not in STOP_WORDS]
    return words or [title.words[end - 1]]


def _unit_after(written: Sequence[str], place: int) -> str:
    after = written[place + 1].strip(",.()").lower() if place + 1 < len(written) else ""
    return after if after in UNITS and not written[place].endswith((",", ")")) else ""


def _is_unit_of(written: Sequence[str], at: int, number: str) -> bool:
    return written[at - 1].strip(",.()").lower() == number and written[at].strip(",.()").lower() in UNITS


def _with_number(word: str, number: str, other: str) -> str:
    """Return the word with the number replaced where it stands alone: in "4/6", but not in "14"."""
    alone = rf"(?<![^\W_]){re.escape(number)}(?![^\W_])"
    return re.sub(alone, other, word, flags=re.IGNORECASE)


def _other_number(number: str, rng: random.Random) -> str:
    """Return the number or code with one of its runs of digits changed."""
    runs = list(_DIGITS.finditer(number))
    run = rng.choice(runs)
    value = int(run[0])
    near = {value + 1, value + 2, value * 2, value + 5, value + 10, max(1, value - 1), max(1, value // 2)} - {
        value
    }
    return number[: run.start()] + str(rng.choice(sorted(near))) + number[run.end() :]


def _strangers(query: str, title: Title, shelf: Shelf, rng: random.Random) -> list[Example]:
    """Pair the query with a title that shares nothing with it (0); return none if none is found soon."""
    asked = {stem(word) for word in words_of(query)} | set(title.heads)
    for _ in range(TRIES):
        other = rng.choice(shelf.titles)
        if not asked & (other.main | other.aside):
            return [Example(query, other.text, graded_target(0.0))]
    return []

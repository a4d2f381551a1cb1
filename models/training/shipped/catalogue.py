"""Makes graded pairs in English, Korean and Chinese from data/catalogue.jsonl.gz: things and questions.

A group is one query with titles of several grades, which a model learns to rank. Rules grade the pairs, not
people. data/README.md describes the file.
"""

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.training.data import Example, graded_target
from models.training.shipped.typed import typed

FILE = Path(__file__).parents[3] / "data" / "catalogue.jsonl.gz"

EXACT, NEAR, INSTEAD, GOES_WITH, SAME_WORDS, OTHER = 4.0, 3.3, 2.6, 2.0, 1.0, 0.0
"""Grades: another narrower kind of the thing is NEAR; something that shares only words is SAME_WORDS."""

GradedTitles = list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing that people search for.

    names: synonyms, the commonest first. english: its English names, if the language is another one. kinds:
    narrower sorts. instead: other things that serve the need. goes_with: accessories, parts, refills. traits:
    details that people add. titles: as a shop would write them.
    """

    language: str
    names: Sequence[str]
    instead: Sequence[str]
    goes_with: Sequence[str]
    traits: Sequence[str]
    titles: Sequence[str]
    english: Sequence[str] = ()
    kinds: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the title that answers it, one that shares its words, and an unrelated one."""

    language: str
    question: str
    exact: str
    same_words: str
    unrelated: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Things by language, and questions."""

    things: Mapping[str, Sequence[Thing]]
    questions: Sequence[Question]


def read_catalogue(file: Path = FILE) -> Catalogue:
    """Read the file's things and questions."""
    things: defaultdict[str, list[Thing]] = defaultdict(list)
    questions = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            row: dict[str, Any] = json.loads(line)
            if "question" in row:
                questions.append(Question(**row))
            else:
                thing = Thing(goes_with=row.pop("with"), **row)
                things[thing.language].append(thing)
    return Catalogue(dict(things), questions)


def catalogue_texts(catalogue: Catalogue) -> set[str]:
    """Return every name and title of the catalogue."""
    texts = {
        text
        for things in catalogue.things.values()
        for thing in things
        for text in (*thing.names, *thing.kinds, *thing.instead, *thing.goes_with, *thing.titles)
    }
    for asked in catalogue.questions:
        texts |= {asked.question, asked.exact, asked.same_words, asked.unrelated}
    return texts


def question_group(catalogue: Catalogue, rng: random.Random) -> list[Example]:
    """Return a question with its answer, a title that shares its words, and two unrelated titles.

    Half of the time only the words that the answer has are asked, for the same grades.
    """
    asked = rng.choice(catalogue.questions)
    titles = [(asked.exact, EXACT), (asked.same_words, SAME_WORDS), (asked.unrelated, OTHER)]
    shared = shared_words(asked.question, asked.exact)
    query = " ".join(shared) if len(shared) > 1 and rng.random() < 0.5 else asked.question
    return _examples(query, [*titles, (rng.choice(catalogue.questions).unrelated, OTHER)])


def shared_words(question: str, title: str) -> list[str]:
    """Return the longest parts of the question's words, of two characters or more, that the title has."""
    found, at = [], 0
    while at < len(question):
        end = at + 1
        if not question[at].isspace():
            while end < len(question) and not question[end].isspace() and question[at : end + 1] in title:
                end += 1
        if end - at > 1:
            found.append(question[at:end])
        at = end
    return found


def thing_group(catalogue: Catalogue, language: str, rng: random.Random) -> list[Example]:
    """Ask for a thing by a name, a narrower kind, with a trait, or in English.

    The titles are the thing, what can stand in for it, what goes with it, and another thing.
    """
    thing, other = rng.sample(catalogue.things[language], 2)
    name, trait = rng.choice(thing.names), rng.choice(thing.traits)
    kind = rng.choice(thing.kinds or thing.names)
    rest: GradedTitles = [
        (_with_number(rng.choice(thing.instead), rng), INSTEAD),
        (_with_number(rng.choice(thing.goes_with), rng), GOES_WITH),
        (rng.choice(other.titles), OTHER),
    ]
    way = rng.random()
    if way < 0.2:
        others = [sort for sort in thing.kinds if sort != kind] or [name]
        query = kind
        titles = [(f"{kind} {trait}", EXACT), (f"{rng.choice(others)} {trait}", NEAR), *rest]
    elif way < 0.4:
        others = [one for one in thing.traits if one != trait] or [""]
        query = f"{trait} {name}" if rng.random() < 0.5 else f"{name} {trait}"
        titles = [(f"{kind} {trait}", EXACT), (f"{name} {rng.choice(others)}".strip(), NEAR), *rest]
    else:
        query = rng.choice(thing.english) if thing.english and way < 0.55 else name
        titles = [(rng.choice(thing.titles), EXACT), (f"{kind} {trait}", EXACT), *rest]
    if language == "en":
        query = typed(query.split(), rng)
        titles = [(_capitalised(title, rng), grade) for title, grade in titles]
    return _examples(query, titles)


def unrelated_group(catalogue: Catalogue, language: str, rng: random.Random) -> list[Example]:
    """Ask for a thing by a name; the titles are the thing, what goes with it, and three other things."""
    thing, *others = rng.sample(catalogue.things[language], 4)
    titles = [(rng.choice(thing.titles), EXACT), (rng.choice(thing.goes_with), GOES_WITH)]
    for other in others:
        texts = rng.choice((other.titles, other.titles, other.goes_with, other.instead, other.names))
        title = rng.choice(texts)
        if rng.random() < 0.3:
            title = f"{title} {rng.choice(other.traits)}"
        titles.append((_with_number(title, rng), OTHER))
    return _examples(rng.choice(thing.names), titles)


def _examples(query: str, titles: GradedTitles) -> list[Example]:
    return [Example(query, title, graded_target(grade)) for title, grade in titles]


def _with_number(name: str, rng: random.Random) -> str:
    """Return a name as a title may have it, now and then with a number."""
    return name if rng.random() < 0.6 else f"{name} {rng.choice((2, 3, 5, 10, 20, 30, 100, 500))}"


def _capitalised(title: str, rng: random.Random) -> str:
    """Return a title as shops write it, mostly with capitals."""
    if rng.random() < 0.15:
        return title
    return " ".join(word[:1].upper() + word[1:] for word in title.split())

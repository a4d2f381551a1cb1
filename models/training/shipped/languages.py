"""Pairs in Korean and Chinese, made from data/catalogue/languages: things, what is near them, questions.

A group is one query with titles of several grades, which a model learns to rank. Rules grade the pairs, not
people.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from models.training.data import Example, graded_target

FOLDER = Path(__file__).parents[3] / "data" / "catalogue" / "languages"

EXACT, NEAR, INSTEAD, GOES_WITH, SAME_WORDS, OTHER = 4.0, 3.3, 2.6, 2.0, 1.0, 0.0
"""Grades: another narrower kind of the thing is NEAR; something that shares only words is SAME_WORDS."""


class LocalThing(BaseModel):
    """A thing that people search for in one language; its parts are as in models.training.demo.catalogue.

    en: its English names, for queries in English.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    en: tuple[str, ...] = Field(min_length=1)
    names: tuple[str, ...] = Field(min_length=1)
    kinds: tuple[str, ...] = Field(min_length=1)
    instead: tuple[str, ...] = Field(min_length=1)
    goes_with: tuple[str, ...] = Field(min_length=1, alias="with")
    traits: tuple[str, ...] = Field(min_length=1)
    titles: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the title that answers it, one that shares its words, and an unrelated one."""

    text: str
    exact: str
    same_words: str
    unrelated: str


@dataclass(frozen=True, slots=True)
class Languages:
    """Things by language, and questions."""

    things: Mapping[str, Sequence[LocalThing]]
    questions: Sequence[Question]


def read_languages(folder: Path = FOLDER) -> Languages:
    """Read the folder's things and questions. Raises pydantic.ValidationError for another shape."""
    lines = (folder / "questions.tsv").read_text(encoding="utf-8").splitlines()
    return Languages(
        {
            path.stem: [
                LocalThing.model_validate(row) for row in yaml.load(path.read_bytes(), yaml.CSafeLoader)
            ]
            for path in sorted(folder.glob("*.yaml"))
        },
        [Question(*line.split("\t")[1:]) for line in lines],
    )


def language_group(languages: Languages, rng: random.Random) -> list[Example]:
    """Return one query and titles of several grades; one group in six is a question."""
    graded = _question(languages, rng) if rng.random() < 1 / 6 else _thing(languages, rng)
    query, titles = graded
    return [Example(query, title, graded_target(grade)) for title, grade in titles]


def _question(languages: Languages, rng: random.Random) -> tuple[str, list[tuple[str, float]]]:
    question = rng.choice(languages.questions)
    titles = [(question.exact, EXACT), (question.same_words, SAME_WORDS), (question.unrelated, OTHER)]
    return question.text, [*titles, (rng.choice(languages.questions).unrelated, OTHER)]


def _thing(languages: Languages, rng: random.Random) -> tuple[str, list[tuple[str, float]]]:
    """Ask for a thing by name, by a narrower kind, with a trait, or in English."""
    things = languages.things[rng.choice(sorted(languages.things))]
    thing, other = rng.sample(things, 2)
    name, kind, trait = rng.choice(thing.names), rng.choice(thing.kinds), rng.choice(thing.traits)
    titles = [
        (_written(rng.choice(thing.instead), rng), INSTEAD),
        (_written(rng.choice(thing.goes_with), rng), GOES_WITH),
        (rng.choice(other.titles), OTHER),
    ]
    way = rng.random()
    if way < 0.2:
        rest = [sort for sort in thing.kinds if sort != kind] or [name]
        return kind, [(f"{kind} {trait}", EXACT), (f"{rng.choice(rest)} {trait}", NEAR), *titles]
    if way < 0.4:
        others = [one for one in thing.traits if one != trait] or [""]
        asked = f"{trait} {name}" if rng.random() < 0.5 else f"{name} {trait}"
        return asked, [(f"{kind} {trait}", EXACT), (f"{name} {rng.choice(others)}".strip(), NEAR), *titles]
    asked = rng.choice(thing.en) if way < 0.55 else name
    return asked, [(rng.choice(thing.titles), EXACT), (f"{kind} {trait}", EXACT), *titles]


def _written(name: str, rng: random.Random) -> str:
    """Return a name as a title may have it, now and then with a number."""
    return name if rng.random() < 0.6 else f"{name} {rng.choice((2, 3, 5, 10, 20, 30, 100, 500))}"

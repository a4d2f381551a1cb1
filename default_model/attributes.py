"""Draws lists of titles that differ in one attribute, number, brand, model or place, in three languages.

What a shopper means is often in one word: wired or wireless, without sugar, 500 ml, for an iPhone 13.
data/attributes.yaml holds things with the attributes that tell one from another, and brands, models, parts
and neighbouring things. A list is a query with the title that has all that is asked for, and titles that lack
it, contradict it, or are a part of the thing, something near it, or something else.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from default_model.groups import Example, Group, ranked_example, taught_example

ATTRIBUTES = Path(__file__).resolve().parents[1] / "data" / "attributes.yaml"

LANGUAGES = ("en", "ko", "zh")

ALL = 4.0
UNSAID = 3.2
OTHER_VALUE = 2.5
OTHER_BRAND = 2.5
OTHER_MODEL = 2.4
OTHER_VALUES = 1.9
CONTRARY = 2.0
PART = 1.4
NEAR_THING = 1.0
SHARES_VALUE = 0.4
NOTHING = 0.0
"""Grades of titles, from one that has all that is asked for to one that has nothing of it."""

OTHERS = 4
"""Titles in a list beside the best one."""

NEGATIONS = (
    *(
        "water",
        "sugar",
        "lactose",
        "fat",
        "gluten",
        "nuts",
        "salt",
        "scent",
        "alcohol",
        "paraben",
        "fluoride",
    ),
    *("arms", "lid", "hood", "lace", "battery_in", "sound", "spice", "folding", "connection"),
)
"""Axes on which a value is mostly said by what is not there."""

Forms = tuple[str, ...]
"""The ways to say one thing in one language. A form that begins with "-" follows the noun."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A kind of thing or venue in one language.

    values: the forms of each value, by axis. models: of each brand.
    """

    nouns: Forms
    values: Mapping[str, Sequence[Forms]]
    brands: Sequence[Forms]
    models: Sequence[Sequence[str]]
    parts: Sequence[Forms]
    near: Sequence[Forms]
    is_venue: bool


@dataclass(frozen=True, slots=True)
class Described:
    """What a query asks for or a title says. Each text is one of several forms, chosen when it is written."""

    nouns: Forms = ()
    brand: Forms = ()
    model: str = ""
    values: Mapping[str, Forms] = field(default_factory=dict)


Graded = list[tuple[Described, float]]
"""Titles with their grades, the best one first."""


def read_things(language: str) -> list[Thing]:
    """Return the things and venues in one language."""
    raw = yaml.safe_load(ATTRIBUTES.read_text(encoding="utf-8"))
    at = LANGUAGES.index(language)
    axes = {name: axis_values(axis, at) for name, axis in raw["axes"].items()}
    things = []
    for row in [*raw["things"], *raw["venues"]]:
        is_venue = "axes" not in row
        names = [f"place_{language}"] if is_venue else row["axes"]
        things.append(
            Thing(
                nouns=_forms(row["name"], at),
                values={name: axes[name] for name in names},
                brands=[_forms(text, at) for text in row["brands"]],
                models=[list(map(str, models)) for models in row.get("models", ())],
                parts=[_forms(text, at) for text in row["parts"]],
                near=[_forms(text, at) for text in row["near"]],
                is_venue=is_venue,
            )
        )
    return things


def _forms(text: str, at: int) -> Forms:
    return tuple(text.split("|")[at].split("/"))


def axis_values(axis: Any, at: int) -> list[Forms]:
    """Return the forms of each value of an axis in one language. at: the language's index."""
    if isinstance(axis, list):
        return [_forms(text, at) for text in axis]
    units = axis["unit"].split("|")[at].split("/")
    return [tuple(f"{number}{unit}" for unit in units) for number in axis["numbers"]]


class AttributeLists:
    """Draws lists in one language.

    without: queries that are not drawn. axes: the attributes that are asked for, with nothing else; default:
    all, and brands, models and parts. taught: the grades are taught, and none that contradicts the query is
    above CONTRARY; default: the order alone.
    """

    def __init__(
        self,
        language: str,
        *,
        without: Sequence[str] = (),
        axes: Sequence[str] = (),
        taught: bool = False,
    ) -> None:
        self._language = language
        self._taught = taught
        self._without = {query.lower() for query in without}
        self._things = read_things(language)
        self._axes = list(axes) or sorted({axis for thing in self._things for axis in thing.values})
        self._attributes_alone = bool(axes)

    def group(self, rng: random.Random) -> Group:
        """Draw a query with the title that answers it and OTHERS others."""
        query = ""
        while not query or query.lower() in self._without:
            axis = rng.choice(self._axes)  # first, so that rare ones such as "without" are asked for often
            thing = rng.choice([thing for thing in self._things if axis in thing.values])
            way = rng.random()
            if thing.is_venue or self._attributes_alone or way < 0.6:
                asked, titles = self._by_attributes(thing, axis, rng)
            elif way < 0.8:
                asked, titles = self._by_brand_and_model(thing, rng)
            else:
                asked, titles = self._part(thing, rng)
            query = self._query(asked, rng)
        best, *others = titles
        chosen = [best, *rng.sample(others, min(OTHERS, len(others)))]
        return [self._example(query, self._title(said, rng), grade) for said, grade in chosen]

    def _example(self, query: str, title: str, grade: float) -> Example:
        if not self._taught:
            return ranked_example(query, title, grade)
        return taught_example(query, title, grade if grade >= UNSAID else min(grade, CONTRARY))

    def _by_attributes(self, thing: Thing, axis: str, rng: random.Random) -> tuple[Described, Graded]:
        """Ask for a value on this axis, sometimes for one on another axis or for a brand too."""
        axes = [axis, *(other for other in thing.values if other != axis and rng.random() < 0.15)]
        wanted = {name: rng.choice(thing.values[name]) for name in axes}
        brand = rng.randrange(len(thing.brands))
        names_brand = not thing.is_venue and rng.random() < 0.25
        asked = Described(thing.nouns, thing.brands[brand] if names_brand else (), values=wanted)
        full = self._full(thing, brand, wanted, rng)
        if not names_brand and rng.random() < 0.3:
            full = replace(full, brand=(), model="")
        changed = self._with_other_value(full, thing, axis, rng)
        titles = [
            (full, ALL),
            (changed, OTHER_VALUE),
            (self._with_other_value(full, thing, axis, rng), OTHER_VALUE),
            (self._stranger(thing, wanted, rng), SHARES_VALUE),
            *self._apart(full, thing, rng),
        ]
        if not thing.is_venue:
            unsaid = {name: value for name, value in full.values.items() if name != axis}
            titles.append((replace(full, values=unsaid), UNSAID))
        if len(axes) > 1:
            titles.append((self._with_other_value(changed, thing, axes[1], rng), OTHER_VALUES))
        if names_brand:
            titles.append((self._with_other_brand(full, thing, brand, rng), OTHER_BRAND))
        return asked, titles

    def _by_brand_and_model(self, thing: Thing, rng: random.Random) -> tuple[Described, Graded]:
        """Ask for a thing, a brand's thing, or a brand's model; a good title may lack the noun."""
        brand = rng.randrange(len(thing.brands))
        model = rng.choice(thing.models[brand])
        others = [other for other in thing.models[brand] if other != model]
        full = replace(self._full(thing, brand, {}, rng), model=model)
        alone = Described((), thing.brands[brand], model)
        names_model = rng.random() < 0.4
        names_brand = names_model or rng.random() < 0.6
        asked = Described(
            () if names_model and rng.random() < 0.6 else thing.nouns,
            thing.brands[brand] if names_brand else (),
            model if names_model else "",
        )
        titles = [(alone if rng.random() < 0.5 else full, ALL), *self._apart(full, thing, rng)]
        titles.append((Described(rng.choice(thing.parts)), PART))
        if names_brand:
            titles.append((self._with_other_brand(full, thing, brand, rng), OTHER_BRAND))
        if names_model and others:
            titles.append((replace(full, model=rng.choice(others)), OTHER_MODEL))
            titles.append((replace(alone, model=rng.choice(others)), OTHER_MODEL))
        return asked, titles

    def _part(self, thing: Thing, rng: random.Random) -> tuple[Described, Graded]:
        """Ask for a part or an accessory; the thing itself is not what is asked for."""
        part = rng.choice(thing.parts)
        brand = rng.randrange(len(thing.brands))
        names_brand = rng.random() < 0.4
        full = Described(part, thing.brands[brand] if names_brand or rng.random() < 0.5 else ())
        asked = Described(part, thing.brands[brand] if names_brand else ())
        titles = [
            (full, ALL),
            (Described(thing.nouns, thing.brands[brand], rng.choice(thing.models[brand])), PART),
            (Described(thing.nouns, thing.brands[brand]), PART),
            (Described(rng.choice(thing.near), full.brand), NEAR_THING),
            (self._stranger(thing, {}, rng), NOTHING),
        ]
        titles += [(Described(other, full.brand), PART) for other in thing.parts if other != part]
        if names_brand:
            titles.append((self._with_other_brand(full, thing, brand, rng), OTHER_BRAND))
        return asked, titles

    def _full(self, thing: Thing, brand: int, wanted: Mapping[str, Forms], rng: random.Random) -> Described:
        """Return a title's content: the wanted values and some others, the brand, often a model."""
        model = rng.choice(thing.models[brand]) if thing.models and rng.random() < 0.5 else ""
        drawn = {axis: rng.choice(values) for axis, values in thing.values.items() if rng.random() < 0.3}
        return Described(thing.nouns, thing.brands[brand], model, {**drawn, **wanted})

    def _apart(self, full: Described, thing: Thing, rng: random.Random) -> Graded:
        """Return what shares all with a title but the thing itself, and something else altogether."""
        return [
            (replace(full, nouns=rng.choice(thing.parts)), PART),
            (replace(full, nouns=rng.choice(thing.near)), NEAR_THING),
            (self._stranger(thing, {}, rng), NOTHING),
        ]

    def _with_other_value(self, said: Described, thing: Thing, axis: str, rng: random.Random) -> Described:
        others = [value for value in thing.values[axis] if value != said.values[axis]]
        return replace(said, values={**said.values, axis: rng.choice(others)})

    def _with_other_brand(self, said: Described, thing: Thing, brand: int, rng: random.Random) -> Described:
        other = rng.choice([at for at in range(len(thing.brands)) if at != brand])
        model = rng.choice(thing.models[other]) if said.model else ""
        return replace(said, brand=thing.brands[other], model=model)

    def _stranger(self, thing: Thing, wanted: Mapping[str, Forms], rng: random.Random) -> Described:
        """Return another thing, with the wanted values if they are given."""
        other = rng.choice([one for one in self._things if one is not thing and one.nouns not in thing.near])
        values = wanted or {
            axis: rng.choice(values) for axis, values in other.values.items() if rng.random() < 0.3
        }
        return Described(other.nouns, rng.choice(other.brands) if rng.random() < 0.5 else (), values=values)

    def _query(self, asked: Described, rng: random.Random) -> str:
        """Write a query: lower case in English; in Chinese with or without spaces."""
        words = self._words(asked, rng)
        separator = "" if self._language == "zh" and rng.random() < 0.5 else " "
        text = separator.join(words)
        return text.lower() if self._language == "en" and rng.random() < 0.85 else text

    def _title(self, said: Described, rng: random.Random) -> str:
        """Write a title as shops do: words in some order, capitals in English, details after a comma."""
        words = self._words(said, rng, shuffled=True)
        if self._language != "en":
            separator = "" if self._language == "zh" and rng.random() < 0.5 else " "
            return separator.join(words)
        text = " ".join(words)
        return (
            text if rng.random() < 0.2 else " ".join(word[:1].upper() + word[1:] for word in text.split(" "))
        )

    def _words(self, said: Described, rng: random.Random, *, shuffled: bool = False) -> list[str]:
        """Return the parts in an order that the language has: brand, model, values and noun."""
        before = list[str]()
        after = list[str]()
        values = list(said.values.values())
        rng.shuffle(values)
        for value in values:
            form = rng.choice(value)
            follows = form.startswith(("-with", "-for", "-no", "-batt"))
            moved = rng.random() < (0.4 if shuffled else 0.2)
            (after if follows or moved else before).append(form.removeprefix("-").strip())
        noun = [rng.choice(said.nouns)] if said.nouns else []
        brand = [rng.choice(said.brand)] if said.brand else []
        model = [said.model] if said.model else []
        if shuffled and noun and rng.random() < 0.25:
            return [*brand, *before, *noun, *model, *after]
        return [*brand, *model, *before, *noun, *after]

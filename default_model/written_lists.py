"""Draws groups from lists that were written for headroom: shop titles by rank, and brands with their models.

data/shop_lists.tsv holds queries with titles from exact to unrelated. data/brands.yaml holds kinds of things
with brands and models: a title such as "Logitech M310" names no noun, and only knowledge says that it is a
mouse. The grades are rules: they teach the order within a list, and the scale where a recipe asks for it.
"""

import csv
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from default_model.attributes import LANGUAGES, NOTHING, OTHER_BRAND, OTHER_MODEL, PART, Forms
from default_model.groups import Group, ranked_example, taught_example

SHOP_LISTS = Path(__file__).resolve().parents[1] / "data" / "shop_lists.tsv"
BRANDS = Path(__file__).resolve().parents[1] / "data" / "brands.yaml"

EXACT = 4.0
GRADES = {"variant": 2.4, "instead": 1.8, "with": 1.3, "words": 0.7}
"""Grades of a list's other titles, by column."""

UNLIKE = 1.8
"""Grade of something that shares a word with what was asked for, and contradicts it."""

SAME_BRAND = 1.2
"""Grade of another thing of the brand that was asked for."""

OTHERS = 4
"""Titles in a group beside the best ones."""

SHORTEST_NAME = 5
LONGEST_WORD = 7
"""A model is a title without its brand if it has so many characters and a digit, or more than this."""


class ShopLists:
    """The shop lists of one language.

    asking: a pattern that each query has; default: all lists. without: queries and titles that are not drawn.
    taught: the grades are taught; default: the order alone.
    """

    def __init__(
        self,
        language: str,
        asking: re.Pattern[str] | None = None,
        *,
        without: Collection[str] = (),
        taught: bool = False,
    ) -> None:
        self._example = taught_example if taught else ranked_example
        self._without = {text.lower() for text in without}
        rows = [row for row in read_shop_lists() if row["language"] == language]
        rows = [row for row in rows if asking is None or asking.search(row["queries"])]
        self._rows = [row for row in rows if self._queries(row) and not self._is_left_out(row)]

    def group(self, rng: random.Random) -> Group:
        """Draw a query; return one or two exact titles, OTHERS worse ones, and one of another query."""
        row, stranger = rng.sample(self._rows, 2)
        query = rng.choice(self._queries(row))
        best = rng.sample([row["exact"], row["other_name"]], rng.choice((1, 2)))
        titles = [(row[column], grade) for column, grade in GRADES.items()]
        titles.append((stranger[rng.choice(("exact", "other_name"))], NOTHING))
        chosen = [(title, EXACT) for title in best] + rng.sample(titles, OTHERS)
        return [
            self._example(query, title, grade)
            for title, grade in chosen
            if title.lower() not in self._without
        ]

    def _queries(self, row: Mapping[str, str]) -> list[str]:
        """Return the queries of a row that may be drawn."""
        return [query for query in row["queries"].split("/") if query.lower() not in self._without]

    def _is_left_out(self, row: Mapping[str, str]) -> bool:
        """Return whether one of the row's best titles may not be drawn."""
        return any(row[column].lower() in self._without for column in ("exact", "other_name"))


def read_shop_lists() -> list[dict[str, str]]:
    """Return the rows of data/shop_lists.tsv, a dictionary by column each."""
    with SHOP_LISTS.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing in one language.

    family: the kinds that may stand for one another. models: the names of each brand's models, by the brand.
    """

    nouns: Forms
    family: str
    parts: Sequence[str]
    unlike: Sequence[str]
    models: Mapping[str, Sequence[str]]


def read_kinds(language: str) -> list[Kind]:
    """Return the kinds of data/brands.yaml in one language."""
    at = LANGUAGES.index(language)

    def form(text: object) -> str:
        forms = str(text).split("|")
        return forms[at] if len(forms) > 1 else forms[0]

    return [
        Kind(
            nouns=tuple(form(row["name"]).split("/")),
            family=row.get("family", row["name"]),
            parts=[form(part) for part in row["parts"]],
            unlike=[form(text) for text in row.get("unlike", ())],
            models={
                form(brand): [form(model) for model in models] for brand, models in row["brands"].items()
            },
        )
        for row in yaml.safe_load(BRANDS.read_text(encoding="utf-8"))
    ]


def says_enough(model: str) -> bool:
    """Return whether a model can be a title alone: "153" and "Jamsil" say nothing."""
    return len(model) > LONGEST_WORD or (len(model) >= SHORTEST_NAME and any(map(str.isdigit, model)))


class BrandLists:
    """Lists of titles that name brands and models, in one language.

    without: titles that are not drawn. taught: the grades are taught; default: the order alone.
    """

    def __init__(self, language: str, *, without: Collection[str] = (), taught: bool = False) -> None:
        self._example = taught_example if taught else ranked_example
        self._kinds = read_kinds(language)
        self._without = {title.lower() for title in without}

    def group(self, rng: random.Random) -> Group:
        """Ask for a kind of thing, a brand's thing, a model or its part; the best title may lack the noun."""
        kind = rng.choice(self._kinds)
        other = rng.choice([one for one in self._kinds if one.family != kind.family])
        brand, model = self._model(kind, rng)
        noun = rng.choice(kind.nouns)
        way = rng.random()
        if way < 0.4:
            return self._list(
                noun, (f"{brand} {model}",), self._worse(kind, other, brand, rng, asked=False), rng
            )
        if way < 0.7:
            best = [f"{brand} {model}"]
            if says_enough(model):
                best.append(model)
            query = f"{brand} {noun}"
            return self._list(query, best, self._worse(kind, other, brand, rng, asked=True), rng)
        if way < 0.85:
            return self._part(kind, brand, model, rng)
        worse = self._worse(kind, other, brand, rng, asked=True)
        worse += [(f"{brand} {name}", OTHER_MODEL) for name in kind.models[brand] if name != model]
        worse.append((f"{model} {rng.choice(kind.parts)}", PART))
        return self._list(
            f"{brand} {model}", (f"{brand} {model} {noun}", f"{noun} {brand} {model}"), worse, rng
        )

    def _part(self, kind: Kind, brand: str, model: str, rng: random.Random) -> Group:
        """Ask for a part of a model; the model itself is not what was asked for."""
        part = rng.choice(kind.parts)
        noun = rng.choice(kind.nouns)
        stranger = rng.choice([one for one in self._kinds if one.family != kind.family])
        worse = [
            (f"{brand} {model}", PART),
            (f"{brand} {model} {noun}", PART),
            (f"{brand} {noun}", PART),
            (rng.choice(stranger.parts), NOTHING),
        ]
        worse += [(f"{name} {part}", OTHER_MODEL) for name in kind.models[brand] if name != model]
        worse += [(f"{model} {other}", UNLIKE) for other in kind.parts if other != part]
        best = (f"{brand} {model} {part}", f"{part} {model}", f"{part} ({brand} {model})")
        return self._list(f"{model} {part}", best, worse, rng)

    def _model(self, kind: Kind, rng: random.Random) -> tuple[str, str]:
        brand = rng.choice(list(kind.models))
        return brand, rng.choice(kind.models[brand])

    def _worse(
        self, kind: Kind, other: Kind, brand: str, rng: random.Random, *, asked: bool
    ) -> list[tuple[str, float]]:
        """Return worse titles with their grades. asked: the query names the brand."""
        others_brand, others_model = self._model(other, rng)
        part = rng.choice(kind.parts)
        titles = [
            (f"{others_brand} {others_model}", NOTHING),
            (f"{others_brand} {rng.choice(other.nouns)}", NOTHING),
            (part, PART),
            (f"{brand} {part}", PART),
            (f"{brand} {rng.choice(other.nouns)}", SAME_BRAND if asked else NOTHING),
        ]
        titles += [(text, UNLIKE) for text in kind.unlike]
        with_brand = [one for one in self._kinds if one.family != kind.family and brand in one.models]
        if with_brand:
            name = rng.choice(rng.choice(with_brand).models[brand])
            titles.append((f"{brand} {name}", SAME_BRAND if asked else NOTHING))
        rivals = [name for name in kind.models if name != brand]
        if asked and rivals:
            rival = rng.choice(rivals)
            titles.append((f"{rival} {rng.choice(kind.models[rival])}", OTHER_BRAND))
        return titles

    def _list(
        self, query: str, best: Sequence[str], worse: Sequence[tuple[str, float]], rng: random.Random
    ) -> Group:
        titles = [(rng.choice(best), EXACT), *rng.sample(worse, OTHERS)]
        return [
            self._example(query, title, grade)
            for title, grade in titles
            if title.lower() not in self._without
        ]

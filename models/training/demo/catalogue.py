"""The kinds of things that shops sell, read from data/catalogue and indexed by their names."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from models.quality.lexical import stem, stems_of
from models.training.demo.titles import Title

THINGS = Path(__file__).parents[3] / "data" / "catalogue"
LONGEST_NAME = 4  # most words of a name that is looked for in titles

Roots = tuple[str, ...]


class Thing(BaseModel):
    """A kind of thing and what is related to it. Names are lower case; `titles` are as shops write them.

    names: synonyms, the commonest first. kinds: narrower sorts. instead: other things that serve the need.
    goes_with (`with` in the files): accessories, parts, refills. traits: details people add. lines: branded
    models as people type them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[str, ...] = Field(min_length=1)
    kinds: tuple[str, ...] = ()
    instead: tuple[str, ...] = Field(min_length=1)
    goes_with: tuple[str, ...] = Field(min_length=1, alias="with")
    traits: tuple[str, ...] = Field(min_length=1)
    brands: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    titles: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Things, the department of each, and an index by name. A place is an index of `things`.

    by_name: the only thing with a name, by the name's stems; names go before narrower kinds. shelved: titles
    of real products, by the thing's place.
    """

    things: tuple[Thing, ...]
    departments: tuple[str, ...]
    by_department: Mapping[str, tuple[int, ...]]
    by_name: Mapping[Roots, int]
    shelved: Mapping[int, tuple[str, ...]]


def read_things(folder: Path = THINGS) -> dict[str, list[Thing]]:
    """Read the things by department, the name of their file. Raises pydantic.ValidationError."""
    return {
        path.stem: [Thing.model_validate(row) for row in yaml.load(path.read_bytes(), yaml.CSafeLoader)]
        for path in sorted(folder.glob("*.yaml"))
    }


def new_catalogue(departments: Mapping[str, Sequence[Thing]], titles: Iterable[Title]) -> Catalogue:
    """Index the things, and assign each title to the thing that it names, if any."""
    things = tuple(thing for shelf in departments.values() for thing in shelf)
    where = tuple(department for department, shelf in departments.items() for _ in shelf)
    by_department: defaultdict[str, list[int]] = defaultdict(list)
    for place, department in enumerate(where):
        by_department[department].append(place)
    by_name = _only(things, lambda thing: thing.kinds) | _only(things, lambda thing: thing.names)
    shelved: defaultdict[int, list[str]] = defaultdict(list)
    for title in titles:
        if (named := _named_in(title, by_name)) is not None:
            shelved[named].append(title.text)
    return Catalogue(
        things,
        where,
        {name: tuple(places) for name, places in by_department.items()},
        by_name,
        {place: tuple(texts) for place, texts in shelved.items()},
    )


def _only(things: Sequence[Thing], names_of: Callable[[Thing], Iterable[str]]) -> dict[Roots, int]:
    """Return the place of the thing for each name that only one thing has."""
    named: defaultdict[Roots, set[int]] = defaultdict(set)
    for place, thing in enumerate(things):
        for name in names_of(thing):
            named[stems_of(name)].add(place)
    return {name: min(places) for name, places in named.items() if len(places) == 1}


def _named_in(title: Title, by_name: Mapping[Roots, int]) -> int | None:
    """Return the thing with the longest name that ends with the title's first head; None without one."""
    stems = [stem(word) for word in title.words]
    for end, root in enumerate(stems, start=1):
        if title.heads and root == title.heads[0]:
            for start in range(max(0, end - LONGEST_NAME), end):
                if (place := by_name.get(tuple(stems[start:end]))) is not None:
                    return place
            return None
    return None

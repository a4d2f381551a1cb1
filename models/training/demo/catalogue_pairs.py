"""Graded query–title pairs made from the catalogue, which teach what titles of few words cannot.

They say what else a thing is called ("couch"), what can stand in for it ("futon") and what only goes with it
("slipcover"). Grades as in `models.training.demo.synthetic`:

4     the thing by any of its names, or a narrower kind, with every detail asked for
3–3.6 the thing, but a detail or the kind asked for is not said
2.75  what can stand in for it; another branded model
1.9   what goes with it, whether or not its name says so; 1.5 if what goes with it was asked for, and the
      title is the thing itself
0.7   another thing of the same department; 0 any other
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from models.quality.lexical import stems_of
from models.training.data import Example, graded_target
from models.training.demo.catalogue import Catalogue, Roots
from models.training.demo.catalogue_titles import composed, name_of, title_of, title_of_line, titled
from models.training.demo.noise import typed
from models.training.demo.shelf import ACCESSORY, MODIFIED
from models.training.demo.synthetic import JOINTS
from models.training.demo.titles import STOP_WORDS

PLAIN = 3.2  # the thing, if a narrower kind is asked for
SUBSTITUTE = 2.75
SAME_WORD = 2.2  # another kind of lamp if a lamp is asked for
MADE_WITH = 1.5  # the thing itself, if what goes with it is asked for
NEIGHBOUR = 0.7  # another thing of the same department
SHARED_WORDS = 1.3  # at most so much for words in common alone
MODIFIED_SHARE = 0.1
"""How many groups hold another thing that is called by the query's words, too.

With more, the model doubts titles that go on after the thing's name ("Circular Saw with Laser Guide").
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request: a name of the thing at `place`, and details. kind, line: whether the name is one."""

    place: int
    name: str
    details: tuple[str, ...]
    kind: bool = False
    line: bool = False


def thing_pair(catalogue: Catalogue, rng: random.Random) -> Example:
    """Return a query for a thing and a title of it, of a substitute, an accessory or something else."""
    wanted = _wanted(catalogue, rng)
    kind = rng.random()
    if 0.7 <= kind < 0.75:
        return _asked_for_accessory(wanted, catalogue, rng)
    title, grade = _title_for(wanted, kind, catalogue, rng)
    return Example(typed(_query(wanted, rng), rng), title, graded_target(grade))


def thing_group(catalogue: Catalogue, rng: random.Random) -> list[Example]:
    """Return one query with three or four titles, to be ranked.

    They are the thing, two others of all kinds and, in some groups, what has the query's words before another
    thing's name.
    """
    wanted = _wanted(catalogue, rng)
    query = typed(_query(wanted, rng), rng)
    titles = [_itself(wanted, catalogue, rng), _title_for(wanted, rng.uniform(0.27, 0.7), catalogue, rng)]
    titles.append(_title_for(wanted, rng.choice((0.4, 0.6, 0.78, 0.9)), catalogue, rng))
    if rng.random() < MODIFIED_SHARE and (modified := _modified(wanted, catalogue, rng)):
        titles.append(modified)
    return [Example(query, title, graded_target(grade)) for title, grade in titles]


def _title_for(wanted: Wanted, kind: float, catalogue: Catalogue, rng: random.Random) -> tuple[str, float]:
    """Return a title and its grade; `kind`, between 0 and 1, says how near it is."""
    if kind < 0.27:
        return _itself(wanted, catalogue, rng)
    if kind < 0.48:
        return _substitute(wanted, catalogue, rng)
    if kind < 0.75:
        return _accessory(wanted, catalogue, rng)
    pool = catalogue.by_department[catalogue.departments[wanted.place]]
    other = rng.choice(pool) if kind < 0.82 else rng.randrange(len(catalogue.things))
    title = title_of(other, catalogue, rng)
    return title, _unrelated_grade(wanted, other, title, catalogue)


def _modified(wanted: Wanted, catalogue: Catalogue, rng: random.Random) -> tuple[str, float] | None:
    """Return another department's thing with all the query's words before its name: "White Jeans Perfume".

    None if the thing drawn has to do with the one asked for.
    """
    other = rng.randrange(len(catalogue.things))
    thing = catalogue.things[other]
    words = " ".join([*wanted.details, wanted.name])
    if (
        wanted.line  # what follows a model's name mostly says what the model is
        or catalogue.departments[other] == catalogue.departments[wanted.place]
        or set(stems_of(thing.names[0])) & set(stems_of(words))
        or _unrelated_grade(wanted, other, thing.names[0], catalogue) > 0
    ):
        return None
    return composed(f"{words} {name_of(thing, rng)}", thing, rng), MODIFIED


def _wanted(catalogue: Catalogue, rng: random.Random) -> Wanted:
    """Draw a thing, and a name, a narrower kind or a branded model of it, with up to two details."""
    place = rng.randrange(len(catalogue.things))
    thing = catalogue.things[place]
    count = rng.choice((0, 0, 0, 1, 1, 2))
    details = tuple(rng.sample(thing.traits, min(count, len(thing.traits))))
    kind = rng.random()
    if thing.lines and kind < 0.2:
        return Wanted(place, rng.choice(thing.lines), details[:1], line=True)
    if thing.brands and kind > 0.9:
        details = (rng.choice(thing.brands), *details[:1])
    if thing.kinds and kind < 0.4:
        return Wanted(place, rng.choice(thing.kinds), details[:1], kind=True)
    return Wanted(place, name_of(thing, rng), details)


def _query(wanted: Wanted, rng: random.Random) -> list[str]:
    """Return the words in the order they will be typed, details mostly first."""
    before = [detail for detail in wanted.details if rng.random() < 0.75]
    after = [detail for detail in wanted.details if detail not in before]
    return " ".join([*before, wanted.name, *after]).lower().split()


def _says(text: str, phrase: str) -> bool:
    """Return whether all words of the phrase are in the text."""
    return set(stems_of(phrase)) <= set(stems_of(text))


def _coverage(wanted: Wanted, title: str) -> float:
    """Return the share of the details asked for whose words are all in the title; 1 if there are none."""
    said = sum(_says(title, detail) for detail in wanted.details)
    return said / len(wanted.details) if wanted.details else 1.0


def _itself(wanted: Wanted, catalogue: Catalogue, rng: random.Random) -> tuple[str, float]:
    """Return a title of the thing asked for, and how well it answers."""
    thing = catalogue.things[wanted.place]
    if wanted.line and rng.random() < 0.8:
        title = title_of_line(wanted.name, thing, rng)
        return title, _details_grade(wanted, title)
    if rng.random() < 0.45:
        title = title_of(wanted.place, catalogue, rng)
    else:
        narrow = thing.kinds and rng.random() < (0.5 if wanted.kind else 0.25)
        name = rng.choice(thing.kinds) if narrow else name_of(thing, rng)
        named = [detail for detail in wanted.details if rng.random() < 0.65]
        title = composed(wanted.name if wanted.kind and rng.random() < 0.5 else name, thing, rng, named)
    if (wanted.line or wanted.kind) and not _says(title, wanted.name):
        return title, SUBSTITUTE if wanted.line else PLAIN
    return title, _details_grade(wanted, title)


def _details_grade(wanted: Wanted, title: str) -> float:
    """Return 4 if the title has every detail asked for, else 3 to 3.6."""
    coverage = _coverage(wanted, title)
    return 4.0 if coverage == 1.0 else 3.0 + 0.6 * coverage


def _substitute(wanted: Wanted, catalogue: Catalogue, rng: random.Random) -> tuple[str, float]:
    """Return a title of a substitute and its grade, a little better with the details asked for."""
    thing = catalogue.things[wanted.place]
    others = [line for line in thing.lines if line != wanted.name]
    if wanted.line and others and rng.random() < 0.6:
        return title_of_line(rng.choice(others), thing, rng), SUBSTITUTE
    name = rng.choice(thing.instead)
    other = catalogue.by_name.get(stems_of(name))
    named = [detail for detail in wanted.details if rng.random() < 0.5]
    if other is None:
        title = composed(name, thing, rng, named)
    elif rng.random() < 0.5:
        title = title_of(other, catalogue, rng)
    else:
        title = composed(name, catalogue.things[other], rng, named)
    return title, SUBSTITUTE + (0.15 * _coverage(wanted, title) if wanted.details else 0.0)


def _accessory(wanted: Wanted, catalogue: Catalogue, rng: random.Random) -> tuple[str, float]:
    """Return a title of what goes with the thing: its own name, "… for the thing" or "thing …"."""
    thing = catalogue.things[wanted.place]
    name = rng.choice(thing.goes_with)
    other = catalogue.by_name.get(stems_of(name))
    maker = thing if other is None else catalogue.things[other]
    asked = " ".join([*wanted.details[: rng.choice((0, 0, 1))], wanted.name])
    if rng.random() < 0.35:
        asked = f"{rng.choice(thing.brands or ('',))} {name_of(thing, rng)}".strip()
    form = rng.random()
    if other is not None and form < 0.25:
        title = title_of(other, catalogue, rng)
    elif _says(name, wanted.name) or form < 0.5:
        title = composed(name, maker, rng, traits=other is not None)
    elif form < 0.85:
        title = composed(name, maker, rng, traits=other is not None)
        title += f" {rng.choice(JOINTS)} {titled(asked, rng)}"
    else:
        title = composed(f"{asked} {name}", maker, rng, traits=False)
    return title, ACCESSORY


def _asked_for_accessory(wanted: Wanted, catalogue: Catalogue, rng: random.Random) -> Example:
    """Return a query for what goes with a thing: that is the answer (4), the thing itself is not."""
    thing = catalogue.things[wanted.place]
    name = rng.choice(thing.goes_with)
    asked = name
    if not set(stems_of(wanted.name)) & set(stems_of(name)) and rng.random() < 0.5:
        asked = f"{wanted.name} {name}" if rng.random() < 0.6 else f"{name} for {wanted.name}"
    query = typed(asked.lower().split(), rng)
    if rng.random() < 0.5:
        title = composed(name, thing, rng, traits=False)
        if asked != name:
            title += f" {rng.choice(JOINTS)} {titled(wanted.name, rng)}"
        return Example(query, title, graded_target(4.0))
    title = title_of(wanted.place, catalogue, rng)
    whole = _says(title, name)  # "blender with travel cup" for "travel cup"
    return Example(query, title, graded_target(2.2 if whole else MADE_WITH))


def _unrelated_grade(wanted: Wanted, other: int, title: str, catalogue: Catalogue) -> float:
    """Grade another thing's title: by what the catalogue says of the two, else by words in common."""
    thing, given = catalogue.things[wanted.place], catalogue.things[other]
    if other == wanted.place:
        return PLAIN if wanted.kind or wanted.line else _details_grade(wanted, title)
    own, theirs = _called(thing.names), _called(given.names)
    if theirs & (own | _called(thing.kinds)) and not (wanted.kind or wanted.line):
        return _details_grade(wanted, title)
    if own & _called(given.kinds):
        return PLAIN
    own, theirs = own | _called(thing.kinds), theirs | _called(given.kinds)
    if theirs & _called(thing.instead) or own & _called(given.instead):
        return SUBSTITUTE
    if theirs & _called(thing.goes_with):
        return ACCESSORY
    if own & _called(given.goes_with):
        return MADE_WITH
    if any(mine and name and mine[-1] == name[-1] for mine in own for name in theirs):
        return SAME_WORD
    near = catalogue.departments[wanted.place] == catalogue.departments[other]
    asked = {root for root in stems_of(wanted.name) if root not in STOP_WORDS}
    shared = len(asked & set(stems_of(title))) / max(1, len(asked))
    return max(NEIGHBOUR if near else 0.0, SHARED_WORDS * shared)


def _called(names: Iterable[str]) -> set[Roots]:
    return {stems_of(name) for name in names}

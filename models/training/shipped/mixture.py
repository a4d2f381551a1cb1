"""Draws training rounds from judged pairs and titles, movie searches, the catalogue and made-up strangers.

A group is one query with one or more titles; its titles stay in one batch, so that they can be ranked.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.training.data import Example, Target, graded_target
from models.training.shipped.catalogue import (
    Catalogue,
    question_group,
    read_catalogue,
    thing_group,
    unrelated_group,
)
from models.training.shipped.judged import Judged, MovieQuery, by_query, read_judged, read_movies
from models.training.shipped.titled import Titles
from models.training.shipped.typed import nonsense, typed

Group = list[Example]

RELEVANT: Target = (0.02, 0.03, 0.1, 0.25, 0.6)
NOT_RELEVANT: Target = (0.5, 0.3, 0.15, 0.05, 0.0)
"""Targets of movies, which people judged relevant or not. The others matched the query's words."""

OTHER_NUMBER = 2.9
"""Grade of the right thing in another size, number or model."""

LARGEST_GROUP = 6
"""Most titles of a judged query in one group."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that groups are drawn from.

    judged: by source family, then by query. judged_shares: how often each family is drawn; families that are
    not in it are left out. titles: the judged titles by family.
    """

    judged: Mapping[str, Sequence[Sequence[Judged]]]
    judged_shares: Mapping[str, float]
    titles: Mapping[str, Titles]
    movies: Sequence[MovieQuery]
    catalogue: Catalogue


def read_sources(data: Path, folds: Sequence[int], judged_shares: Mapping[str, float]) -> Sources:
    """Read the sources. data: the directory of the training data."""
    judged = by_query(read_judged(data, folds))
    titles = {name: Titles(row.title for rows in judged[name] for row in rows) for name in judged_shares}
    return Sources(judged, judged_shares, titles, read_movies(data), read_catalogue())


def mixed_groups(
    sources: Sources, shares: Mapping[str, float], *, count: int, seed: int, index: int
) -> list[Group]:
    """Draw a round of groups by the shares of the kinds, `count` pairs in all or a few more.

    A share is one of pairs. The round depends on `seed` and `index` alone.
    """
    rng = random.Random(f"{seed}/{index}")
    make, whole, groups = kinds(sources, rng), sum(shares.values()), list[Group]()
    for kind, share in shares.items():
        wanted = count * share / whole
        while wanted > rng.random():
            group = make[kind]()
            groups.append(group)
            wanted -= len(group)
    rng.shuffle(groups)
    return groups


def kinds(sources: Sources, rng: random.Random) -> dict[str, Callable[[], Group]]:
    """Return a function per kind that draws one group."""
    catalogue = sources.catalogue
    return {
        "ranked": lambda: _ranked(sources, rng),
        "others": lambda: _others(sources, rng),
        "numbers": lambda: _numbers(sources, rng),
        "titled": lambda: sources.titles[_family(sources, rng)].group(rng),
        "movies": lambda: _movies(sources, rng),
        "strangers": lambda: [_stranger(sources, rng)],
        "english": lambda: thing_group(catalogue, "en", rng),
        "korean": lambda: thing_group(catalogue, "ko", rng),
        "chinese": lambda: thing_group(catalogue, "zh", rng),
        "unrelated": lambda: unrelated_group(catalogue, rng.choice(("en", "ko", "zh")), rng),
        "questions": lambda: question_group(catalogue, rng),
    }


def _family(sources: Sources, rng: random.Random) -> str:
    families = list(sources.judged_shares)
    return rng.choices(families, weights=[sources.judged_shares[name] for name in families])[0]


def _queries(sources: Sources, rng: random.Random) -> tuple[Sequence[Sequence[Judged]], int]:
    """Draw a source family; return its queries and the index of one of them."""
    queries = sources.judged[_family(sources, rng)]
    return queries, rng.randrange(len(queries))


def _ranked(sources: Sources, rng: random.Random) -> Group:
    """Draw a judged query and titles of as many grades as it has: no grade dominates."""
    queries, at = _queries(sources, rng)
    rows = queries[at]
    picked = rng.sample(rows, min(LARGEST_GROUP, len(rows)))
    if rng.random() < 0.5:
        grades = sorted({row.grade for row in rows})
        for index, grade in zip(range(len(picked)), rng.sample(grades, len(grades)), strict=False):
            picked[index] = rng.choice([row for row in rows if row.grade == grade])
    query = rows[0].query if rng.random() < 0.5 else typed(rows[0].query.split(), rng)
    return [Example(query, row.title, graded_target(row.grade, smoothing=0.15)) for row in picked]


def _others(sources: Sources, rng: random.Random) -> Group:
    """Pair a judged query with a good title of its own, titles of another query, and now and then none."""
    queries, at = _queries(sources, rng)
    rows, strangers = queries[at], queries[(at + rng.randrange(1, len(queries))) % len(queries)]
    own = {row.title for row in rows}
    best = max(rng.sample(rows, min(3, len(rows))), key=lambda row: row.grade)
    group = [Example(rows[0].query, best.title, graded_target(best.grade, smoothing=0.15))]
    group += [
        Example(rows[0].query, row.title, graded_target(0.0))
        for row in rng.sample(strangers, min(2, len(strangers)))
        if row.title not in own
    ]
    if rng.random() < 0.25:
        group.append(Example(rows[0].query, "", graded_target(0.0, smoothing=0.02)))
    return group


def _numbers(sources: Sources, rng: random.Random) -> Group:
    """Ask for a number that an exact title has; the title with another number is only close."""
    queries, at = _queries(sources, rng)
    exact = [row for row in queries[at] if row.grade == 4 and re.search(r"\b\d+\b", row.title)]
    if not exact:
        return _others(sources, rng)
    row = rng.choice(exact)
    found = rng.choice(list(re.finditer(r"\b\d+\b", row.title)))
    after = row.title[found.end() :].split()
    unit = after[0].strip(",.()") if after and after[0].strip(",.()").isalpha() else ""
    query = row.query
    if not re.search(rf"\b{found[0]}\b", query):
        query = f"{query} {found[0]} {unit}".lower().strip()
    value = int(found[0])
    other = rng.choice([value + 1, value + 2, value + 5, 2 * value + 1, max(value - 1, 0) or value + 3])
    changed = f"{row.title[: found.start()]}{other}{row.title[found.end() :]}"
    return [
        Example(query, row.title, graded_target(4.0)),
        Example(query, changed, graded_target(OTHER_NUMBER)),
    ]


def _movies(sources: Sources, rng: random.Random) -> Group:
    asked = rng.choice(sources.movies)
    relevant = rng.sample(asked.relevant, min(2, len(asked.relevant)))
    others = rng.sample(asked.others, min(3, len(asked.others)))
    return [Example(asked.query, movie, RELEVANT) for movie in relevant] + [
        Example(asked.query, movie, NOT_RELEVANT) for movie in others
    ]


def _stranger(sources: Sources, rng: random.Random) -> Example:
    """Pair a query that means nothing, or a thing's name in some language, with any title."""
    queries, at = _queries(sources, rng)
    title = rng.choice(queries[at]).title
    if rng.random() < 0.5:
        query = nonsense(rng)
    else:
        things = rng.choice(list(sources.catalogue.things.values()))
        query = rng.choice(rng.choice(things).names)
        if set(query.lower().split()) & set(title.lower().split()):
            query = nonsense(rng)
    return Example(query, title, graded_target(0.0, smoothing=0.02))

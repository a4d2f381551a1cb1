"""Everything that training pairs are drawn from, and rounds of groups drawn by the shares of their kinds.

A group is one query with one or more titles; its titles stay in one batch, so that they can be ranked.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from models.training.data import Example, Judged, Target, graded_target, source_family
from models.training.demo.catalogue import Catalogue
from models.training.demo.catalogue_pairs import thing_group, thing_pair
from models.training.demo.misses import bundled, number_group, series_group
from models.training.demo.noise import typed
from models.training.demo.prose import Prose, prose_group
from models.training.demo.pseudo import dictionary_pair, pseudo_pair
from models.training.demo.shelf import Shelf
from models.training.demo.strangers import stranger_pair
from models.training.demo.synthetic import described_pair, product_pair

Group = list[Example]

MOVIE_TARGETS: Mapping[bool, Target] = {
    True: (0.02, 0.03, 0.1, 0.25, 0.6),
    False: (0.5, 0.3, 0.15, 0.05, 0.0),
}
JUDGED_GROUP = 6  # most titles of a query that a group ranks
BUNDLED = {"product": 0.12, "thing": 0.12, "things": 0.3, "judged": 0.05, "ranked": 0.05, "numbers": 0.3}
"""How often one of a group's titles gets a bundle word."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that pairs are drawn from. judged: by source family, then by query.

    Raises ValueError if `judged_shares` names a family that is not in `judged`.
    """

    shelf: Shelf
    catalogue: Catalogue
    lexicon: Sequence[str]
    movies: Sequence[tuple[str, str, bool]]
    judged: Mapping[str, Sequence[Sequence[Judged]]]
    judged_shares: Mapping[str, float]
    prose: Prose
    titles: Sequence[str]
    queries: Sequence[str]

    def __post_init__(self) -> None:
        if unknown := set(self.judged_shares) - set(self.judged):
            named, known = (", ".join(sorted(names)) for names in (unknown, self.judged))
            raise ValueError(f"judged_shares: no such source: {named}; there are {known}")


def group_judged(rows: Sequence[Judged]) -> dict[str, list[list[Judged]]]:
    """Group rows by source family, and within it by query."""
    groups: defaultdict[str, defaultdict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[source_family(row.source)][row.query].append(row)
    return {family: list(queries.values()) for family, queries in groups.items()}


def mixed_groups(
    sources: Sources, shares: Mapping[str, float], *, count: int, seed: int, index: int
) -> list[Group]:
    """Draw a round of groups by the shares of the kinds, `count` pairs in all or a few more.

    A share is one of pairs. The round depends on `seed` and `index` alone.
    """
    rng = random.Random(f"{seed}/{index}")
    make = _kinds(sources, rng)
    if unknown := set(shares) - set(make):
        raise ValueError(f"no such kind of pair: {', '.join(sorted(unknown))}; there are {', '.join(make)}")
    groups: list[Group] = []
    whole = sum(shares.values())
    for kind, share in shares.items():
        wanted = count * share / whole
        while wanted > rng.random():
            group = make[kind]()
            if rng.random() < BUNDLED.get(kind, 0.0):
                place = rng.randrange(len(group))
                group[place] = bundled(group[place], rng)
            groups.append(group)
            wanted -= len(group)
    rng.shuffle(groups)
    return groups


def _kinds(sources: Sources, rng: random.Random) -> dict[str, Callable[[], Group]]:
    """Return what makes a group of each kind."""
    return {
        "product": lambda: [product_pair(sources.shelf, rng)],
        "described": lambda: [described_pair(sources.shelf, rng)],
        "thing": lambda: [thing_pair(sources.catalogue, rng)],
        "things": lambda: thing_group(sources.catalogue, rng),
        "numbers": lambda: number_group(sources.shelf, rng),
        "series": lambda: series_group(sources.shelf, rng),
        "strangers": lambda: [stranger_pair(sources.queries, sources.lexicon, sources.titles, rng)],
        "prose": lambda: prose_group(sources.prose, rng),
        "pseudo": lambda: [pseudo_pair(sources.lexicon, rng)],
        "dictionary": lambda: [dictionary_pair(sources.shelf.dictionary, rng)],
        "movies": lambda: [_movie_pair(sources, rng)],
        "judged": lambda: _judged_group(sources, rng, 1),
        "ranked": lambda: _judged_group(sources, rng, JUDGED_GROUP),
    }


def _movie_pair(sources: Sources, rng: random.Random) -> Example:
    query, document, relevant = rng.choice(sources.movies)
    while not relevant and rng.random() < 0.6:  # one in seven is relevant; show one in three
        query, document, relevant = rng.choice(sources.movies)
    return Example(query, document, MOVIE_TARGETS[relevant])


def _judged_group(sources: Sources, rng: random.Random, titles: int) -> Group:
    """Draw a source, then one of its queries, then titles of as many grades as it has: none dominates."""
    families = list(sources.judged_shares)
    family = rng.choices(families, weights=[sources.judged_shares[name] for name in families])[0]
    rows = rng.choice(sources.judged[family])
    picked = rng.sample(rows, min(titles, len(rows)))
    if rng.random() < 0.5:
        grades = sorted({row.grade for row in rows})
        for place, grade in zip(range(len(picked)), rng.sample(grades, len(grades)), strict=False):
            picked[place] = rng.choice([row for row in rows if row.grade == grade])
    # there are few queries, so vary them
    query = rows[0].query if rng.random() < 0.5 else typed(rows[0].query.split(), rng)
    return [Example(query, row.title, graded_target(row.grade, smoothing=0.15)) for row in picked]

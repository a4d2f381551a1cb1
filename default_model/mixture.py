"""Reads the judged pairs that the shipped model is trained on and measured with; draws training rounds from
them, their titles, movie searches, the catalogue and made-up strangers.

A group is one query with one or more titles; its titles stay in one batch, so that they can be ranked. Pairs
of the catalogue (English, Korean and Chinese) are graded by rules, not by people.
"""

import gzip
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from default_model.groups import COMMON, TRAINING_FOLDS, Example, Group, json_lines
from default_model.typed import nonsense, typed
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.lexical import TOKEN, idf_overlap, stem, stems_of
from headroom.models.training.loop import graded_target

CATALOGUE = Path(__file__).resolve().parents[1] / "data" / "catalogue.jsonl.gz"

EXACT = 4.0
NEAR = 3.3
INSTEAD = 2.6
GOES_WITH = 2.0
SAME_WORDS = 1.0
OTHER = 0.0
"""Grades: another narrower kind of the thing is NEAR; something that shares only words is SAME_WORDS."""

OTHER_NUMBER = 2.9
"""Grade of the right thing in another size, number or model."""

RELEVANT = (0.02, 0.03, 0.1, 0.25, 0.6)
NOT_RELEVANT = (0.5, 0.3, 0.15, 0.05, 0.0)
"""Targets of movies, which people judged relevant or not. The others matched the query's words."""

LARGEST_GROUP = 6
"""Most titles of a judged query in one group."""

BEGINNING = 14
"""Words are asked for that are among so many first ones of a title: the later ones say less."""

MOST_SHARING = 300
"""Titles that are looked at for each word of a query."""

LANGUAGES = ("en", "ko", "zh")

Drawer = Callable[[random.Random], Group]
"""Draws one group."""

Row = Mapping[str, Any]
"""A thing or a question of the catalogue; data/README.md says what its fields mean."""


@dataclass(frozen=True, slots=True)
class Judged(LabelledPair):
    """A pair with a person's grade (0 to 4), the source it came from, and the fold of its query."""

    source: str
    fold: int

    @property
    def family(self) -> str:
        """Return the name that the source is reported under: ESCI's three parts are one."""
        return self.source.split("_")[0]


class MovieQuery(NamedTuple):
    """A query of a movie search with the movies that people found relevant, and those they did not."""

    query: str
    relevant: list[str]
    others: list[str]


def read_judged(data: Path, folds: Collection[int]) -> list[Judged]:
    """Return the judged pairs of some folds. Each query is in one fold only."""
    rows = (Judged(**row) for row in json_lines(data / "graded.jsonl.gz"))
    return [row for row in rows if row.fold in folds]


def source_groups(rows: Sequence[Judged]) -> dict[str, list[int]]:
    """Return the row indices of each source family, and of the "products" (ESCI and Chorus)."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.family].append(index)
    products = sorted(groups.get("esci", []) + groups.get("chorus", []))
    return dict(sorted(groups.items())) | ({"products": products} if products else {})


def read_movies(data: Path) -> list[MovieQuery]:
    """Return the queries of MSRD that have both relevant and other movies."""
    folder = data / "msrd_movies"
    movies = {}
    for row in json_lines(folder / "movies-corpus.jsonl.gz"):
        genres = " ".join(row["genres"][:3])
        actors = ", ".join(row["actors"][:4])
        movies[row["id"]] = f"{row['title']} ({row['year']}) {genres}, {actors}"
    queries: dict[str, MovieQuery] = {}
    with gzip.open(folder / "movies-judgments.tsv.gz", "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            _, query, movie, grade = line.rstrip("\n").split("\t")
            if movie in movies:
                asked = queries.setdefault(query, MovieQuery(query, [], []))
                (asked.relevant if grade == "1" else asked.others).append(movies[movie])
    return [asked for asked in queries.values() if asked.relevant and asked.others]


class Titles:
    """The titles of one source, and which of them share words.

    A query of some of a title's own words, beside titles that have all, some or none of them, teaches that
    words count, and rare ones more, whatever shop it is: docs/model-card.md has the measurement.
    """

    def __init__(self, titles: Iterable[str]) -> None:
        self._titles = sorted(set(titles))
        self._overlap = idf_overlap(self._titles)
        self._with_stem = defaultdict[str, list[str]](list)
        for title in self._titles:
            for word in set(stems_of(title)):
                self._with_stem[word].append(title)

    def group(self, rng: random.Random) -> Group:
        """Draw a query of one to four words of a title; return it with this title and up to five others."""
        words: list[str] = []
        while len(words) < 2:
            title = rng.choice(self._titles)
            first = TOKEN.findall(title.lower())[:BEGINNING]
            words = [word for word in first if (len(word) > 2 or word.isdigit()) and word not in COMMON]
        at = rng.sample(range(len(words)), min(len(words), rng.choice((1, 2, 2, 3, 3, 4))))
        asked = [words[index] for index in sorted(at)]
        sharing: set[str] = set()
        for word in dict.fromkeys(map(stem, asked)):
            found = self._with_stem[word]
            sharing.update(rng.sample(found, min(MOST_SHARING, len(found))))
        near = sorted(sharing - {title})
        others = rng.sample(near, min(3, len(near))) + rng.sample(self._titles, min(2, len(self._titles)))
        query = typed(asked, rng) if rng.random() < 0.5 else " ".join(asked)
        group = [Example(query, title, graded_target(3.8, smoothing=0.1))]
        for other in others:
            share = self._overlap(" ".join(asked), other)
            grade = 3.8 if share == 1 else 3.6 * share**2
            group.append(Example(query, other, graded_target(grade, smoothing=0.3), weight=0.5))
        return group


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that groups are drawn from.

    judged: by source family, then by query. judged_shares: how often each family is drawn; families that are
    not in it are left out. titles: the judged titles by family. catalogue: things by language, and
    "questions". drawers: further kinds of groups, by name.
    """

    judged: Mapping[str, Sequence[Sequence[Judged]]]
    judged_shares: Mapping[str, float]
    titles: Mapping[str, Titles]
    movies: Sequence[MovieQuery]
    catalogue: Mapping[str, Sequence[Row]]
    drawers: Mapping[str, Drawer] = field(default_factory=dict)


def read_sources(data: Path, judged_shares: Mapping[str, float]) -> Sources:
    """Read what is trained on. data: the directory of the training data."""
    judged = by_query(read_judged(data, TRAINING_FOLDS))
    titles = {name: Titles(row.title for rows in judged[name] for row in rows) for name in judged_shares}
    return Sources(judged, judged_shares, titles, read_movies(data), read_catalogue())


def by_query(rows: Sequence[Judged]) -> dict[str, list[list[Judged]]]:
    """Return the rows by source family, and within it by query."""
    groups = defaultdict[str, defaultdict[str, list[Judged]]](lambda: defaultdict(list))
    for row in rows:
        groups[row.family][row.query].append(row)
    return {family: list(queries.values()) for family, queries in groups.items()}


def read_catalogue() -> dict[str, list[Row]]:
    """Return the things by language, and the "questions"."""
    rows = defaultdict[str, list[Row]](list)
    for row in json_lines(CATALOGUE):
        rows["questions" if "question" in row else row["language"]].append(row)
    return dict(rows)


def mixed_groups(
    sources: Sources, shares: Mapping[str, float], *, count: int, seed: int, index: int
) -> list[Group]:
    """Draw a round of groups by the shares of the kinds, `count` pairs in all or a few more.

    A share is one of pairs. The round depends on `seed` and `index` alone.
    """
    rng = random.Random(f"{seed}/{index}")
    make = kinds(sources, rng)
    whole = sum(shares.values())
    groups = list[Group]()
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
    return {name: partial(drawer, rng) for name, drawer in sources.drawers.items()} | {
        "ranked": lambda: _ranked(sources, rng),
        "others": lambda: _others(sources, rng),
        "numbers": lambda: _numbers(sources, rng),
        "titled": lambda: sources.titles[_family(sources, rng)].group(rng),
        "movies": lambda: _movies(sources, rng),
        "strangers": lambda: _stranger(sources, rng),
        "english": lambda: _thing(catalogue["en"], rng),
        "korean": lambda: _thing(catalogue["ko"], rng),
        "chinese": lambda: _thing(catalogue["zh"], rng),
        "unrelated": lambda: _unrelated(catalogue[rng.choice(LANGUAGES)], rng),
        "unrelated_en": lambda: _unrelated(catalogue["en"], rng),
        "questions": lambda: _question(catalogue["questions"], rng),
    }


def _group(query: str, titles: Sequence[tuple[str, float]], smoothing: float = 0.06) -> Group:
    return [Example(query, title, graded_target(grade, smoothing=smoothing)) for title, grade in titles]


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
    return _group(query, [(row.title, row.grade) for row in picked], smoothing=0.15)


def _others(sources: Sources, rng: random.Random) -> Group:
    """Pair a judged query with a good title of its own, titles of another query, and now and then none."""
    queries, at = _queries(sources, rng)
    rows = queries[at]
    strangers = queries[(at + rng.randrange(1, len(queries))) % len(queries)]
    own = {row.title for row in rows}
    query = rows[0].query
    best = max(rng.sample(rows, min(3, len(rows))), key=lambda row: row.grade)
    others = [row.title for row in rng.sample(strangers, min(2, len(strangers))) if row.title not in own]
    group = _group(query, [(best.title, best.grade)], smoothing=0.15)
    group += _group(query, [(title, OTHER) for title in others])
    return group + _group(query, [("", OTHER)], smoothing=0.02) if rng.random() < 0.25 else group


def _numbers(sources: Sources, rng: random.Random) -> Group:
    """Ask for a number that an exact title has; the title with another number is only close."""
    queries, at = _queries(sources, rng)
    exact = [row for row in queries[at] if row.grade == 4 and re.search(r"\b\d+\b", row.title)]
    if not exact:
        return _others(sources, rng)
    row = rng.choice(exact)
    found = rng.choice(list(re.finditer(r"\b\d+\b", row.title)))
    before = row.title[: found.start()]
    after = row.title[found.end() :]
    unit = "".join(after.split()[:1]).strip(",.()")
    query = row.query
    if not re.search(rf"\b{found[0]}\b", query):
        query = f"{query} {found[0]} {unit if unit.isalpha() else ''}".lower().strip()
    value = int(found[0])
    other = rng.choice([value + 1, value + 2, value + 5, 2 * value + 1, max(value - 1, 0) or value + 3])
    return _group(query, [(row.title, EXACT), (f"{before}{other}{after}", OTHER_NUMBER)])


def _movies(sources: Sources, rng: random.Random) -> Group:
    asked = rng.choice(sources.movies)
    return [
        Example(asked.query, movie, target)
        for movies, most, target in ((asked.relevant, 2, RELEVANT), (asked.others, 3, NOT_RELEVANT))
        for movie in rng.sample(movies, min(most, len(movies)))
    ]


def _stranger(sources: Sources, rng: random.Random) -> Group:
    """Pair a query that means nothing, or a thing's name in some language, with any title."""
    queries, at = _queries(sources, rng)
    title = rng.choice(queries[at]).title
    query = ""
    if rng.random() >= 0.5:
        query = rng.choice(rng.choice(sources.catalogue[rng.choice(LANGUAGES)])["names"])
    if not query or set(query.lower().split()) & set(title.lower().split()):
        query = nonsense(rng)
    return _group(query, [(title, OTHER)], smoothing=0.02)


def _question(questions: Sequence[Row], rng: random.Random) -> Group:
    """Return a question with its answer, a title that shares its words, and two unrelated titles.

    Half of the time only the words that the answer has are asked, for the same grades.
    """
    asked = rng.choice(questions)
    shared = shared_words(asked["question"], asked["exact"])
    query = " ".join(shared) if len(shared) > 1 and rng.random() < 0.5 else asked["question"]
    titles = [(asked["exact"], EXACT), (asked["same_words"], SAME_WORDS), (asked["unrelated"], OTHER)]
    return _group(query, [*titles, (rng.choice(questions)["unrelated"], OTHER)])


def shared_words(question: str, title: str) -> list[str]:
    """Return the longest parts of the question's words, of two characters or more, that the title has."""
    found = []
    for rest in question.split():
        while rest:
            length = next((n for n in range(len(rest), 1, -1) if rest[:n] in title), 1)
            if length > 1:
                found.append(rest[:length])
            rest = rest[length:]
    return found


def _thing(things: Sequence[Row], rng: random.Random) -> Group:
    """Ask for a thing by a name, a narrower kind, with a trait, or in English.

    The titles are the thing, what can stand in for it, what goes with it, and another thing.
    """
    thing, other = rng.sample(things, 2)
    name = rng.choice(thing["names"])
    trait = rng.choice(thing["traits"])
    kind = rng.choice(thing["kinds"] or thing["names"])
    rest = [
        (_with_number(rng.choice(thing["instead"]), rng), INSTEAD),
        (_with_number(rng.choice(thing["with"]), rng), GOES_WITH),
        (rng.choice(other["titles"]), OTHER),
    ]
    way = rng.random()
    exact = f"{kind} {trait}"
    if way < 0.2:
        query = kind
        titles = [(exact, EXACT), (f"{_other(thing['kinds'], kind, name, rng)} {trait}", NEAR), *rest]
    elif way < 0.4:
        query = f"{trait} {name}" if rng.random() < 0.5 else f"{name} {trait}"
        titles = [(exact, EXACT), (f"{name} {_other(thing['traits'], trait, '', rng)}".strip(), NEAR), *rest]
    else:
        query = rng.choice(thing["english"]) if "english" in thing and way < 0.55 else name
        titles = [(rng.choice(thing["titles"]), EXACT), (exact, EXACT), *rest]
    if thing["language"] == "en":
        query = typed(query.split(), rng)
        titles = [(_capitalised(title, rng), grade) for title, grade in titles]
    return _group(query, titles)


def _other(texts: Sequence[str], text: str, default: str, rng: random.Random) -> str:
    """Draw a text that is another one than this, or the default if there is none."""
    return rng.choice([other for other in texts if other != text] or [default])


def _unrelated(things: Sequence[Row], rng: random.Random) -> Group:
    """Ask for a thing by a name; the titles are the thing, what goes with it, and three other things."""
    thing, *others = rng.sample(things, 4)
    titles = [(rng.choice(thing["titles"]), EXACT), (rng.choice(thing["with"]), GOES_WITH)]
    for other in others:
        title = rng.choice(other[rng.choice(("titles", "titles", "with", "instead", "names"))])
        if rng.random() < 0.3:
            title = f"{title} {rng.choice(other['traits'])}"
        titles.append((_with_number(title, rng), OTHER))
    return _group(rng.choice(thing["names"]), titles)


def _with_number(name: str, rng: random.Random) -> str:
    """Return a name as a title may have it, now and then with a number."""
    return name if rng.random() < 0.6 else f"{name} {rng.choice((2, 3, 5, 10, 20, 30, 100, 500))}"


def _capitalised(title: str, rng: random.Random) -> str:
    """Return a title as shops write it, mostly with capitals."""
    if rng.random() < 0.15:
        return title
    return " ".join(word[:1].upper() + word[1:] for word in title.split())

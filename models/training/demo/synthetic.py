"""Makes graded query–title pairs from product titles. The grade says how well a title answers.

4  the thing itself, with everything asked for
3  the right kind of thing, but a colour, size, number, brand or other detail differs; a little less for a
   thing of a kindred kind ("sneakers" for "sandals")
2  the title names the thing, but its product is an accessory or a part of it
1  details match, but it is another kind of thing
0  nothing in common
"""

import random

from models.quality.lexical import stem, stems_of, words_of
from models.training.data import Example, graded_target
from models.training.demo.noise import typed
from models.training.demo.shelf import ACCESSORY, MODIFIED, Query, Shelf, ask_for, graded
from models.training.demo.titles import COLORS, STOP_WORDS, Title, TitleStatistics, read_title

JOINTS = (
    "for",
    "for",
    "for",
    "compatible with",
    "fits",
)  # between an accessory and its thing; "for" is the commonest


def product_pair(shelf: Shelf, rng: random.Random) -> Example:
    """Return a query for a product, as typed, with its title or a near or far miss, and the grade."""
    place = rng.randrange(len(shelf.products))
    query = ask_for(shelf.titles[place], rng)
    while query is None:
        place = rng.randrange(len(shelf.products))
        query = ask_for(shelf.titles[place], rng)
    other = place
    kind = rng.random()
    if kind < 0.2:
        query = _changed(query, shelf, rng)
    elif kind < 0.46:
        return _accessory_pair(query, shelf, rng)
    elif kind < 0.84:
        other = _near(query, place, shelf, rng) if kind < 0.74 else rng.randrange(len(shelf.products))
    title = _shortened(shelf.titles[other], shelf.statistics, rng)
    if rng.random() < 0.08:  # "sofa for small rooms" is still a sofa
        said = " ".join(rng.choice(shelf.titles).text.split()[:3])
        title = read_title(f"{_ended(title.text)} for {said}", shelf.statistics)
    text_stems = frozenset(stems_of(shelf.products[other].text[:600]))
    grade = graded(query, title, text_stems, shelf)
    return Example(typed(_reworded(query, shelf, rng), rng), title.text, graded_target(grade))


def _accessory_pair(query: Query, shelf: Shelf, rng: random.Random) -> Example:
    """Write another product as made for the thing asked for: "Bit Set for Drill" or "Drill Bit Set".

    "for" makes it an accessory. The query's words before its name do not (MODIFIED): most such things only
    share words. It is what was asked for if the query names it too (4).
    """
    title = _accessory(shelf, rng)
    while not title.heads or title.heads[0] == query.head:
        title = _accessory(shelf, rng)
    kept = [word for word in query.words[:4] if stem(word) == query.head or rng.random() < 0.8]
    words = tuple(kept or query.words[:1])
    asked = " ".join(word.capitalize() if rng.random() < 0.7 else word for word in words)
    written = title.text.split()
    named = _place_of_thing(title)
    grade = ACCESSORY
    if named is None or rng.random() < 0.6:
        between = f"{rng.choice(shelf.brands).capitalize()} " if shelf.brands and rng.random() < 0.2 else ""
        text = f"{_ended(title.text)} {rng.choice(JOINTS)} {between}{asked}"
        if rng.random() < 0.4:
            text += ", " + " ".join(rng.choice(shelf.titles).text.split()[-3:])
    else:
        text, grade = " ".join([*written[:named], asked, *written[named:]]), MODIFIED
    words = query.words[:4] if rng.random() < 0.6 else words
    if rng.random() < 0.3:
        words, grade = (*kept, title.heads[0]), 4.0
    return Example(typed(_reworded(Query(words, query.head), shelf, rng), rng), text, graded_target(grade))


def _accessory(shelf: Shelf, rng: random.Random) -> Title:
    """Return the start of an accessory's title: a product's title, or its thing and the words before it."""
    made_for = shelf.made_for and rng.random() < 0.5
    chosen = shelf.titles[rng.choice(shelf.made_for)] if made_for else rng.choice(shelf.titles)
    title = _shortened(chosen, shelf.statistics, rng)
    if not title.heads or (rng.random() < 0.4 and not made_for):
        return title
    named = _place_of_thing(title)
    if named is None:
        return title
    written = title.text.split()
    phrase = written[max(0, named - rng.choice((0, 1, 1, 2))) : named + 1]
    return read_title(_ended(" ".join(phrase)), shelf.statistics)


def _place_of_thing(title: Title) -> int | None:
    """Return the index of the title's first head among its words; None if it is not a word by itself."""
    roots = [stem(word.strip(",.()").lower()) for word in title.text.split()]
    return roots.index(title.heads[0]) if title.heads[0] in roots else None


def described_pair(shelf: Shelf, rng: random.Random) -> Example:
    """Pair words of a description with its title (3.2), a title of the same kind (2) or any other (0)."""
    place = rng.randrange(len(shelf.products))
    words = [word for word in words_of(shelf.products[place].text[:600]) if word not in STOP_WORDS]
    if len(words) < 6:
        return product_pair(shelf, rng)
    size = rng.randint(2, 5)
    start = rng.randrange(len(words) - size)
    kind = rng.random()
    other, grade = place, 3.2
    heads = shelf.titles[place].heads
    if kind < 0.3 and heads:
        other, grade = rng.choice(shelf.with_head[heads[0]]), 2.0
    elif kind < 0.6:
        other, grade = rng.randrange(len(shelf.products)), 0.0
    title = _shortened(shelf.titles[other], shelf.statistics, rng)
    present = sum(stem(word) in title.main for word in words[start : start + size]) / size
    return Example(
        typed(words[start : start + size], rng),
        title.text,
        graded_target(max(grade, 4 * present if grade else present)),
    )


def _changed(query: Query, shelf: Shelf, rng: random.Random) -> Query:
    """Change one detail of the query, add one, or ask for a kindred thing."""
    words = list(query.words)
    if query.head in shelf.kin and rng.random() < 0.3:
        other = rng.choice(shelf.kin[query.head])
        return Query(tuple(other if stem(word) == query.head else word for word in words), other)
    places = [place for place, word in enumerate(words) if stem(word) != query.head]
    if places and rng.random() < 0.8:
        place = rng.choice(places)
        words[place] = shelf.alternative(words[place], rng)
    else:
        extra = rng.choice(
            (rng.choice(sorted(COLORS)), rng.choice(shelf.brands), rng.choice(rng.choice(shelf.titles).words))
        )
        words.insert(0, extra)
    return Query(tuple(words), query.head)


def _near(query: Query, place: int, shelf: Shelf, rng: random.Random) -> int:
    """Draw another product that shares the query's head or a detail, or that has a kindred head."""
    pools = [shelf.with_word.get(stem(word), ()) for word in query.words]
    if query.head:
        pools += [shelf.with_head.get(query.head, ())] * 2
        if kin := shelf.kin.get(query.head):
            pools.append(shelf.with_head[rng.choice(kin)])
    pool = rng.choice(pools)
    if not pool:
        return place
    other = rng.choice(pool)
    if query.head in shelf.titles[other].heads and rng.random() < 0.4:
        other = rng.choice(
            shelf.with_word[query.head]
        )  # a second try for "drill bit" if "drill" is asked for
    return other


def _reworded(query: Query, shelf: Shelf, rng: random.Random) -> list[str]:
    """Sometimes replace a word by a synonym or split a compound; the grade stays."""
    words = list(query.words)
    place = rng.randrange(len(words))
    word = words[place]
    if rng.random() < 0.2 and word.isalpha():
        synonyms = shelf.dictionary.synonyms(word)[:6] or shelf.dictionary.synonyms(stem(word))[:6]
        words[place] = rng.choice(synonyms) if synonyms else word
    elif rng.random() < 0.3:
        words[place] = _split(word, shelf.statistics)
    return words


def _split(word: str, statistics: TitleStatistics) -> str:
    """Split a compound if titles know both parts: "dishwasher" is "dish washer". Other words stay."""
    for at in range(4, len(word) - 3):
        left, right = word[:at], word[at:]
        if stem(left) in statistics.idf and stem(right) in statistics.headness:
            return f"{left} {right}"
    return word


def _ended(text: str) -> str:
    """Return a title that was cut, without the comma or bracket at the cut."""
    return text.rstrip(" ,-|(")


def _shortened(title: Title, statistics: TitleStatistics, rng: random.Random) -> Title:
    """Return the title, or its beginning: other shops' titles are shorter."""
    written = title.text.split()
    if len(written) > 8 and rng.random() < 0.6:
        return read_title(_ended(" ".join(written[: rng.randint(5, 16)])), statistics)
    return title

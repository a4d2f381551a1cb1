"""Pairs of a question and its short query, which the query generator learns from and is judged on.

Korean: SAE4K, where people distilled a phrase from each question. No such set is open for English and
Chinese: there, frames are put around things of the catalogue, and English questions of people (WebQuestions)
get a query by a rule, which leaves function words out. Made-up pairs teach to drop what frames a question;
they cannot teach words that people would put in its place. Only for places to eat in Korea do they: people
search for 맛집, and ask for a house where the food is good.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from default_model.groups import TEST_FOLDS, fold_of, json_lines
from default_model.question_forms import (
    FRAMES,
    FUNCTION_WORDS,
    KOREAN_BEST,
    KOREAN_ENDINGS,
    KOREAN_FOODS,
    KOREAN_GOOD,
    KOREAN_OCCASIONS,
    KOREAN_PLACE_ENDINGS,
    KOREAN_PLACES,
    KOREAN_TO_DO,
    KOREAN_VENUES,
)

CATALOGUE = Path(__file__).parents[1] / "data" / "catalogue.jsonl.gz"

CHOOSING_FOLDS = (2,)
"""Folds of SAE4K on which the generator's steps are chosen."""

HELD_OUT = 500
CHOOSING = 300

MADE_UP = {"en": 4500, "ko": 2500, "zh": 3500}
"""How many questions are made of the catalogue, by language."""

VENUES = 8000
"""How many Korean questions are made about places to eat."""

BARE_SHARE = 0.25
"""The share of made-up questions without a trait."""

MARKED_SHARE = 0.4
"""The share of SAE4K's questions that get a mark at their end, which people wrote without one."""

_WORD = re.compile(r"[\w'-]+")


class Asked(NamedTuple):
    """A question and its query. source: sae4k, webquestions, or made_LANGUAGE."""

    question: str
    query: str
    source: str


def read_sae4k(data: Path) -> dict[str, list[Asked]]:
    """Return SAE4K's pairs by part: "test" and "choosing", of distinct questions, and "training".

    No phrase of the two first parts is in training, so neither is another question with the same answer.
    """
    rows = [
        Asked(row["query"], row["title"], "sae4k")
        for row in json_lines(data / "multilingual" / "sae4k" / "pairs.jsonl.gz")
        if row["source"] == "sae4k"
    ]
    test = _drawn((row for row in rows if fold_of(row.question) in TEST_FOLDS), HELD_OUT)
    choosing = _drawn((row for row in rows if fold_of(row.question) in CHOOSING_FOLDS), CHOOSING)
    held_out = {_key(row.query) for row in (*test, *choosing)}
    taken = (*TEST_FOLDS, *CHOOSING_FOLDS)
    training = [row for row in rows if fold_of(row.question) not in taken and _key(row.query) not in held_out]
    return {"test": test, "choosing": choosing, "training": training}


def _drawn(rows: Iterable[Asked], count: int) -> list[Asked]:
    """Return this many pairs of distinct questions, those with the lowest digests."""
    distinct = {row.question: row for row in rows}
    return sorted(distinct.values(), key=lambda row: sha256(row.question.encode()).digest())[:count]


def _key(text: str) -> str:
    return re.sub(r"\s", "", text)


def read_webquestions(file: Path) -> list[Asked]:
    """Return the questions of a file of WebQuestions, `main/trainmodel.json`, with rule-made queries."""
    rows = json.loads(file.read_text("utf-8"))
    pairs = (Asked(row["qText"], without_function_words(row["qText"]), "webquestions") for row in rows)
    return [pair for pair in pairs if pair.query]


def without_function_words(question: str) -> str:
    """Return an English question's words without its function words."""
    return " ".join(word for word in _WORD.findall(question.lower()) if word not in FUNCTION_WORDS)


def made_up(language: str, count: int, seed: int) -> Iterator[Asked]:
    """Yield questions about things of the catalogue in one language."""
    rng = random.Random(f"{language}-{seed}")
    things = [row for row in json_lines(CATALOGUE) if row["language"] == language and row.get("traits")]
    framed, bare = FRAMES[language]
    for _ in range(count):
        thing = rng.choice(things)
        name = rng.choice([*thing["names"], *thing["kinds"]])
        trait = rng.choice(thing["traits"])
        is_bare = rng.random() < BARE_SHARE
        frame = rng.choice(bare if is_bare else framed)
        article = "an" if name[0].lower() in "aeiou" else "a"
        question = frame.format(n=name, t=trait, a=f"{article} {name}")
        yield Asked(question, name if is_bare else f"{trait} {name}", f"made_{language}")


def venues(count: int, seed: int) -> Iterator[Asked]:
    """Yield Korean questions about places to eat."""
    rng = random.Random(f"venues-{seed}")
    for _ in range(count):
        question, query = rng.choice(KOREAN_VENUES)
        fillers = {
            "p": _place(rng),
            "f": rng.choice(KOREAN_FOODS),
            "o": rng.choice(KOREAN_OCCASIONS),
            "b": rng.choice(KOREAN_BEST),
            "h": rng.choice(KOREAN_TO_DO),
            "g": rng.choice(KOREAN_GOOD),
            "e": rng.choice(KOREAN_ENDINGS),
        }
        yield Asked(question.format(**fillers), query.format(**fillers), "made_ko")


def _place(rng: random.Random) -> str:
    place = rng.choice(KOREAN_PLACES)
    has_ending = place.endswith(tuple(ending for ending in KOREAN_PLACE_ENDINGS if ending))
    return place if has_ending else place + rng.choice(KOREAN_PLACE_ENDINGS)


def training_pairs(data: Path, webquestions: Path | None, seed: int = 0) -> list[Asked]:
    """Return everything that the generator is trained on.

    data: the directory of the training data. webquestions: the file of WebQuestions; None: without it.
    """
    pairs = list(_marked(read_sae4k(data)["training"], seed))
    for language, count in MADE_UP.items():
        pairs += made_up(language, count, seed)
    pairs += venues(VENUES, seed)
    if webquestions is not None:
        pairs += read_webquestions(webquestions)
    return _distinct(pairs)


def _marked(pairs: Iterable[Asked], seed: int) -> Iterator[Asked]:
    """Yield pairs, some with a mark at the end of the question."""
    rng = random.Random(f"marks-{seed}")
    for pair in pairs:
        mark = rng.choice("??.") if rng.random() < MARKED_SHARE else ""
        yield pair._replace(question=pair.question + mark)


def _distinct(pairs: Sequence[Asked]) -> list[Asked]:
    return list(dict.fromkeys(pairs))

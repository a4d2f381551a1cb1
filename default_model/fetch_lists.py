"""Makes the lists of data/multilingual from the public files that public.yaml names.

People made or judged the good pairs of every set. If a set has no bad ones, titles of other queries are
added: near ones share rare pairs of letters with the query, and the rest are drawn at random.
"""

import csv
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from default_model.yardstick import bigrams_of


class Row(NamedTuple):
    """A pair of a set. lang: of the query, or of both sides, such as "ko-en"."""

    query: str
    title: str
    grade: int
    source: str
    lang: str


MUCH_SHARED = 0.5
"""Titles that share so much of their pairs of letters (Jaccard) are close: grade 2 in sets of phrases."""

WORDINGS = 10
"""Sentences of one meaning stand one after another in StyleKQC."""

LANGUAGES = ("en", "ko", "zh")

NEAR_TITLES = 2
MOST_COMPARED = 40
"""Titles that share a rare pair of letters and are compared."""


class Titles:
    """The titles of a set, from which other queries' titles are drawn."""

    def __init__(self, titles: Iterable[str]) -> None:
        self.texts = sorted(set(titles))
        self._with_bigram = defaultdict[str, list[str]](list)
        for title in self.texts:
            for bigram in sorted(set(bigrams_of(title))):
                self._with_bigram[bigram].append(title)

    def near(self, title: str, not_these: set[str]) -> list[tuple[str, float]]:
        """Return up to NEAR_TITLES titles that share most with this one, each with its Jaccard index."""
        own = set(bigrams_of(title))
        compared: list[str] = []
        for bigram in sorted(own, key=lambda bigram: (len(self._with_bigram[bigram]), bigram)):
            compared += self._with_bigram[bigram][: MOST_COMPARED - len(compared)]
        shares = {}
        for other in dict.fromkeys(compared):
            if other not in not_these:
                theirs = set(bigrams_of(other))
                shares[other] = len(own & theirs) / len(own | theirs)
        return sorted(shares.items(), key=lambda item: -item[1])[:NEAR_TITLES]

    def random(self, not_these: set[str], rng: random.Random) -> str:
        """Draw another title."""
        while True:
            title = rng.choice(self.texts)
            if title not in not_these:
                return title


def sae4k(raw: Path, rng: random.Random) -> Iterator[Row]:
    """Yield verbose Korean questions with the phrases that people made of them."""
    lines = (raw / "sae4k_v1.txt").read_text(encoding="utf-8-sig").strip().split("\n")
    phrases = defaultdict[str, set[str]](set)
    for line in lines:
        question, phrase, _ = line.split("\t")
        phrases[question.strip()].add(phrase.strip())
    titles = Titles(phrase for group in phrases.values() for phrase in group)
    for question, group in phrases.items():
        for phrase in sorted(group):
            yield Row(question, phrase, 4, "sae4k", "ko")
        for other, share in titles.near(question, group):
            yield Row(question, other, 2 if share >= MUCH_SHARED else 1, "sae4k_near", "ko")
        yield Row(question, titles.random(group, rng), 0, "sae4k_rand", "ko")


def stylekqc(raw: Path, rng: random.Random) -> Iterator[Row]:
    """Yield Korean questions with two other wordings of each, of ten in a row."""
    topics = defaultdict[str, list[list[str]]](list)
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        with (raw / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        for first in range(0, len(rows), WORDINGS):
            wordings = rows[first : first + WORDINGS]
            topics[wordings[0]["topic"]].append([row["sentence"] for row in wordings])
    for topic, groups in topics.items():
        titles = Titles(sentence for group in groups for sentence in group)
        others = [name for name in topics if name != topic]
        for group in groups:
            for query in rng.sample(group, min(2, len(group))):
                own = set(group)
                for title in rng.sample(sorted(own - {query}), min(2, len(own) - 1)):
                    yield Row(query, title, 4, f"stylekqc:topic{topic}", "ko")
                for title, _ in titles.near(query, own):
                    yield Row(query, title, 1, f"stylekqc:topic{topic}", "ko")
                stranger = rng.choice(rng.choice(topics[rng.choice(others)]))
                yield Row(query, stranger, 0, f"stylekqc:topic{topic}", "ko")


def klue(raw: Path, _: random.Random) -> Iterator[Row]:
    """Yield pairs of Korean sentences with the mean of seven raters, from 0 to 5, as a grade."""
    with (raw / "klue_sts_train.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            grade = round(float(row["label"]) * 0.8)
            yield Row(row["sentence1"], row["sentence2"], grade, "klue_sts_train", "ko")


def openbg(raw: Path, rng: random.Random) -> Iterator[Row]:
    """Yield Chinese shop titles under their category, its coarse one, others of it, and another.

    Two titles that people judged to be the same product, or not, follow.
    """
    fine = _labels(raw, "fine")
    coarse = _labels(raw, "coarse")
    parts = defaultdict[str, list[str]](list)
    for title, category in fine.items():
        if category not in parts[coarse[title]]:
            parts[coarse[title]].append(category)
    categories = sorted({category for part in parts.values() for category in part})
    for title, category in fine.items():
        siblings = [other for other in parts[coarse[title]] if other != category]
        graded = [(category, 4), (coarse[title], 3)]
        graded += [(other, 1) for other in rng.sample(siblings, min(2, len(siblings)))]
        strangers = [other for other in categories if other not in parts[coarse[title]]]
        graded += [(other, 0) for other in rng.sample(strangers, min(1, len(strangers)))]
        for query, grade in graded:
            yield Row(query, title, grade, "openbg_category", "zh")
    for line in (raw / "item_align.json").read_text(encoding="utf-8").strip().split("\n"):
        pair = json.loads(line)
        _, one, other = re.split(r"\n?Item [12]: ", pair["sentences"])
        grade = 4 if pair["labels"]["en"] == ["same"] else 2
        yield Row(_listed_title(one), _listed_title(other), grade, "openbg_align", "zh")


def _listed_title(text: str) -> str:
    """Return the title of a listing, which its attributes follow."""
    return " ".join(text.split(", ")[0].split())


def _labels(raw: Path, level: str) -> dict[str, str]:
    """Return the category of each title on one level ("fine" or "coarse")."""
    labels = {}
    for name in ("item_fine_classify.json", "item_coarse_classify.json"):
        for line in (raw / name).read_text(encoding="utf-8").strip().split("\n"):
            row = json.loads(line)
            title = row["sentences"].split("\t")[0].strip()
            if row["labels"].get(level):
                labels[title] = row["labels"][level][0]
    return labels


def dureader(raw: Path, rng: random.Random) -> Iterator[Row]:
    """Yield web queries with the pages that were retrieved, best those with the answer, and other pages."""
    chosen = defaultdict[str, dict[str, int]](dict)
    for name in ("search.train.json", "search.dev.json"):
        for line in (raw / name).read_text(encoding="utf-8").strip().split("\n"):
            row = json.loads(line)
            for page in row["documents"]:
                if page["title"]:
                    grade = 4 if page["is_selected"] else 2
                    pages = chosen[row["question"]]
                    pages[page["title"]] = max(grade, pages.get(page["title"], 0))
    titles = Titles(title for pages in chosen.values() for title in pages)
    for query, pages in chosen.items():
        for title, grade in pages.items():
            yield Row(query, title, grade, "dureader_demo", "zh")
        for _ in range(2):
            yield Row(query, titles.random(set(pages), rng), 0, "dureader_demo:random", "zh")


def osm(raw: Path, rng: random.Random) -> Iterator[Row]:
    """Yield search terms with kinds of shops and places, in three languages and across them."""
    kinds = {language: _presets(raw / f"{name}.json") for language, name in PRESETS.items()}
    for language, presets in kinds.items():
        branches = defaultdict[str, list[str]](list)
        for key in presets:
            branches[key.split("/")[0]].append(key)
        for key, (name, terms) in presets.items():
            siblings = [other for other in branches[key.split("/")[0]] if presets[other][0] != name]
            for query in dict.fromkeys([name, *terms]):
                yield Row(query, name, 4 if query == name else 3, "osm_preset", language)
                yield from _others(query, name, presets, siblings, language, rng)
    for one, other in product(kinds, kinds):
        if one != other:
            yield from _crossed(kinds[one], kinds[other], f"{one}-{other}", rng)


PRESETS = {"en": "en", "ko": "ko", "zh": "zh-CN"}

Presets = Mapping[str, tuple[str, Sequence[str]]]
"""The name and the search terms of each kind, by its key, such as "shop/bakery"."""


def _presets(path: Path) -> Presets:
    (language,) = json.loads(path.read_text(encoding="utf-8")).values()
    presets = {}
    for key, row in language["presets"]["presets"].items():
        if "name" in row:
            terms = row.get("terms", [])
            words = terms.split(",") if isinstance(terms, str) else terms
            presets[key] = (row["name"], [word.strip() for word in words if word.strip()])
    return presets


def _others(
    query: str, name: str, presets: Presets, siblings: Sequence[str], language: str, rng: random.Random
) -> Iterator[Row]:
    """Yield a kind of the same branch and one of any."""
    if siblings:
        yield Row(query, presets[rng.choice(siblings)][0], 1, "osm_preset", language)
    stranger = presets[rng.choice(list(presets))]
    if stranger[0] != name and query not in stranger[1]:
        yield Row(query, stranger[0], 0, "osm_preset", language)


def _crossed(one: Presets, other: Presets, languages: str, rng: random.Random) -> Iterator[Row]:
    """Yield names in one language with the names in another, and with a stranger's."""
    keys = list(other)
    for key, (name, _) in one.items():
        if key in other:
            yield Row(name, other[key][0], 4, "osm_preset_cross", languages)
            yield Row(name, other[rng.choice(keys)][0], 0, "osm_preset_cross", languages)


def cldr(raw: Path, rng: random.Random) -> Iterator[Row]:
    """Yield keywords with the short names of emoji and symbols, in three languages and across them."""
    names = dict[str, dict[str, str]]()
    for language in LANGUAGES:
        content = json.loads((raw / f"{language}.json").read_text(encoding="utf-8"))
        rows = content["annotations"]["annotations"]
        names[language] = {sign: row["tts"][0] for sign, row in rows.items() if row.get("tts")}
        yield from _keywords(language, rows, names[language], rng)
    for one, other in product(LANGUAGES, LANGUAGES):
        if one != other:
            signs = [sign for sign in names[one] if sign in names[other]]
            for sign in signs:
                yield Row(names[one][sign], names[other][sign], 4, "cldr_cross", f"{one}-{other}")
                stranger = names[other][rng.choice(signs)]
                yield Row(names[one][sign], stranger, 0, "cldr_cross", f"{one}-{other}")


def _keywords(
    language: str,
    rows: Mapping[str, Mapping[str, Sequence[str]]],
    names: Mapping[str, str],
    rng: random.Random,
) -> Iterator[Row]:
    with_keyword = defaultdict[str, list[str]](list)
    for sign in names:
        for keyword in rows[sign].get("default", ()):
            with_keyword[keyword].append(sign)
    signs = list(names)
    for sign in signs:
        keywords = rows[sign].get("default", ())
        related = sorted({other for keyword in keywords for other in with_keyword[keyword]} - {sign})
        for keyword in keywords:
            yield Row(keyword, names[sign], 4 if keyword == names[sign] else 3, "cldr", language)
            apart = [other for other in related if other not in with_keyword[keyword]]
            if apart:
                yield Row(keyword, names[rng.choice(apart)], 1, "cldr", language)
            stranger = rng.choice(signs)
            if stranger not in with_keyword[keyword] and stranger not in related:
                yield Row(keyword, names[stranger], 0, "cldr", language)


MAKERS: Mapping[str, Callable[[Path, random.Random], Iterator[Row]]] = {
    "sae4k": sae4k,
    "stylekqc": stylekqc,
    "klue_sts_train": klue,
    "openbg_slice": openbg,
    "dureader_demo": dureader,
    "osm_presets": osm,
    "cldr_annotations": cldr,
}
"""By the set's directory under `multilingual`."""


def make_lists(name: str, raw: Path) -> bytes:
    """Return a set's lines of JSON. raw: the directory of its files. The same files give the same lines."""
    rng = random.Random(f"lists/{name}")
    rows = dict.fromkeys(MAKERS[name](raw, rng))
    return "".join(f"{json.dumps(row._asdict(), ensure_ascii=False)}\n" for row in rows).encode()

"""Draws lists that say what a title lacks, and lists of stuffed titles, from real and written ones.

"Without" turns the order of titles round: the one that names the feature is wrong if it has it, and best if
it says that it has not. So a list holds the same title with the feature, without it, and silent on it.
Sellers stuff titles: what was asked for stands among words that say nothing. data/title_words.yaml holds
the features, the forms of queries and titles, and those words.
"""

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml

from default_model.groups import COMMON, Example, Group, ranked_example

TITLE_WORDS = Path(__file__).resolve().parents[1] / "data" / "title_words.yaml"

Words = Mapping[str, Sequence[str]]
"""What data/title_words.yaml holds for one language."""

AS_ASKED = 4.0
SILENT = 2.9
CONTRARY = 0.9
STRANGER = 0.4
NOTHING = 0.0
"""Grades: a SILENT title does not say; a STRANGER is another thing that agrees on the feature."""

OWN_WORD = 0.4
"""Share of the lists whose feature is a word of the title itself."""

POSITIVE = 0.25
"""Share of the lists that ask for the feature: the title that lacks it is then the wrong one."""

LONGEST_THING = 3
"""Words of the title in a query, beside the feature."""

WHOLE_TITLE = 14
"""Words of an English title; the rest is cut off, so that what is added at the end is read."""

FEWEST_FILLERS = 2
MOST_FILLERS = 7

WITHOUT = {
    "en": re.compile(r"without|\bno\b|\bnot\b|\bnon\b|\w+less\b|\bfree\b|\bun\w+ed\b|plain"),
    "ko": re.compile(r"없는|없이|안 |않|(^|[ /])무(?!기)[가-힣]|제로|프리|말고|아닌|뺀|빼고|제외"),
    "zh": re.compile(r"无|不(?![锈粘尿])|免|没|零(?!下)|0(?=[糖咖添硅脂卡])"),
}
"""Queries that ask for something without something."""


@cache
def read_title_words(language: str) -> Words:
    """Return the features, forms and fillers of a language."""
    words: Words = yaml.safe_load(TITLE_WORDS.read_text(encoding="utf-8"))[language]
    return {name: [str(text) for text in texts] for name, texts in words.items()}


class NegatedTitles:
    """Titles of one language with a feature, without it, and silent on it.

    words_of: returns a title's words in order. without: queries and titles that are not drawn.
    """

    def __init__(
        self,
        titles: Sequence[str],
        language: str,
        words_of: Callable[[str], list[str]],
        *,
        without: Collection[str] = (),
    ) -> None:
        self._language = language
        self._words_of = words_of
        self._words = read_title_words(language)
        self._without = {text.lower() for text in without}
        self._titles = [title for title in sorted(set(titles)) if title.lower() not in self._without]

    def group(self, rng: random.Random) -> Group:
        """Draw a title and a feature; return what was asked for, then what is not."""
        query = ""
        title = ""
        while not query or {query.lower(), title.lower()} & self._without:
            whole, stranger, other = rng.sample(self._titles, 3)
            title, feature, present = self._drawn(self._cut(whole), rng)
            asks_for_it = rng.random() < POSITIVE
            query = self._query(title, feature, "wanted" if asks_for_it else "asked", rng)
        absent = self._with_feature(title, feature, "absent", rng)
        way = "present" if asks_for_it else "absent"
        agreeing = self._with_feature(self._cut(stranger), feature, way, rng)
        return [
            ranked_example(query, present if asks_for_it else absent, AS_ASKED),
            ranked_example(query, title, SILENT),
            ranked_example(query, absent if asks_for_it else present, CONTRARY),
            ranked_example(query, agreeing, STRANGER),
            ranked_example(query, other, NOTHING),
        ]

    def _query(self, title: str, feature: str, way: str, rng: random.Random) -> str:
        """Return a query of words in a row of the title, and the feature; empty if no word can be asked."""
        words = [word for word in self._words_of(title) if self._can_be_asked(word, feature)]
        if not words:
            return ""
        count = min(len(words), rng.randint(1, LONGEST_THING))
        first = rng.randint(0, len(words) - count)
        separator = "" if self._language == "zh" and rng.random() < 0.5 else " "
        thing = separator.join(words[first : first + count])
        return rng.choice(self._words[way]).format(thing=thing, feature=feature)

    def _drawn(self, title: str, rng: random.Random) -> tuple[str, str, str]:
        """Return the title silent on a feature, the feature, and the title that has it."""
        if rng.random() < OWN_WORD:
            words = [word for word in self._words_of(title) if self._can_be_asked(word, "")]
            if len(words) > 2:
                feature = rng.choice(words[1:])  # the first one is mostly a brand
                silent = re.sub(r"\s+", " ", re.sub(re.escape(feature), "", title, flags=re.IGNORECASE))
                return silent.strip(" ,"), feature, title
        feature = rng.choice([feature for feature in self._words["features"] if feature not in title.lower()])
        return title, feature, self._with_feature(title, feature, "present", rng)

    def _with_feature(self, title: str, feature: str, way: str, rng: random.Random) -> str:
        form = rng.choice(self._words[way])
        return form.format(title=title, feature=feature, Feature=feature.capitalize())

    def _cut(self, title: str) -> str:
        """Return the beginning of a title: English ones are long."""
        return " ".join(title.split()[:WHOLE_TITLE]).strip(" ,-")

    def _can_be_asked(self, word: str, feature: str) -> bool:
        shortest = 3 if self._language == "en" else 2
        said = word.lower() == feature.lower()
        return len(word) >= shortest and not word.isdigit() and word not in COMMON and not said


class StuffedLists:
    """The lists of another drawer, with fillers around each title."""

    def __init__(self, draw: Callable[[random.Random], Group], language: str) -> None:
        self._draw = draw
        self._language = language
        self._fillers = read_title_words(language)["fillers"]

    def group(self, rng: random.Random) -> Group:
        """Draw a list; all its titles are stuffed, about as much."""
        group = self._draw(rng)
        count = rng.randint(FEWEST_FILLERS, MOST_FILLERS)
        return [self._stuffed(example, count, rng) for example in group]

    def _stuffed(self, example: Example, count: int, rng: random.Random) -> Example:
        fillers = rng.sample(self._fillers, max(1, count + rng.randint(-1, 1)))
        before = rng.randint(0, min(len(fillers), 3))
        parts = [*fillers[:before], example.title, *fillers[before:]]
        if self._language == "zh":
            text = "".join(parts) if rng.random() < 0.6 else " ".join(parts)
            if rng.random() < 0.5:
                text = text.replace(" ", "")
            return example._replace(title=text)
        return example._replace(title=" ".join(parts))

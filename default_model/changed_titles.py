"""Draws minimal pairs of real titles: one attribute or number is changed, or the attribute is left out.

The attributes are those of data/attributes.yaml, as far as titles name them: "wireless" becomes "wired", 女士
becomes 男士. The query names the attribute and other words of the title.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import yaml

from default_model.attributes import ATTRIBUTES, LANGUAGES, OTHER_VALUE, UNSAID, Forms, axis_values
from default_model.groups import COMMON, Example, Group, ranked_example
from headroom.models.quality.labelled import LabelledPair

Splitter = Callable[[str], list[str]]
"""Returns the words of a title in order."""

BEST = 4

LONGEST_QUERY = 4
"""Words of a query, the attribute included."""

_NUMBER = re.compile(r"(?<![A-Za-z0-9.,*-])(\d{1,5})(?![0-9.,*-])")
"""A whole number that is no part of a code, a range or a decimal number."""


class Attribute(NamedTuple):
    """An attribute that a title names. text: its words in the title. others: what can stand there instead."""

    text: str
    others: Sequence[str]


class ChangedTitles:
    """Minimal pairs of the titles of one language."""

    def __init__(self, titles: Sequence[str], language: str, words_of: Splitter) -> None:
        self._language = language
        self._words_of = words_of
        self._titles = sorted(set(titles))
        self._axes = [_usable(values) for values in _axes(language)]

    def group(self, rng: random.Random) -> Group:
        """Draw a title; return it, changed twice, without the attribute, and another title."""
        found: list[Attribute] = []
        while not found:
            title = rng.choice(self._titles)
            found = self._found(title)
        attribute = rng.choice(found)
        unsaid = self._replaced(title, attribute.text, "")
        words = [word for word in self._words_of(unsaid) if self._can_be_asked(word)]
        asked = rng.sample(words, min(len(words), rng.randint(1, LONGEST_QUERY - 1)))
        asked.insert(rng.randint(0, len(asked)), attribute.text)
        separator = "" if self._language == "zh" and rng.random() < 0.5 else " "
        query = separator.join(asked)
        changed = rng.sample(list(attribute.others), min(2, len(attribute.others)))
        group = [ranked_example(query, title, 4.0)]
        group += [
            ranked_example(query, self._replaced(title, attribute.text, other), OTHER_VALUE)
            for other in changed
        ]
        group.append(ranked_example(query, unsaid, UNSAID))
        return [*group, ranked_example(query, rng.choice(self._titles), 0.0)]

    def _can_be_asked(self, word: str) -> bool:
        shortest = 3 if self._language == "en" else 2
        return len(word) >= shortest and not word.isdigit() and word not in COMMON

    def _found(self, title: str) -> list[Attribute]:
        """Return the attributes that a title names with one value, and its first number."""
        found = list[Attribute]()
        for values in self._axes:
            named = [value for value in values if any(self._pattern(form).search(title) for form in value)]
            if len(named) != 1 or len(values) < 2:
                continue
            form = max((form for form in named[0] if self._pattern(form).search(title)), key=len)
            if form in {attribute.text for attribute in found}:  # black is a colour before it is a wood
                continue
            at = named[0].index(form)
            others = [value[min(at, len(value) - 1)] for value in values if value is not named[0]]
            found.append(Attribute(form, others))
        if number := _NUMBER.search(title):
            value = int(number[1])
            numbers = sorted({value + 1, 2 * value, value + 5, max(value // 2, 1)} - {value})
            found.append(Attribute(number[1], [str(other) for other in numbers]))
        return found

    def _pattern(self, form: str) -> re.Pattern[str]:
        if form.isdigit():
            return re.compile(rf"(?<!\d){form}(?!\d)")
        bounds = r"\b" if self._language == "en" else ""
        return re.compile(f"{bounds}{re.escape(form)}{bounds}", re.IGNORECASE)

    def _replaced(self, title: str, text: str, other: str) -> str:
        changed = self._pattern(text).sub(lambda _: other, title)
        return re.sub(r"\s+", " ", changed).strip()


def _axes(language: str) -> list[list[Forms]]:
    """Return the values of each axis that is not a number: numbers are found in the title itself."""
    raw = yaml.safe_load(ATTRIBUTES.read_text(encoding="utf-8"))
    at = LANGUAGES.index(language)
    return [axis_values(axis, at) for axis in raw["axes"].values() if isinstance(axis, list)]


def _usable(values: Sequence[Forms]) -> list[Forms]:
    """Return the values with the forms that stand in a title alone; those of one sign say too little."""
    usable = [tuple(form for form in value if not form.startswith("-") and len(form) > 1) for value in values]
    return [value for value in usable if value]


class ShortTitles:
    """The beginnings of real titles, mostly a brand and a model, with the grades that the whole titles have.

    A title such as "Logitech M185" names no noun, and is a normal title.
    """

    def __init__(self, lists: Sequence[Sequence[LabelledPair]], words_of: Splitter) -> None:
        self._words_of = words_of
        self._lists = [pairs for pairs in lists if any(pair.grade == BEST for pair in pairs)]

    def group(self, rng: random.Random) -> Group:
        """Draw a query; return the beginnings of a best title, of worse ones, and of strangers."""
        pairs = rng.choice(self._lists)
        best = rng.choice([pair for pair in pairs if pair.grade == BEST])
        worse = [pair for pair in pairs if pair.grade < BEST]
        others = rng.sample(worse, min(2, len(worse)))
        group = [self._example(pair, pair.grade, rng) for pair in (best, *others)]
        for _ in range(2):
            stranger = replace(rng.choice(rng.choice(self._lists)), query=best.query)
            if stranger.title not in {pair.title for pair in pairs}:
                group.append(self._example(stranger, 0, rng))
        return group

    def _example(self, pair: LabelledPair, grade: int, rng: random.Random) -> Example:
        words = self._words_of(pair.title)[: rng.randint(2, 5)]
        return ranked_example(pair.query, beginning(pair.title, words), grade)


def beginning(title: str, words: Sequence[str]) -> str:
    """Return a title up to the end of these words, its first ones."""
    end = 0
    for word in words:
        at = title.lower().find(word.lower(), end)
        end = end if at < 0 else at + len(word)
    return title[:end] or title

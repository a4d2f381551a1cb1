"""Draws lists in which one title contradicts the query in one thing, and one says the same in other words.

What is changed in a real title that fits its query is an attribute of data/differences.yaml, a number or a
model. The changed title is only partly what was asked for (grade 2), whatever else it shares with the query;
the same fact in other words, and facts that the query does not name, cost nothing. Two real titles that
differ in one word are pairs of the same kind. Such grades are no person's; the model's opinion of these pairs
is not kept.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from default_model.differences import (
    Axis,
    converted,
    other_model,
    other_numbers,
    pattern_of,
    read_differences,
    text_of,
    unit_patterns,
    written,
)
from default_model.groups import COMMON, Group, taught_example

FITS = 4.0
UNSAID = 3.2
OTHER_VALUE = 2.0
STRANGER = 0.0
"""Grades of titles, from one that has all that was asked for to one that has nothing of it."""

LONGEST_TITLE = {"en": 16, "ko": 12, "zh": 60}
"""Words of a title, characters in Chinese; the rest is cut off, so that what is changed is read."""

ADDED = {"en": 0.2, "ko": 0.5, "zh": 0.4}
"""Share of the titles that what is asked for is added to: few short titles name an attribute themselves."""

_MODEL = re.compile(r"(?<![\w.-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z]{1,5}-?\d[A-Za-z0-9-]{1,9}(?![\w])")

Splitter = Callable[[str], list[str]]
"""Returns the words of a title in order."""


class Fitting(NamedTuple):
    """A real title and the queries that it fits."""

    queries: Sequence[str]
    title: str


class Change(NamedTuple):
    """What can be changed in a title. asked: ways to ask for it. same, others: titles that say the same and
    something else. unsaid: the title without it, or empty. title: the one that fits, if it is not the real
    one."""

    asked: Sequence[str]
    same: Sequence[str]
    others: Sequence[str]
    unsaid: str
    title: str = ""


class ContradictedTitles:
    """Real titles of one language that fit a query, and the same titles with one thing changed.

    without: queries and titles that are not drawn.
    """

    def __init__(self, pairs: Sequence[Fitting], language: str, *, without: Collection[str] = ()) -> None:
        self._language = language
        self._without = {text.lower() for text in without}
        self._pairs = [pair for pair in pairs if pair.title.lower() not in self._without]
        self._axes = [_findable(axis, language) for axis in read_differences(language).axes]
        self._units = unit_patterns(language)

    def group(self, rng: random.Random) -> Group:
        """Draw a title; return it, in other words, contradicting the query, silent, and another title."""
        while True:
            pair = rng.choice(self._pairs)
            title = _cut(pair.title, self._language)
            base = rng.choice(pair.queries)
            changes = self._attributes(base, title, rng)
            if rng.random() < ADDED[self._language]:
                changes = self._added(base, title, rng)
            elif not changes or rng.random() < 0.3:
                changes += self._numbers(base, title, rng)
            if changes:
                change = rng.choice(changes)
                query = rng.choice(change.asked)
                if query.lower() not in self._without:
                    return self._graded(query, change.title or title, change, rng)

    def _graded(self, query: str, title: str, change: Change, rng: random.Random) -> Group:
        group = [taught_example(query, title, FITS)]
        if change.same:
            group.append(taught_example(query, rng.choice(change.same), FITS))
        elif rng.random() < 0.5:
            group.append(taught_example(query, self._with_more(query, title, rng), FITS))
        count = min(len(change.others), rng.choice((1, 2)))
        group += [
            taught_example(query, other, OTHER_VALUE) for other in rng.sample(list(change.others), count)
        ]
        if change.unsaid and rng.random() < 0.5:
            group.append(taught_example(query, change.unsaid, UNSAID))
        if rng.random() < 0.3:
            group.append(taught_example(query, _cut(rng.choice(self._pairs).title, self._language), STRANGER))
        return group

    def _with_more(self, query: str, title: str, rng: random.Random) -> str:
        """Return the title with a value of an axis that neither it nor the query names."""
        silent = self._silent(f"{query} {title}")
        form, _ = rng.choice(rng.choice(rng.choice(silent)))
        return f"{title}, {text_of(form)}" if rng.random() < 0.5 else f"{text_of(form)} {title}"

    def _silent(self, text: str) -> list[list[list[tuple[str, re.Pattern[str]]]]]:
        """Return the axes that a text names no value of."""
        return [
            axis
            for axis in self._axes
            if len(axis) > 1 and not any(pattern.search(text) for value in axis for _, pattern in value)
        ]

    def _added(self, base: str, title: str, rng: random.Random) -> list[Change]:
        """Return the change of an attribute that is added to the title, at one position."""
        value, *others = rng.sample(axis := rng.choice(self._silent(f"{base} {title}")), len(axis))
        words = title.split()
        position = rng.choice((0, len(words), rng.randint(0, len(words))))

        def said(form: str) -> str:
            text = text_of(form)
            text = text.title() if self._language == "en" and text.islower() else text
            return " ".join([*words[:position], text, *words[position:]])

        forms = [form for form, _ in value]
        first = rng.choice(forms)
        return [
            Change(
                asked=[self._asked(base, form, rng) for form in forms],
                same=[said(form) for form in forms if form != first],
                others=[said(rng.choice(other)[0]) for other in others],
                unsaid=title,
                title=said(first),
            )
        ]

    def _attributes(self, base: str, title: str, rng: random.Random) -> list[Change]:
        """Return the changes of attributes that the title names with one value."""
        changes = []
        for axis in self._axes:
            named = [value for value in axis if any(pattern.search(title) for _, pattern in value)]
            if len(named) != 1 or len(axis) < 2:
                continue
            value = named[0]
            form, pattern = max(
                ((form, pattern) for form, pattern in value if pattern.search(title)),
                key=lambda found: len(found[0]),
            )
            asked_values = [one for one in axis if any(pattern.search(base) for _, pattern in one)]
            if asked_values and asked_values != [value]:
                continue
            ways = [base] if asked_values else [self._asked(base, one, rng) for one, _ in value]
            others = [rng.choice(other)[0] for other in axis if other is not value]
            changes.append(
                Change(
                    asked=ways,
                    same=[_replaced(title, pattern, text_of(one)) for one, _ in value if one != form],
                    others=[_replaced(title, pattern, text_of(other)) for other in others],
                    unsaid="" if asked_values and base == title else _replaced(title, pattern, ""),
                )
            )
        return changes

    def _numbers(self, base: str, title: str, rng: random.Random) -> list[Change]:
        """Return the changes of the title's numbers with a unit, and of its first model number."""
        changes = []
        if not re.search(r"\d", base):
            for pattern, units in self._units:
                found = list(pattern.finditer(title))
                if len(found) == 1:
                    changes.append(self._number(base, title, found[0], units, rng))
        if model := _MODEL.search(title):
            changes.append(_other_model(base, title, model[0], rng))
        return changes

    def _number(
        self, base: str, title: str, found: re.Match[str], units: Sequence[str], rng: random.Random
    ) -> Change:
        """Return the change of a number. units: the ways to write its unit."""
        number = found[1]
        before = title[: found.start()]
        after = title[found.end() :]
        as_written = found[0][len(number) :]
        separators = ("", " ", "-") if self._language == "en" else ("", " ")
        unit_asked, unit_said = rng.choices(units, k=2)
        asked = f"{number}{_separator(unit_asked, separators, rng)}{unit_asked}"
        said = f"{number}{_separator(unit_said, separators, rng)}{unit_said}"
        return Change(
            asked=[self._asked(base, asked, rng)],
            same=[f"{before}{text}{after}" for text in (said, *converted(number, units[0], self._language))],
            others=[f"{before}{other}{as_written}{after}" for other in other_numbers(number)],
            unsaid=re.sub(r"\s+", " ", before + after).strip(" ,"),
        )

    def _asked(self, base: str, form: str, rng: random.Random) -> str:
        separator = "" if self._language == "zh" and rng.random() < 0.6 else " "
        if rng.random() < (0.3 if self._language == "en" else 0.25):
            return f"{base}{separator}{text_of(form)}"
        return written(form, base, separator)


def _separator(unit: str, separators: Sequence[str], rng: random.Random) -> str:
    """Return what stands between a number and its unit."""
    return "" if unit == '"' else rng.choice(separators)


def _other_model(base: str, title: str, model: str, rng: random.Random) -> Change:
    """Return the change of a model number."""
    brand = title.split()[0]
    asked = [f"{model} {base}", f"{base} {model}", f"{brand} {model}", model]
    without_hyphen = model.replace("-", "")
    others = {title.replace(model, other_model(model, digit)) for digit in (1, 2, 3, 5)}
    return Change(
        asked=[text.lower() if rng.random() < 0.6 else text for text in asked],
        same=[title.replace(model, without_hyphen)] if without_hyphen != model else [],
        others=sorted(others - {title}),
        unsaid="",
    )


def _findable(axis: Axis, language: str) -> list[list[tuple[str, re.Pattern[str]]]]:
    """Return an axis's values as forms with patterns; forms of one sign are found by chance and left out."""
    values = [[form for form in value if len(text_of(form)) > 1] for value in axis]
    return [[(form, pattern_of(form, language)) for form in value] for value in values if value]


def _replaced(title: str, pattern: re.Pattern[str], text: str) -> str:
    def like(match: re.Match[str]) -> str:
        return text.title() if match[0][:1].isupper() and text.islower() else text

    return re.sub(r"\s+", " ", pattern.sub(like, title)).strip(" ,")


def _cut(title: str, language: str) -> str:
    """Return the beginning of a title."""
    longest = LONGEST_TITLE[language]
    if language == "zh":
        return title[:longest]
    return " ".join(title.split()[:longest]).strip(" ,-")


class OneWordApart:
    """Real English titles that differ in one word, which the query names.

    words_of: returns a title's words in order.
    """

    def __init__(self, titles: Sequence[str], words_of: Splitter, *, without: Collection[str] = ()) -> None:
        left_out = {text.lower() for text in without}
        rests = defaultdict[tuple[str, ...], dict[str, tuple[str, int]]](dict)
        self._words: dict[str, list[str]] = {}
        for title in sorted(set(titles)):
            cut = _cut(title, "en")
            words = words_of(cut)
            if len(words) < 3 or title.lower() in left_out:
                continue
            self._words[cut] = words
            for index, word in enumerate(words):
                rest = (str(index), *words[:index], *words[index + 1 :])
                rests[rest].setdefault(word.lower(), (cut, index))
        self._pairs = [
            list(found.values())
            for found in rests.values()
            if len(found) > 1 and any(self._can_be_asked(word) for word in found)
        ]

    def __len__(self) -> int:
        return len(self._pairs)

    def group(self, rng: random.Random) -> Group:
        """Draw titles that differ in one word; ask for one of these words and others of the title."""
        while True:
            found = rng.choice(self._pairs)
            title, index = rng.choice(found)
            words = self._words[title]
            if self._can_be_asked(words[index]):
                break
        others = [word for at, word in enumerate(words) if at != index and self._can_be_asked(word)]
        chosen = rng.sample(others, min(len(others), rng.randint(1, 3)))
        kept = {words[index], *chosen}
        asked = list(dict.fromkeys(word for word in words if word in kept))
        query = " ".join(asked)
        query = query.lower() if rng.random() < 0.7 else query
        contrary = [text for text, _ in found if text != title]
        group = [taught_example(query, title, FITS)]
        group += [
            taught_example(query, text, OTHER_VALUE) for text in rng.sample(contrary, min(2, len(contrary)))
        ]
        return group

    def _can_be_asked(self, word: str) -> bool:
        return (len(word) > 1 or word.isdigit()) and word.lower() not in COMMON

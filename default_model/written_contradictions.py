"""Draws lists of made-up titles in which one contradicts the query.

They hold kinds that are alike, homonyms, and things by other names, all of data/differences.yaml.
"""

import random
import re
from collections.abc import Callable, Collection

from default_model.contradictions import FITS, OTHER_VALUE, STRANGER, UNSAID
from default_model.differences import Differences, read_differences, written
from default_model.groups import Group, taught_example

OTHER_KIND = 1.0
HOMONYM = 0.5
"""Grades of something that is like what was asked for, and of something that shares a word with it."""


class WrittenContradictions:
    """Things that are alike, homonyms, and things by other names, in one language; titles are made up."""

    def __init__(self, language: str, *, without: Collection[str] = ()) -> None:
        self._language = language
        self._lists: Differences = read_differences(language)
        self._without = {text.lower() for text in without}

    def group(self, rng: random.Random) -> Group:
        """Draw two kinds that are alike, a homonym, or a thing by two names."""
        while True:
            way = rng.random()
            group = self._homonym(rng) if way < 0.25 else self._kinds(rng) if way < 0.6 else self._same(rng)
            if not {text.lower() for one in group for text in (one.query, one.title)} & self._without:
                return group

    def _homonym(self, rng: random.Random) -> Group:
        query, meant, other = rng.choice(self._lists.homonyms)
        stranger = rng.choice(self._lists.homonyms)[1]
        group = [taught_example(query, meant, FITS), taught_example(query, other, HOMONYM)]
        return [*group, taught_example(query, stranger, STRANGER)] if stranger != meant else group

    def _kinds(self, rng: random.Random) -> Group:
        kinds = rng.sample(list(rng.choice(self._lists.kinds)), 2)
        words = self._around(rng)
        form = rng.choice(rng.choice(rng.choice(self._lists.axes))) if rng.random() < 0.5 else ""
        query = self._joined(form, kinds[0], rng)
        plain = self._around(rng)(self._joined(form, kinds[0], rng))
        return [
            taught_example(query, words(self._joined(form, kinds[0], rng)), FITS),
            taught_example(query, plain, FITS),
            taught_example(query, words(self._joined(form, kinds[1], rng)), OTHER_KIND),
        ]

    def _same(self, rng: random.Random) -> Group:
        """Ask for a thing with a value; titles have other words for both, or another value."""
        names, other = rng.sample(list(self._lists.same), 2)
        asked, said = rng.sample(list(names), 2) if len(names) > 1 else (names[0], names[0])
        axis = rng.choice(self._lists.axes)
        value, contrary = rng.sample(list(axis), 2)
        words = self._around(rng)
        query = self._joined(rng.choice(value), asked, rng)
        same = rng.sample(list(value), min(2, len(value)))
        group = [taught_example(query, words(self._joined(form, said, rng)), FITS) for form in same]
        group.append(taught_example(query, words(self._joined(rng.choice(contrary), said, rng)), OTHER_VALUE))
        group.append(taught_example(query, words(said), UNSAID))
        if rng.random() < 0.4:
            group.append(
                taught_example(query, words(self._joined(rng.choice(value), rng.choice(other), rng)), HOMONYM)
            )
        return group

    def _joined(self, form: str, noun: str, rng: random.Random) -> str:
        if not form:
            return noun
        separator = "" if self._language == "zh" and rng.random() < 0.6 else " "
        return written(form, noun, separator)

    def _around(self, rng: random.Random) -> Callable[[str], str]:
        """Return a function that puts what shops write around a thing's name."""
        before = rng.choice(self._lists.before)
        after = rng.choice(self._lists.after)
        capitals = rng.random() < 0.8

        def title(text: str) -> str:
            whole = re.sub(r"\s+", " ", f"{before} {text} {after}").strip()
            if self._language != "en" or not capitals:
                return whole
            return " ".join(word[:1].upper() + word[1:] for word in whole.split(" "))

        return title

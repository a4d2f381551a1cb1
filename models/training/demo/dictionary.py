"""Synonyms, hypernyms and definitions from Open English WordNet's lines "members (hypernyms): definition"."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"^([^:(]{2,120}?)(?: \(([^)]{2,120})\))?: (.{8,})$")


@dataclass(frozen=True, slots=True)
class Synset:
    """The words of one meaning, the words one step wider, and the definition."""

    members: tuple[str, ...]
    hypernyms: tuple[str, ...]
    definition: str


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Synsets, and the indices of the synsets that each word is a member of."""

    synsets: tuple[Synset, ...]
    by_member: dict[str, tuple[int, ...]]
    by_hypernym: dict[str, tuple[int, ...]]

    def words(self) -> list[str]:
        """Return every single word that is a member of a synset, sorted."""
        return sorted(word for word in self.by_member if word.isalpha())

    def nouns(self) -> set[str]:
        """Return words with a hypernym for most meanings: nouns and verbs have one, adjectives do not."""
        return {
            word
            for word, places in self.by_member.items()
            if sum(bool(self.synsets[place].hypernyms) for place in places) > len(places) / 2
        }

    def synonyms(self, word: str) -> list[str]:
        """Return the other members of the synsets of a word."""
        return [
            other
            for place in self.by_member.get(word, ())
            for other in self.synsets[place].members
            if other != word
        ]


def read_dictionary(lines: Iterable[str]) -> Dictionary:
    """Parse the text of `oewn_text`; example sentences do not match and are skipped."""
    synsets: list[Synset] = []
    by_member: defaultdict[str, list[int]] = defaultdict(list)
    by_hypernym: defaultdict[str, list[int]] = defaultdict(list)
    for line in lines:
        match = _LINE.match(line)
        if not match:
            continue
        members = tuple(word.strip().lower() for word in match[1].split(","))
        hypernyms = tuple(word.strip().lower() for word in match[2].split(",")) if match[2] else ()
        for member in members:
            by_member[member].append(len(synsets))
        for hypernym in hypernyms:
            by_hypernym[hypernym].append(len(synsets))
        synsets.append(Synset(members, hypernyms, match[3]))
    return Dictionary(
        tuple(synsets),
        {word: tuple(places) for word, places in by_member.items()},
        {word: tuple(places) for word, places in by_hypernym.items()},
    )

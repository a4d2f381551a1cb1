"""Strips Korean particles from a word: 강남역에서 (at Gangnam station) becomes 강남역.

The particles are 에서, 은/는, 이/가, 을/를, 의, 에 and 로 (으로 after a consonant). Most have one form after
a vowel and another after a consonant, which tells a particle from a verb's ending: 맛있는 keeps its 는,
because 있 ends in a consonant. Nouns that end in a particle's syllable are known by their length (도로, 회의)
or listed. There is no dictionary here, so a rare noun may still lose its end.
"""

from __future__ import annotations

from typing import NamedTuple

_FIRST, _LAST, _FINALS, _L = 0xAC00, 0xD7A3, 28, 8
"""Hangul syllables in Unicode: (code − first) % 28 is the final consonant, 0 for none, 8 for ㄹ."""

CONSONANT, VOWEL, VOWEL_OR_L, ANY = "consonant", "vowel", "vowel or ㄹ", "any"


class Particle(NamedTuple):
    """A particle, the kind of sound that it follows, and the fewest syllables of the noun before it."""

    text: str
    after: str
    syllables: int


PARTICLES = (  # longer ones first
    Particle("에서", ANY, 1),
    Particle("으로", CONSONANT, 1),
    Particle("은", CONSONANT, 1),
    Particle("는", VOWEL, 1),
    Particle("을", CONSONANT, 1),
    Particle("를", VOWEL, 1),
    Particle("에", ANY, 1),
    Particle("이", CONSONANT, 2),
    Particle("가", VOWEL, 2),
    Particle("의", ANY, 2),
    Particle("로", VOWEL_OR_L, 2),
)

WHOLE = frozenset(
    "가는 같은 고양이 귀걸이 낮은 높은 되는 떡볶이 많은 먹을 목걸이 보는 손잡이 싶은 쉬는 어린이 "
    "옷걸이 작은 적은 좋은 지팡이 하는 호랑이".split()
)
"""Frequent words that end like a noun with a particle and are none."""


def strip_particle(word: str) -> str:
    """Return a word without its particle; a word without one as it is."""
    if word in WHOLE:
        return word
    for particle in PARTICLES:
        stem = word.removesuffix(particle.text)
        if stem != word and len(stem) >= particle.syllables and _follows(particle, stem[-1]):
            return stem
    return word


def _follows(particle: Particle, before: str) -> bool:
    """Return whether a particle may follow a character; after digits and Latin letters, whose sound is not
    written, any may."""
    if not _FIRST <= ord(before) <= _LAST:
        return before.isalnum()
    final = (ord(before) - _FIRST) % _FINALS
    if particle.after == ANY:
        return True
    if particle.after == VOWEL_OR_L:
        return final in (0, _L)
    return (final == 0) == (particle.after == VOWEL)

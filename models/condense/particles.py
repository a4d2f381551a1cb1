"""Strips Korean particles from a word: 강남역에서 (at Gangnam station) becomes 강남역.

Most particles have one form after a vowel and another after a consonant, which tells a particle from a
verb's ending: 맛있는 keeps its 는, because 있 ends in a consonant. Nouns that end in a particle's syllable
are known by their length (도로, 회의) or listed. There is no dictionary here, so a rare noun may lose its
end.
"""

from __future__ import annotations

_FIRST, _LAST, _FINALS, _L = 0xAC00, 0xD7A3, 28, 8
"""Hangul syllables in Unicode: (code − first) % 28 is the final consonant, 0 for none, 8 for ㄹ."""

CONSONANT, VOWEL, VOWEL_OR_L, ANY = "consonant", "vowel", "vowel or ㄹ", "any"

PARTICLES = (
    ("에서", ANY, 1),
    ("으로", CONSONANT, 1),
    ("은", CONSONANT, 1),
    ("는", VOWEL, 1),
    ("을", CONSONANT, 1),
    ("를", VOWEL, 1),
    ("에", ANY, 1),
    ("이", CONSONANT, 2),
    ("가", VOWEL, 2),
    ("의", ANY, 2),
    ("로", VOWEL_OR_L, 2),
)
"""Each particle, the sound that it follows and the fewest syllables of its noun; longer particles first."""

WHOLE = frozenset(
    "가는 같은 고양이 귀걸이 낮은 높은 되는 떡볶이 많은 먹을 목걸이 보는 손잡이 싶은 쉬는 어린이 "
    "옷걸이 작은 적은 좋은 지팡이 하는 호랑이".split()
)
"""Frequent words that look like a noun with a particle and are none."""


def strip_particle(word: str) -> str:
    """Return a word without its Korean particle; any other word as it is."""
    if word in WHOLE:
        return word
    for particle, after, syllables in PARTICLES:
        noun = word.removesuffix(particle)
        if noun != word and len(noun) >= syllables and _ends_in(noun[-1], after):
            return noun
    return word


def _ends_in(char: str, sound: str) -> bool:
    """Return whether a character ends in a sound; the sound of digits and Latin letters is not known."""
    if not _FIRST <= ord(char) <= _LAST:
        return char.isalnum()
    final = (ord(char) - _FIRST) % _FINALS
    if sound == VOWEL_OR_L:
        return final in (0, _L)
    return sound == ANY or (final == 0) == (sound == VOWEL)

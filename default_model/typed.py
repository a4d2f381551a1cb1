"""Types words as people do (misspellings, plurals, units, loose order), or as nobody does: nonsense."""

import random
import re
import string

from headroom.models.quality.lexical import stem

_KEYS_BESIDE = (  # a to z on a QWERTY keyboard
    "sqz vgn xfv sefcx wrd dgcv fhvb gjbn uok hknm jlm kop njk "
    "bhm ipl ol wa etf adwz ryg yij cgb qes zsc tuh xas"
)
_NEIGHBOURS = dict(zip(string.ascii_lowercase, _KEYS_BESIDE.split(), strict=True))
_FILLERS = ("best", "cheap", "buy", "new", "good", "top rated", "a", "the", "some", "need", "online")
_UNIT_FORMS = {
    "inch": ('"', " in", " inch", "-inch", "inch", " inches", "in", "”"),
    "ft": ("ft", " feet", " foot", "'", "-foot", " ft"),
    "oz": ("oz", " ounce", " oz", "-ounce", " ounces"),
    "gb": ("gb", " gb", " gigabyte"),
    "lb": (" lbs", "lb", " pound", " pounds"),
    "pack": (" pack", "-pack", "pk", " count", " pcs"),
    "volt": ("v", " v", " volt", "-volt", " volts"),
    "watt": ("w", " w", " watt", "-watt", " watts"),
    "tb": ("tb", " tb", " terabyte"),
    "mm": ("mm", " mm"),
    "cm": ("cm", " cm"),
    "ml": ("ml", " ml"),
    "kg": ("kg", " kg"),
    "qt": (" qt", "qt", " quart", "-quart"),
    "gallon": (" gallon", "-gallon", " gal", " gallons"),
    "mah": ("mah", " mah"),
}
_IRREGULAR = dict(
    pair.split("/")
    for pair in "knife/knives shelf/shelves bookshelf/bookshelves scarf/scarves leaf/leaves loaf/loaves "
    "half/halves mouse/mice foot/feet tooth/teeth man/men woman/women child/children".split()
)
_IRREGULAR |= {plural: singular for singular, plural in _IRREGULAR.items()}
_UNIT_OF = {
    name: unit
    for unit, forms in _UNIT_FORMS.items()
    for form in forms
    if (name := form.strip(" -")).isalpha()
}
_MEASURE = re.compile(rf"\b(\d+(?:\.\d+)?)[ -]?({'|'.join(sorted(_UNIT_OF, key=len, reverse=True))})\b")


def typed(words: list[str], rng: random.Random) -> str:
    """Return the words as somebody might type them: about half the time exactly so."""
    words = list(words)
    if rng.random() < 0.12 and len(words) > 1:
        rng.shuffle(words)
    if rng.random() < 0.2:
        place = rng.choice((rng.randrange(len(words)), len(words) - 1))  # the thing mostly comes last
        words[place] = other_number(words[place])
    if rng.random() < 0.14:
        place = rng.randrange(len(words))
        words[place] = misspelled(words[place], rng)
    if rng.random() < 0.06:
        words.insert(rng.choice((0, 0, 0, len(words))), rng.choice(_FILLERS))
    if rng.random() < 0.06 and len(words) > 1:
        place = rng.randrange(len(words) - 1)
        words[place : place + 2] = [words[place] + words[place + 1]]
    return _MEASURE.sub(lambda match: match[1] + rng.choice(_UNIT_FORMS[_UNIT_OF[match[2]]]), " ".join(words))


def other_number(word: str) -> str:
    """Return the plural of a singular noun or the singular of a plural."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if not word.isalpha() or len(word) < 4:
        return word
    if stem(word) != word:
        return stem(word)
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("x", "ch", "sh", "ss")) else "s")


def misspelled(word: str, rng: random.Random) -> str:
    """Misspell a word of five letters or more with one slip; codes and short words stay as they are."""
    if not (word.isascii() and word.isalpha()) or len(word) < 5:
        return word
    place = rng.randrange(1, len(word) - 1)
    before = word[:place]
    here = word[place]
    after = word[place + 1 :]
    kind = rng.randrange(4)
    if kind == 0:
        return before + after
    if kind == 1:
        return before + here + here + after
    if kind == 2:
        return before + after[0] + here + after[1:]
    return before + rng.choice(_NEIGHBOURS[here.lower()]) + after


def nonsense(rng: random.Random) -> str:
    """Return one to three words that nobody wrote: random letters, neighbouring keys, made-up syllables."""
    return " ".join(_nonsense_word(rng) for _ in range(rng.choice((1, 2, 2, 3))))


def _nonsense_word(rng: random.Random) -> str:
    kind = rng.choice(("letters", "keys", "syllables"))
    if kind == "letters":
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 10)))
    if kind == "syllables":
        return "".join(
            rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))
        )
    row = rng.choice(("qwertyuiop", "asdfghjkl", "zxcvbnm"))
    size = rng.randint(3, len(row) - 1)
    start = rng.randrange(len(row) - size + 1)
    run = row[start : start + size]  # there and back
    return rng.choice((run, run[::-1], run[:3] * 2, "".join(rng.choices(run, k=size))))

"""Titles of the catalogue's things: real ones, ones written for it, and ones made up."""

import random
from collections.abc import Sequence

from models.training.demo.catalogue import Catalogue, Thing

WITH_SHARE = 0.15
"""Share of the made-up titles that say what comes with the thing, which is still the thing."""


def name_of(thing: Thing, rng: random.Random) -> str:
    """Return one of the thing's names, the first more often than any other."""
    return thing.names[0] if rng.random() < 0.4 else rng.choice(thing.names)


def title_of(place: int, catalogue: Catalogue, rng: random.Random) -> str:
    """Return a title of the thing: a real product's, one written for it, or one made up."""
    thing = catalogue.things[place]
    real = catalogue.shelved.get(place, ())
    kind = rng.random()
    if real and kind < 0.4:
        return rng.choice(real)
    if kind < 0.75:
        return rng.choice(thing.titles)
    narrow = thing.kinds and rng.random() < 0.3
    return composed(rng.choice(thing.kinds) if narrow else name_of(thing, rng), thing, rng)


def title_of_line(line: str, thing: Thing, rng: random.Random) -> str:
    """Make up a title for a branded model, mostly with the thing's name."""
    return composed(
        line if rng.random() < 0.3 else f"{line} {name_of(thing, rng)}", thing, rng, branded=False
    )


def composed(
    name: str,
    thing: Thing,
    rng: random.Random,
    named: Sequence[str] = (),
    *,
    traits: bool = True,
    branded: bool = True,
) -> str:
    """Make up a title around a name: perhaps a brand, details, and what comes with it."""
    count = rng.choice((0, 0, 1, 1, 2, 3)) if traits else 0
    details = list(dict.fromkeys([*named, *rng.sample(thing.traits, min(count, len(thing.traits)))]))
    rng.shuffle(details)
    branded = branded and bool(thing.brands) and not set(named) & set(thing.brands)
    brand = rng.choice(thing.brands) if branded and rng.random() < 0.55 else ""
    split = rng.randint(0, len(details))
    front = " ".join(part for part in (brand, *details[:split], name) if part)
    if traits and rng.random() < WITH_SHARE:
        front += f" with {rng.choice(thing.goes_with)}"
    return ", ".join(titled(part, rng) for part in (front, *details[split:]))


def titled(text: str, rng: random.Random) -> str:
    """Return a text as titles are written, mostly with capitals."""
    if rng.random() < 0.15:
        return text
    return " ".join(word[:1].upper() + word[1:] for word in text.split())

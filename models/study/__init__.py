"""Head studies: which attention heads matter to a checkpoint, on anybody's labelled pairs.

Each kind of study is a module whose `run(study)` measures and makes the parts of the report. `kinds` names
them and runs one or all. `study` is what a kind is given, `page` what it returns and how that is shown.
`runner` evaluates many masks in one pass, `statistics` has the tests, and `report_files` writes the files.
"""

from collections.abc import Iterable
from typing import Literal

Kind = Literal["single", "random", "layers", "roles", "similarity", "initialisation", "search", "all"]
"""The kinds of studies; `all` runs each of them."""

Part = Literal["encoder", "cross"]
"""Whose heads `single` switches off: the encoder's, or those of the query generator's encoder–decoder
attention."""

TAKES: dict[str, tuple[Kind, ...]] = {
    "margin": ("single", "random", "layers", "search", "all"),
    "part": ("single",),
    "holdout": ("search", "all"),
    "what": ("search",),
    "speedup": ("search",),
    "seeds": ("initialisation", "all"),
    "steps": ("initialisation", "all"),
}
"""The kinds that take an option. Every kind takes the options that are not named here."""

REMOVABLE = ("heads", "units", "layers")
"""What `search` may remove from a network."""


def removable_parts(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return what may go, in a fixed order. names: one text may name several, as in "heads,units".

    Raises ValueError for none, or a name that does not exist.
    """
    texts = [names] if isinstance(names, str) else names
    given = [name.strip() for text in texts for name in text.split(",")]
    valid = ", ".join(REMOVABLE)
    if not given:
        raise ValueError(f"none given; valid are {valid}")
    if unknown := [name for name in given if name not in REMOVABLE]:
        raise ValueError(f"{unknown[0]!r} is none of {valid}")
    return tuple(name for name in REMOVABLE if name in given)

"""Draws one list from both arms' rankings: team-draft interleaving, with ties shared.

The method is that of Radlinski, Kurup & Joachims, "How does clickthrough data reflect retrieval quality?"
(2008). While both arms' next titles are equal, that title is shown and belongs to no team. Else a round
begins: both arms pick their next title, and a coin says who picks first. A round takes two different titles,
so both teams have the same size, and the coin decides nothing but the order within a round. The coin is a
hash, so the same unit sees the same list for the same query. tests/cases/interleaving.json holds worked
cases, and docs/decisions/016-interleaving.md compares other methods.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import orjson

from headroom.models.arrays import LOWEST

CONTROL = "c"
TREATMENT = "t"
SHARED = "s"
"""The teams of titles: who picked it, or `s` if both arms' next title was the same."""

NOT_SHOWN = "-"
"""The team of a title that the list leaves out."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A list drawn from two rankings.

    order: the titles' indices, first shown first. teams: one character for each place of `order`.
    """

    order: tuple[int, ...]
    teams: str


def coins(salt: str, unit: str, query: str) -> Callable[[int], int]:
    """Return the function from a round, counted from 0, to its coin: 0 if control picks first, else 1.

    The coin is the lowest bit of the first byte of SHA-256(`"{salt}:{unit}:{query}:{round}"`), UTF-8. The
    query, which may be long, is hashed only once.
    """
    beginning = sha256(f"{salt}:{unit}:{query}:".encode())

    def flip(round_index: int) -> int:
        hashed = beginning.copy()
        hashed.update(str(round_index).encode())
        return hashed.digest()[0] & 1

    return flip


def own_order(raw_scores: Sequence[float]) -> list[int]:
    """Return an arm's ranking of the titles' indices: best first, ties by index."""
    return sorted(range(len(raw_scores)), key=lambda index: -raw_scores[index])


def draw(control: Sequence[int], treatment: Sequence[int], flip: Callable[[int], int]) -> Draw:
    """Return the list drawn from two rankings of the same titles, in linear time.

    flip: returns the coin of a round, as that of `coins` does.
    """
    order: list[int] = []
    teams: list[str] = []
    taken: set[int] = set()
    rounds = 0

    def rest(ranking: Sequence[int]) -> Iterator[int]:
        return (title for title in ranking if title not in taken)

    for control_title, treatment_title in zip(rest(control), rest(treatment), strict=True):
        if control_title == treatment_title:
            picks = [(control_title, SHARED)]
        else:
            picks = [(control_title, CONTROL), (treatment_title, TREATMENT)]
            if flip(rounds) == 1:
                picks.reverse()
            rounds += 1
        for title, team in picks:
            order.append(title)
            teams.append(team)
            taken.add(title)
    return Draw(tuple(order), "".join(teams))


def falling(scores: Sequence[float | np.float32], floor: float = LOWEST) -> list[float | np.float32]:
    """Return the scores along an order, lowered just as far as needed for each to be below the one before.

    They fall strictly as float32 too, so a client that sorts by score shows the order. A score that needs no
    change is returned as it came; the others become float32.

    floor: no score falls below this; scores that would are stacked on it, one float32 apart.
    """
    given = np.asarray(scores, np.float32)
    steps = np.arange(len(given))
    # Ordinals number all float32 in their order, so k titles after a score the limit is its ordinal less k.
    ordinals = _ordinals(given)
    lowered = np.minimum.accumulate(ordinals + steps) - steps
    lowered = np.maximum(lowered, _ordinals(np.array([floor], np.float32)) + steps[::-1])
    is_kept = (lowered == ordinals).tolist()
    replaced = _from_ordinals(lowered)
    return [old if kept else new for old, new, kept in zip(scores, replaced, is_kept, strict=True)]


def _ordinals(values: np.ndarray) -> np.ndarray:
    """Return the positions of float32 numbers in their order, int64; 0 for both zeros."""
    bits = np.ascontiguousarray(values).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def _from_ordinals(ordinals: np.ndarray) -> np.ndarray:
    """Return the float32 numbers at these positions."""
    bits = np.where(ordinals >= 0, ordinals, -ordinals - 0x80000000)
    return bits.astype(np.int32).view(np.float32)


def impression_id(experiment: str, unit: str, query_id: str | None = None) -> str:
    """Return the id of a list shown to a unit: 32 hex digits.

    query_id: the caller's own id of the list, from which the id follows, so that a request that is sent again
        shows the same list. None: the id is random.
    """
    if query_id is None:
        return secrets.token_hex(16)
    return sha256(orjson.dumps([experiment, unit, query_id])).hexdigest()[:32]

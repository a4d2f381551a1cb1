"""Draws one list from both arms' rankings: team-draft interleaving, with ties shared.

The method is that of Radlinski, Kurup & Joachims, "How does clickthrough data reflect retrieval quality?"
(2008). While both arms' next titles are equal, that title is shown and belongs to no team. Else a round
begins: both arms pick their next title, and a coin says who picks first. A round takes two different titles,
so both teams have the same size, and the coin decides nothing but the order within a round. The coin is a
hash, so the same unit sees the same list for the same query. tests/cases/interleaving.json holds worked
cases, and docs/decisions/016-interleaving.md compares other methods.
"""

import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from headroom.models.arrays import LOWEST

CONTROL = "c"
TREATMENT = "t"
SHARED = "s"
"""The teams of titles: who picked it, or `s` if both arms' next title was the same."""

NOT_SHOWN = "-"
"""The team of a title that the list leaves out."""

_FIRST_DIGITS = 16
_CODE_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Draw:
    """A list drawn from two rankings.

    order: the titles' indices, first shown first. teams: one character for each place of `order`.
    """

    order: tuple[int, ...]
    teams: str


def coin(salt: str, unit: str, query: str, round_index: int) -> int:
    """Return the coin of a round, counted from 0: 0 if control picks first, 1 if the treatment does.

    It is the lowest bit of the first byte of SHA-256(`"{salt}:{unit}:{query}:{round_index}"`), UTF-8.
    """
    return sha256(f"{salt}:{unit}:{query}:{round_index}".encode()).digest()[0] & 1


def coins(salt: str, unit: str, query: str) -> Callable[[int], int]:
    """Return the function from a round to its `coin`. It hashes the query, which may be long, only once."""
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

    flip: returns the coin of a round, as `coin` does.
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


def impression_id(key: str, experiment: str, unit: str, query_id: str | None = None) -> str:
    """Return the id of a list shown to a unit: 16 hex digits, then 16 of their code.

    The code is HMAC-SHA256 under the key, which no caller knows. So an id that was made up, or is another
    unit's, is told from a genuine one without the database.

    query_id: the caller's own id of the list. The first digits then follow from it, so that a click that
        names it leads to this unit's list, and to no other unit's. If it is such an id itself, it stays.
        None: they are random.
    """
    if query_id is not None and is_genuine(query_id, key, experiment, unit):
        return query_id  # the id of an earlier list, which so is used for two
    if query_id is None:
        first = secrets.token_hex(_FIRST_DIGITS // 2)
    else:
        first = _code(key, experiment, unit, sha256(query_id.encode()).hexdigest())
    return first + _code(key, experiment, unit, first)


def is_genuine(impression: str, key: str, experiment: str, unit: str) -> bool:
    """Return whether `impression_id` made this id for the unit in the experiment."""
    first = impression[:_FIRST_DIGITS]
    expected = first + _code(key, experiment, unit, first)
    return hmac.compare_digest(expected.encode(), impression.encode())


def _code(key: str, experiment: str, unit: str, part: str) -> str:
    # An experiment's name holds no line break, and neither does the last part.
    message = f"{experiment}\n{unit}\n{part}".encode()
    return hmac.new(key.encode(), message, sha256).hexdigest()[:_CODE_DIGITS]

"""What every source of training pairs shares: folds of queries, examples, and groups of them."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headroom.models.training.loop import graded_target

TEST_FOLDS = (0, 1)
VALIDATION_FOLDS = (2, 3)
TRAINING_FOLDS = (4, 5, 6, 7, 8, 9)
FOLDS = {"validation": VALIDATION_FOLDS, "test": TEST_FOLDS}

COMMON = frozenset("the and for with from of in on to by a an at or is are as its it this that".split())
"""Words that no query is made of."""


def fold_of(query: str) -> int:
    """Return a query's fold (0 to 9): SHA-1 of its lower-case UTF-8, as a big-endian number, modulo 10."""
    return int.from_bytes(hashlib.sha1(query.lower().encode()).digest()) % 10


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


class Example(NamedTuple):
    """A pair to learn from.

    target: a distribution over the grades. weight: of its ordinal loss; with 0 it is ranked alone.
    taught: the target replaces the opinion of the model that the training starts from, also where a recipe
    keeps that, and the titles of its query are at least a grade apart.
    """

    query: str
    title: str
    target: tuple[float, ...]
    weight: float = 1.0
    taught: bool = False


Group = list[Example]
"""One query with one or more titles, which stay in one batch, so that they can be ranked."""


def ranked_example(query: str, title: str, grade: float) -> Example:
    """Return an example that counts in the ranking loss alone."""
    return Example(query, title, graded_target(grade, smoothing=0.0), weight=0.0)


def taught_example(query: str, title: str, grade: float) -> Example:
    """Return an example whose grade is taught as it is."""
    return Example(query, title, graded_target(grade, smoothing=0.1), taught=True)

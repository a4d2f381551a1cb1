"""Buckets hold the units by hash, belong to arms, and are exposed by a share of traffic.

A unit's bucket is the first 8 bytes (big-endian) of SHA-256(`"{salt}:{unit}"`) modulo 10,000. Arms own
consecutive ranges of the buckets, sized by weight. `traffic` exposes the first part of every range, so
raising it moves nobody from one arm to another. tests/cases/assignment*.json are worked cases.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import accumulate

BUCKETS = 10_000

NO_BUCKET = -1
"""The bucket of exposures to an arm that the caller chose: no change of traffic or slots ends them."""

ByArm = Mapping[str, int]
"""A number of units or buckets of each arm."""

Span = tuple[int, int]
"""A range [a, b)."""


def bucket(salt: str, unit: str) -> int:
    """Return the unit's bucket under a salt, 0 to 9,999."""
    return int.from_bytes(sha256(f"{salt}:{unit}".encode()).digest()[:8], "big") % BUCKETS


def ranges(weights: Sequence[int]) -> list[Span]:
    """Return the range [a, b) of buckets of each arm, in order.

    Sizes are rounded by largest remainder; ties go to the earlier arm.

    weights: whole numbers >= 0 that are not all 0.
    """
    total = sum(weights)
    sizes = [weight * BUCKETS // total for weight in weights]
    # Sorting is stable, also in reverse.
    by_remainder = sorted(range(len(weights)), key=lambda arm: weights[arm] * BUCKETS % total, reverse=True)
    for arm in by_remainder[: BUCKETS - sum(sizes)]:
        sizes[arm] += 1
    return [(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def exposed_buckets(width: int, traffic: float) -> int:
    """Return how many buckets of a range of this width a share of traffic exposes (the first ones).

    `int(traffic * width)` is the product of two IEEE doubles, rounded down.
    """
    return int(traffic * width)


def is_exposed(position: int, span: Span, traffic: float) -> bool:
    """Return whether a bucket of the range `span` takes part at this share of traffic."""
    start, end = span
    return position - start < exposed_buckets(end - start, traffic)

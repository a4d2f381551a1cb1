"""The methods of condensing by name, and what each costs."""

from __future__ import annotations

from typing import Literal

Method = Literal["greedy", "leave_one_out", "attention", "idf"]
METHODS: tuple[Method, ...] = ("greedy", "leave_one_out", "attention", "idf")


def largest_cost(words: int, method: Method) -> int:
    """Return how many queries a method judges at most, each with all titles, for a query of so many words."""
    if method == "greedy":
        later_steps = -(-(words**2 - 1) // 3) - 1  # the sum of tried(k) for k from 2 to words - 1
        return 2 + words + max(0, later_steps)
    return 1 + 2 * words if method == "leave_one_out" else 1 + words


def tried(words: int) -> int:
    """Return how many deletions of a query of so many words greedy judges: two thirds, rounded up."""
    return -(-2 * words // 3)

"""Condenses a verbose query: the few of its words, in their order, that still find the same titles.

`words` splits a query, `search` chooses the words, and `local` runs it on a classifier in this process. The
service runs the same search on its scheduler.
"""

from typing import Literal, get_args

Method = Literal["greedy", "leave_one_out"]
"""greedy: leaves out one word after the other, each time the one whose loss is least. leave_one_out: leaves
words out in the order of the loss of each alone, which takes a fifth of the judgments for a query of 15
words."""

METHODS: tuple[Method, ...] = get_args(Method)

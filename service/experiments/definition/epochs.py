"""Epochs: units of one are counted apart, because in each of them other buckets are exposed.

An epoch ends with every action on the experiment and with every change of its traffic. A replica writes a
unit's first request of each epoch, so that the arms of an epoch are compared by all units that came in it,
whether they are new or return. Otherwise an arm that was rolled back and reinstated would have too many new
units: those of its users who came while it was away, and who are not new in the other arms.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is exposed, as its label says; the same in every replica that has read the same log.

    actions: how many the log held, so that what was reinstated is counted anew; rolled_back: arms, sorted.
    """

    actions: int = 0
    traffic: float = 1.0
    rolled_back: tuple[str, ...] = ()

    @classmethod
    def of(cls, actions: int, traffic: float, rolled_back: Collection[str]) -> Epoch:
        return cls(actions, traffic, tuple(sorted(rolled_back)))

    @classmethod
    def parse(cls, label: str) -> Epoch:
        """The epoch of a label; an empty one, of exposures without epoch, is taken as all traffic."""
        if not label:
            return cls()
        actions, traffic, rolled_back = label.split(" ")
        return cls(int(actions), float(traffic), tuple(rolled_back.split(",")) if rolled_back else ())

    @property
    def label(self) -> str:
        return f"{self.actions} {self.traffic!r} {','.join(self.rolled_back)}"

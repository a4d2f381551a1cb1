"""Epochs: times with the same exposed buckets. The units of each epoch are counted separately.

An epoch ends with every action on the experiment and with every change of its traffic. A replica writes a
unit's first request of each epoch, so that the arms of an epoch are compared by all units that came in it,
both new and returning ones. Otherwise an arm that was rolled back and reinstated would have too many new
units: the users who came while it was away would be new in this arm and known in the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epoch:
    """The exposed buckets, as a label describes them. All replicas that have read the same log agree on it.

    actions: the length of the log, so that a reinstated arm is counted anew. rolled_back: arms, sorted.
    """

    actions: int = 0
    traffic: float = 1.0
    rolled_back: tuple[str, ...] = ()

    @classmethod
    def of(cls, actions: int, traffic: float, rolled_back: Collection[str]) -> Epoch:
        """Make an epoch of arms in any order."""
        return cls(actions, traffic, tuple(sorted(rolled_back)))

    @classmethod
    def parse(cls, label: str) -> Epoch:
        """Return the epoch of a label. The empty label of exposures without epoch stands for all traffic."""
        if not label:
            return cls()
        actions, traffic, rolled_back = label.split(" ")
        return cls(int(actions), float(traffic), tuple(rolled_back.split(",")) if rolled_back else ())

    @property
    def label(self) -> str:
        """The text that stands for this epoch in the database."""
        return f"{self.actions} {self.traffic!r} {','.join(self.rolled_back)}"

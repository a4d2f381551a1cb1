"""Epochs: times with the same exposed buckets. The units of each epoch are counted separately.

An epoch ends with every action on the experiment and with every change of its traffic. A unit is counted in
the epoch in which it first comes, before its arm can have had any effect on it. Whether it comes back is an
effect of its arm, so a unit that returns is not counted again.

There is one exception. An arm that was rolled back and reinstated has too many new units: the users who came
while it was away are new in this arm and known in the others. So a unit that has only come while that arm was
away counts once more when it returns, in a count of its own, for the comparison with that arm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Epoch:
    """The exposed buckets, as a label describes them. All replicas that have read the same log agree on it.

    actions: the length of the log, so that a reinstated arm is counted anew. rolled_back: arms, sorted.
    beside: in the label of a count, an arm that is back: the count is that of returning units that had only
        come while this arm was away.
    """

    actions: int = 0
    traffic: float = 1.0
    rolled_back: tuple[str, ...] = ()
    beside: str = ""

    @classmethod
    def of(cls, actions: int, traffic: float, rolled_back: Collection[str]) -> Epoch:
        """Make an epoch of arms in any order."""
        return cls(actions, traffic, tuple(sorted(rolled_back)))

    @classmethod
    def parse(cls, label: str) -> Epoch:
        """Return the epoch of a label. The empty label of exposures without epoch stands for all traffic."""
        if not label:
            return cls()
        actions, traffic, rolled_back, *beside = label.split(" ")
        return cls(
            int(actions), float(traffic), tuple(rolled_back.split(",")) if rolled_back else (), *beside
        )

    @property
    def label(self) -> str:
        """The text that stands for this epoch in the database."""
        label = f"{self.actions} {self.traffic!r} {','.join(self.rolled_back)}"
        return f"{label} {self.beside}" if self.beside else label

    def returns(self, earlier: Collection[Epoch]) -> list[Epoch]:
        """Return the counts to which a unit adds that returns in this epoch, one per arm that is back for it.

        earlier: the epochs in which the unit came before.
        """
        away = set.intersection(*(set(epoch.rolled_back) for epoch in earlier)) if earlier else set()
        return [replace(self, beside=arm) for arm in sorted(away.difference(self.rolled_back))]


def epoch_of(label: str) -> str:
    """Return the label of the epoch in which a count's units came."""
    count = Epoch.parse(label)
    return replace(count, beside="").label if count.beside else label


@lru_cache
def counts_of(epochs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels of the counts to which a unit adds that came in these epochs, in order of time."""
    visits = [Epoch.parse(label) for label in epochs]
    returned = (count for number, epoch in enumerate(visits) for count in epoch.returns(visits[:number]))
    return (epochs[0], *(count.label for count in returned))

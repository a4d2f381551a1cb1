"""The interface through which the experiments report events, such as exposures and roll-backs."""

from __future__ import annotations

from typing import Literal

from service.experiments.storage.writer import RecordKind

ShadowFate = Literal["scored", "dropped", "failed"]


class ExperimentObserver:
    """Does nothing; override the methods of interest.

    The methods are called from several threads, and none may raise or block.
    """

    def exposed(self, experiment: str, arm: str) -> None:
        """A unit was exposed, and its exposure was handed to the writer."""

    def lost(self, kind: RecordKind, count: int) -> None:
        """Records will never reach the database: the buffer was full, or the replica ended."""

    def written(self, kind: RecordKind, count: int) -> None:
        """Records are in the database."""

    def unwritten(self, count: int) -> None:
        """So many records wait for the database. A kill would lose them."""

    def database_failed(self, reason: str) -> None:
        """A call of the database failed."""

    def watched(self, experiment: str) -> None:
        """The guardrails of an experiment are watched from now on."""

    def rolled_back(self, experiment: str, guardrail: str) -> None:
        """A guardrail took an arm back to control."""

    def fell_back(self, experiment: str, arm: str) -> None:
        """An arm's variant failed a request, and the control's variant answered it."""

    def sample_ratio(self, experiment: str, p: float) -> None:
        """The sample-ratio check gave this p-value, which is valid at any time."""

    def shadowed(self, experiment: str, fate: ShadowFate) -> None:
        """A request drawn for shadow scoring was scored, dropped, or failed.

        It is dropped under load, and if its experiment has nothing to compare any more.
        """

    def state(self, version: int) -> None:
        """The log of actions up to this number is in force."""

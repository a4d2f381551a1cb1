"""What the experiments report, for whoever counts it."""

from __future__ import annotations

from typing import Literal

RowKind = Literal["exposure", "shadow"]
Disposal = Literal["scored", "dropped", "failed"]


class Observer:
    """Override what is of interest. Called from several threads; no method may raise or block."""

    def exposed(self, experiment: str, arm: str) -> None:
        """A unit was exposed, and its event handed to the writer."""

    def lost(self, kind: RowKind, rows: int) -> None:
        """Rows will never reach the database: the buffer was full, or ended with them."""

    def written(self, kind: RowKind, rows: int) -> None:
        """Rows are in the database."""

    def unwritten(self, rows: int) -> None:
        """So many rows wait for the database: what a kill would lose now."""

    def rolled_back(self, experiment: str, guardrail: str) -> None:
        """A guardrail took an arm back to control."""

    def fell_back(self, experiment: str, arm: str) -> None:
        """An arm's variant failed a request, which the control's answered."""

    def sample_ratio(self, experiment: str, p: float) -> None:
        """The p-value of the sample-ratio check, valid at any time."""

    def shadowed(self, experiment: str, disposal: Disposal) -> None:
        """A request drawn for shadow scoring was scored, dropped for load, or failed."""

    def state(self, version: int) -> None:
        """The log of actions that is in force, by its last number."""

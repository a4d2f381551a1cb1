"""Runs the load tester for a benchmark, and keeps why a run does not count."""

from __future__ import annotations

from typing import Any

from loadtest import running
from loadtest.plan import Plan
from loadtest.running import Outcome
from loadtest.validity import invalid_because


class LoadRuns:
    """Runs plans. invalid: why runs say nothing about the server, because the client was the limit."""

    def __init__(self) -> None:
        self.invalid: list[str] = []

    def run(self, plan: Plan, name: str) -> Outcome:
        """Run the plan; `name` stands before each reason for which it is invalid."""
        outcome = running.run(plan)
        self.invalid += [f"{name}: {reason}" for reason in invalid_because(outcome)]
        return outcome


def invalid_runs(result: dict[str, Any]) -> list[str]:
    """Return why runs were invalid, from `invalid` of a result and of its parts."""
    lines = list(result.get("invalid", []))
    for name, part in result.items():
        if isinstance(part, dict):
            lines += [f"{name}, {line}" for line in part.get("invalid", [])]
    return lines


def invalid_notes(result: dict[str, Any]) -> list[str]:
    """Return the lines that say below a table which of its runs were invalid; none if all were valid."""
    lines = [f"Invalid run: {line}." for line in invalid_runs(result)]
    return ["", *lines] if lines else []

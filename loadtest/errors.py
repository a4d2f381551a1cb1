"""What can go wrong before or beside the traffic; what happens to a request is counted, never raised."""

from __future__ import annotations


class LoadTestError(Exception):
    """The load test cannot go on; the message is one sentence for the user."""


class PlanError(LoadTestError):
    """The plan is wrong: an option, a scenario file or an input file."""

"""Errors of a load test as a whole. Errors of single requests are counted and never raised."""

from __future__ import annotations


class LoadTestError(Exception):
    """The load test cannot continue; the message is one sentence for the user."""


class PlanError(LoadTestError):
    """The plan is wrong: an option, a scenario file or an input file."""

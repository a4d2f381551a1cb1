"""Checks whether a run is valid: if the client was the limit, a run says nothing about the server.

Nor does a run say anything if the server took none of its requests for a request, as without an API key.
"""

from __future__ import annotations

from loadtest.running import Outcome

MIN_SENT = 0.99
MAX_CPU = 0.9
"""Share of one core that a client process may use; above it, answers wait for the client."""

_HINTS = {
    "http_401": " (--api-key, or HEADROOM_API_KEY)",
    "http_403": " (--api-key of a key that may do this)",
    "http_404": " (is the URL right, and the --endpoint?)",
    "http_405": " (is the URL right, and the --endpoint?)",
}
"""Errors of a server that turns a request away unread, and what may be wrong."""


def invalid_because(outcome: Outcome) -> list[str]:
    """Return why the run is invalid; empty if it is valid."""
    recorder, plan = outcome.recorder, outcome.plan
    if not recorder.scheduled:
        return ["nothing was scheduled in the measured part"]
    reasons = []
    turned_away = _HINTS.keys() & recorder.errors.keys()
    if turned_away and not recorder.ok:
        kind = max(turned_away, key=lambda each: recorder.errors[each])
        reasons.append(f"no request was answered: the server says {kind.removeprefix('http_')}{_HINTS[kind]}")
    lag = recorder.send_lag.percentile_ms(99)
    if lag is not None and lag > plan.max_lag * 1000:
        reasons.append(
            f"the client sent late: send lag p99 was {lag:.1f} ms, over {plan.max_lag * 1000:g} ms"
        )
    if outcome.cpu_share is not None and outcome.cpu_share > MAX_CPU:
        reasons.append(
            f"the client was busy: a process used {outcome.cpu_share:.0%} of a core, over {MAX_CPU:.0%}"
            " (more --processes)"
        )
    if recorder.sent < MIN_SENT * recorder.scheduled:
        reasons.append(
            f"only {recorder.sent:,} of {recorder.scheduled:,} scheduled requests went out,"
            f" under {MIN_SENT:.0%} ({_why_unsent(recorder.errors)})"
        )
    return reasons


def _why_unsent(errors: dict[str, int]) -> str:
    if errors.get("connection_wait_timeout"):
        return "no connection became free in time; more --connections"
    if errors.get("not_sent"):
        return "the client could not keep up; more --processes"
    return "connections could not be made"

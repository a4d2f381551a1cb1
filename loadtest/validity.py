"""Checks whether a run is valid: if the client was the limit, a run says nothing about the server.

Nor does a run say anything if the server took none of its requests for a request, as without an API key.
"""

from __future__ import annotations

from loadtest import objective
from loadtest.plan import Plan
from loadtest.running import Outcome

MAX_UNSENT = 0.01
MAX_CPU = 0.9
"""Share of one core that a client process may use; above it, answers wait for the client."""

_HINTS = {
    "http_401": "the server says 401 (--api-key, or HEADROOM_API_KEY)",
    "http_403": "the server says 403 (--api-key of a key that may do this)",
    "http_404": "the server says 404 (is the URL right, and the --endpoint?)",
    "http_405": "the server says 405 (is the URL right, and the --endpoint?)",
    "connect_tls": "no TLS connection could be made (does it speak https? is its certificate trusted here?)",
}
"""Errors of requests that the server did not read, and what may be wrong on the client's side."""

_UNSENT = {
    "not_sent": "the client could not keep up; more --processes",
    "connection_wait_timeout": "no connection became free in time; more --connections",
    "out_of_files": "no more files may be open; raise `ulimit -n`",
    "out_of_ports": "no local port was free; fewer --connections",
}
"""Errors of a client that does not send a request, and what may help. A connection that the server refuses,
or never accepts, is the server's."""


def invalid_because(outcome: Outcome) -> list[str]:
    """Return why the run is invalid; empty if it is valid."""
    recorder, plan = outcome.recorder, outcome.plan
    if not recorder.scheduled:
        return ["nothing was scheduled in the measured part"]
    reasons = []
    commonest = max(recorder.errors, key=recorder.errors.__getitem__, default="")
    if commonest in _HINTS and not recorder.ok:
        reasons.append(f"no request was answered: {_HINTS[commonest]}")
    percent = _lag_percent(plan)
    lag = recorder.send_lag.percentile_ms(percent)
    if lag is not None and lag > plan.max_lag * 1000:
        reasons.append(
            f"the client sent late: send lag p{percent:g} was {lag:.1f} ms, over {plan.max_lag * 1000:g} ms"
        )
    if outcome.cpu_share is not None and outcome.cpu_share > MAX_CPU:
        reasons.append(
            f"the client was busy: a process used {outcome.cpu_share:.0%} of a core, over {MAX_CPU:.0%}"
            " (more --processes)"
        )
    unsent = {kind: recorder.errors.get(kind, 0) for kind in _UNSENT}
    if sum(unsent.values()) > MAX_UNSENT * recorder.scheduled:
        reasons.append(
            f"the client did not send {sum(unsent.values()):,} of {recorder.scheduled:,} scheduled requests,"
            f" over {MAX_UNSENT:.0%} ({_UNSENT[max(unsent, key=unsent.__getitem__)]})"
        )
    return reasons


def _lag_percent(plan: Plan) -> float:
    """Return the percentile at which send lag is judged: 99, or the objective's highest if that is more."""
    return max(99.0, *objective.parse(plan.slo).limits_ms) if plan.slo else 99.0

"""What a run is judged by: its objective, such as `p99=100ms,errors=0.1%`, and whether it is valid.

If the client was the limit, a run says nothing about the server, and it is invalid. It is invalid too if no
request got a good answer: then there is no latency to report.
"""

import re
from collections import Counter
from dataclasses import dataclass

from headroom.loadtest.histogram import Histogram
from headroom.loadtest.plan import Plan, PlanError, seconds, share
from headroom.loadtest.recorder import Recorder
from headroom.loadtest.running import Outcome

DEFAULT_ERRORS = 0.001
MAX_UNSENT = 0.01
MAX_CPU = 0.9
"""Share of one core that the client process may use; above it, answers wait for the client."""

_HINTS = {
    "http_401": "the server says 401 (--api-key, or HEADROOM_API_KEY)",
    "http_403": "the server says 403 (--api-key of a key that may do this)",
    "http_404": "the server says 404 (is the URL right, and the --endpoint?)",
    "http_405": "the server says 405 (is the URL right, and the --endpoint?)",
    "connect_tls": "no TLS connection could be made (does it speak https? is its certificate trusted here?)",
}
"""Errors of requests that the server did not read, and what may be wrong on the client's side."""

_UNSENT = {
    "not_sent": "the client could not keep up; a lower --rate, or several runs at once",
    "connection_wait_timeout": "no connection became free in time; more --connections",
    "out_of_files": "no more files may be open; raise `ulimit -n`",
    "out_of_ports": "no local port was free; fewer --connections",
}
"""Errors of a client that does not send a request, and what may help. A connection that the server refuses,
or never accepts, is the server's."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits of latency percentiles (percent → milliseconds) and of shares of the requests.

    errors: of failed ones. unreranked: of those whose titles could not be scored, all or some; None: they
    count as failed.
    """

    text: str
    limits_ms: dict[float, float]
    errors: float = DEFAULT_ERRORS
    unreranked: float | None = None

    @property
    def bound_ms(self) -> float:
        """Latency within which an answer counts as goodput: the limit of the highest percentile."""
        return self.limits_ms[max(self.limits_ms)]

    def missed(self, recorder: Recorder, latency: Histogram) -> list[str]:
        """Return why a run misses the objective; empty if it meets it."""
        reasons = []
        for percent, limit in sorted(self.limits_ms.items()):
            measured = latency.percentile_ms(percent)
            if measured is None:
                reasons.append(f"p{percent:g}: no request was answered")
            elif measured > limit:
                reasons.append(f"p{percent:g} was {measured:.1f} ms, over {limit:g} ms")
        failed = recorder.errors.total() / max(1, recorder.scheduled)
        unreranked = unreranked_share(recorder)
        if self.unreranked is None and unreranked and failed + unreranked > self.errors:
            reasons.append(
                f"{failed:.2%} of the requests failed and {unreranked:.2%} were not reranked, together over "
                f"{self.errors:.2%}"
            )
        elif failed > self.errors:
            reasons.append(f"{failed:.2%} of the requests failed, over {self.errors:.2%}")
        if self.unreranked is not None and unreranked > self.unreranked:
            reasons.append(f"{unreranked:.2%} of the answers were not reranked, over {self.unreranked:.2%}")
        return reasons

    def good(self, recorder: Recorder, latency: Histogram) -> int:
        """Return the number of requests answered without error, reranked unless `unreranked` lets others
        through, and within the bound."""
        values, counts = latency.counts()
        answers = recorder.ok
        if self.unreranked is None:
            answers -= recorder.unreranked
        return min(answers, int(counts[values <= self.bound_ms * 1.001].sum()))


def unreranked_share(recorder: Recorder) -> float:
    """Return the share of the requests whose titles could not be scored."""
    return recorder.unreranked / max(1, recorder.scheduled)


def objective_of(plan: Plan) -> Objective | None:
    """Return the objective of the plan's `slo`; None without one.

    Raises:
        PlanError: it cannot be read, or a limit is above the timeout, so that no request could miss it.
    """
    if not plan.slo:
        return None
    objective = parse(plan.slo)
    for percent, limit in objective.limits_ms.items():
        if limit > plan.timeout * 1000:
            raise PlanError(
                f"slo: p{percent:g}={limit / 1000:g}s is above the timeout of {plan.timeout:g} s,"
                f" so no request could miss it: set it to at most {plan.timeout:g} s, or a longer --timeout"
            )
    return objective


def parse(text: str) -> Objective:
    """Return the objective of text such as `p99=100ms,errors=0.1%`. Raises PlanError."""
    limits: dict[float, float] = {}
    shares: dict[str, float] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        try:
            if name in ("errors", "unreranked"):
                shares[name] = share(value)
                if shares[name] > 1:
                    raise ValueError
            elif re.fullmatch(r"p\d{1,2}(\.\d+)?", name):
                if not value[-1:].isalpha():
                    raise PlanError(f"--slo: {item!r} has no unit; write {name}={value}ms or {name}={value}s")
                limits[float(name[1:])] = seconds(value) * 1000
            else:
                raise ValueError
        except ValueError:
            raise PlanError(
                f"--slo: {item!r} is not of the form p99=100ms, errors=0.1% or unreranked=1%"
            ) from None
    if not limits:
        raise PlanError("--slo: name at least one percentile, such as p99=100ms")
    return Objective(text, limits, **shares)


def invalid_because(outcome: Outcome) -> list[str]:
    """Return why the run is invalid; empty if it is valid."""
    recorder = outcome.recorder
    if not recorder.scheduled:
        return ["nothing was scheduled in the measured part"]
    reasons = client_limits(outcome)
    if reasons or recorder.ok:
        return reasons
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in recorder.errors.most_common(3))
    return [f"no request got a good answer ({kinds or 'the run was too short'})"]


def client_limits(outcome: Outcome) -> list[str]:
    """Return what on the client's side spoiled the run; empty if nothing did, whatever the server did."""
    recorder = outcome.recorder
    plan = outcome.plan
    reasons = []
    for kind, _ in recorder.errors.most_common(1):
        if kind in _HINTS and not recorder.ok:
            reasons.append(f"no request was answered: {_HINTS[kind]}")
    # The percentile at which lag counts is 99, or the objective's highest if that is more.
    percent = max(99.0, *parse(plan.slo).limits_ms) if plan.slo else 99.0
    lag = recorder.send_lag.percentile_ms(percent)
    if lag is not None and lag > plan.max_lag * 1000:
        reasons.append(
            f"the client sent late: send lag p{percent:g} was {lag:.1f} ms, over {plan.max_lag * 1000:g} ms"
        )
    if outcome.cpu_share is not None and outcome.cpu_share > MAX_CPU:
        reasons.append(f"the client was busy: it used {outcome.cpu_share:.0%} of a core, over {MAX_CPU:.0%}")
    unsent = Counter({kind: recorder.errors[kind] for kind in _UNSENT})
    if unsent.total() > MAX_UNSENT * recorder.scheduled:
        commonest = max(unsent, key=unsent.__getitem__)
        reasons.append(
            f"the client did not send {unsent.total():,} of {recorder.scheduled:,} scheduled requests,"
            f" over {MAX_UNSENT:.0%} ({_UNSENT[commonest]})"
        )
    return reasons

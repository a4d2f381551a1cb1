"""Builds the complete HTTP requests, seeded, in the order of their intended send times.

The same plan gives the same requests at the same times.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from headroom.loadtest.arrivals import chunks
from headroom.loadtest.pairs import Pair
from headroom.loadtest.plan import Plan, PlanError, Traffic

ENDPOINTS: dict[str, tuple[str, str, str | None]] = {
    "score": ("/v1/score", "titles", "results"),
    "compare": ("/v1/compare", "titles", None),
    "attention": ("/v1/attention", "title", None),
    "condense": ("/v1/condense", "titles", None),
    "rerank": ("/v1/rerank", "documents", "results"),
    "tei-rerank": ("/rerank", "texts", ""),
}
"""Path, field of the titles, and the answer's list with one item per title: "" if the answer is the list,
None if it is an object without one."""


MAX_TITLES = 100_000
"""Maximum of titles of a request."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An entry of the plan's traffic with one of its masks and variants, or "" if it requests none.

    share: of all requests. head: the bytes before the content-length. field: of the titles in the body; empty
    if there is no body. extras: the body's other fields. expects: the field
    of the answer that has one item per title: "" if the answer is that list, None if there is no such list.
    title_counts: the numbers of titles, and their cumulated shares. starts: the pairs that requests begin
    with, and their cumulated shares.
    """

    traffic: Traffic
    mask: str
    variant: str
    share: float
    head: bytes
    field: str
    extras: bytes
    expects: str | None
    title_counts: tuple[NDArray[np.int64], NDArray[np.float64]]
    starts: tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(slots=True, eq=False)
class Request:
    """A request and its result; times are seconds since the run's start."""

    intended: float
    measured: bool
    payload: bytes
    titles: int
    kind: Kind
    dispatched: float = 0.0
    sent: float = 0.0
    written: bool = False
    done: bool = False


class Workload:
    """The requests of a plan.

    Args:
        pairs: source of the texts; a request takes the query of one pair and the titles from there on.
        api_keys: API keys by the name of the environment variable, if set.
    """

    def __init__(self, plan: Plan, pairs: Sequence[Pair], api_keys: dict[str, str]) -> None:
        self._plan = plan
        total = sum(traffic.weight for traffic in plan.traffic)
        self._kinds = [
            kind
            for traffic in plan.traffic
            for kind in _kinds(plan, traffic, traffic.weight / total, api_keys, pairs)
        ]
        max_titles = max(int(kind.title_counts[0].max()) for kind in self._kinds)
        self._queries = [orjson.dumps(query) for query, _ in pairs]
        # A request that begins with the last pair goes on with the first.
        repeated = islice(cycle(pairs), len(pairs) + max_titles)
        self._titles = [orjson.dumps(title) for _, title in repeated]

    def requests(self) -> Iterator[Request]:
        """Yield the requests in the order of intended times."""
        shares = np.array([kind.share for kind in self._kinds])
        for number, times in enumerate(chunks(self._plan)):
            rng = np.random.default_rng([self._plan.seed, 1, number])
            choice = rng.choice(len(self._kinds), size=len(times), p=shares / shares.sum())
            draws = rng.random((len(times), 3))
            for index, time in enumerate(times):
                yield self._request(float(time), self._kinds[choice[index]], draws[index])

    def _request(self, intended: float, kind: Kind, draw: NDArray[np.float64]) -> Request:
        measured = intended >= self._plan.warmup
        if not kind.field:
            return Request(intended, measured, kind.head + b"\r\n", 0, kind)
        counts, shares = kind.title_counts
        count = int(counts[_pick(shares, draw[0])])
        first_pairs, shares = kind.starts
        start = int(first_pairs[_pick(shares, draw[1])])
        titles = b",".join(self._titles[start : start + count])
        if kind.field != "title":
            titles = b"[%s]" % titles
        units = kind.traffic.units
        unit = b',"unit":"user-%d"' % int(draw[2] * units) if units else b""
        field = kind.field.encode()
        body = b'{"query":%s,"%s":%s%s%s}' % (self._queries[start], field, titles, kind.extras, unit)
        payload = b"%scontent-length: %d\r\n\r\n%s" % (kind.head, len(body), body)
        return Request(intended, measured, payload, count, kind)


def title_counts(text: str | int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of titles and their cumulated shares of `20`, `1-50` or `1=5,10-20=3,100=2`.

    Raises PlanError.
    """
    shares: dict[int, float] = {}
    for item in str(text).split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*(?:=\s*(\d*\.?\d+))?\s*", item)
        if match is None:
            raise PlanError(
                f"--titles: {item!r} is not a number or range of titles such as 20, 1-50 or 1-9=3,100=1"
            )
        low = int(match[1])
        high = int(match[2] or low)
        if not 1 <= min(low, high) <= max(low, high) <= MAX_TITLES:
            raise PlanError(f"--titles: {item!r}: a request has from 1 to {MAX_TITLES:,} titles")
        if low > high:
            raise PlanError(f"--titles: {item!r}: write the smaller number first")
        for count in range(low, high + 1):
            shares[count] = shares.get(count, 0.0) + float(match[3] or 1) / (high - low + 1)
    return np.array(list(shares)), np.cumsum(_normal(list(shares.values()), "--titles"))


def starts(pairs: Sequence[Pair], zipf: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the pairs that requests begin with, and their cumulated shares.

    Without zipf, these are all pairs alike. With it, they are the first pair of each query, so that two
    searches share no pair: a pair then repeats only if its query does, and the k-th query comes as 1/k^zipf.
    """
    if not zipf:
        return np.arange(len(pairs)), np.cumsum(_normal([1.0] * len(pairs), "--pairs"))
    first_pairs: dict[str, int] = {}
    for index, (query, _) in enumerate(pairs):
        first_pairs.setdefault(query, index)
    ranks = np.arange(1, len(first_pairs) + 1)
    return np.array(list(first_pairs.values())), np.cumsum(_normal((ranks**-zipf).tolist(), "--zipf"))


def _kinds(
    plan: Plan, traffic: Traffic, share: float, api_keys: dict[str, str], pairs: Sequence[Pair]
) -> Iterator[Kind]:
    """Yield the kinds of one entry, whose shares are the products of the weights and add up to `share`."""
    method, _, path = traffic.endpoint.partition(" ")
    field = ""
    expects = None
    if path:
        if method != "GET" or not path.startswith("/") or re.search(r"[^!-~]", path):
            raise PlanError(f"--endpoint: {traffic.endpoint!r}: write any other path as GET /path")
    elif traffic.endpoint in ENDPOINTS:
        method = "POST"
        path, field, expects = ENDPOINTS[traffic.endpoint]
    else:
        raise PlanError(
            f"--endpoint: {traffic.endpoint!r} is none of {', '.join(ENDPOINTS)} and not GET /path"
        )
    masks = _shares(traffic.masks, "--masks")
    variants = _shares(traffic.variants, "--variants")
    requested = [(mask, variant, a * b) for mask, a in masks.items() for variant, b in variants.items()]
    if traffic.endpoint == "compare":  # one request asks for all of them
        requested = [("", "", 1.0)]
    head = _head(plan, method, path, api_keys.get(traffic.api_key_env))
    counts = title_counts(1 if field == "title" else traffic.titles)
    searches = starts(pairs, traffic.zipf)
    for mask, variant, weight in requested:
        yield Kind(
            traffic=traffic,
            mask=mask,
            variant=variant,
            share=share * weight,
            head=head,
            field=field,
            extras=_extras(traffic, mask, variant),
            expects=expects,
            title_counts=counts,
            starts=searches,
        )


def _extras(traffic: Traffic, mask: str, variant: str) -> bytes:
    """Return the body's fields beside the texts, each after a comma."""
    fields: dict[str, object] = {
        "head_mask": mask,
        "variant": variant,
        "deadline_ms": traffic.deadline_ms,
        "on_failure": traffic.on_failure,
    }
    if traffic.endpoint == "compare":
        fields |= {"masks": list(traffic.masks) or ["none"], "variants": list(traffic.variants)}
    if traffic.endpoint == "attention":
        fields["heads"] = "0.0"
    given = {name: value for name, value in fields.items() if value}
    return b"," + orjson.dumps(given)[1:-1] if given else b""


def _head(plan: Plan, method: str, path: str, api_key: str | None) -> bytes:
    """Return the request's first line and its headers except the body's length."""
    url = urlsplit(plan.url)
    lines = [f"{method} {url.path.rstrip('/')}{path} HTTP/1.1", f"host: {url.netloc.rpartition('@')[2]}"]
    lines += ["user-agent: headroom-load", "accept: application/json"]
    if api_key:
        if not re.fullmatch(r"[!-~]+", api_key):
            raise PlanError("the API key holds characters that a header cannot contain")
        lines.append(f"authorization: Bearer {api_key}")
    if method == "POST":
        lines.append("content-type: application/json")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _pick(cumulated: NDArray[np.float64], draw: float) -> int:
    return min(int(cumulated.searchsorted(draw, side="right")), len(cumulated) - 1)


def _shares(weights: dict[str, float], option: str) -> dict[str, float]:
    """Return weights by name as shares; all of "" without any."""
    if not weights:
        return {"": 1.0}
    return dict(zip(weights, _normal(list(weights.values()), option).tolist(), strict=True))


def _normal(weights: list[float], option: str) -> NDArray[np.float64]:
    """Return weights as shares. Raises PlanError, which names the option that gave them."""
    total = sum(weights)
    if total <= 0:
        raise PlanError(f"{option}: at least one weight must be above 0")
    return np.array(weights, dtype=np.float64) / total

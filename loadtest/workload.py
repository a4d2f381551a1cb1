"""Builds the complete HTTP requests, seeded, in the order of their intended send times.

The same plan gives the same requests at the same times for any number of processes: process k of n
makes the whole schedule and keeps every n-th request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from loadtest.arrivals import chunks
from loadtest.errors import PlanError
from loadtest.pairs import Pair
from loadtest.plan import Plan, Traffic

Extras = bytes
Body = Callable[[bytes, Sequence[bytes], Extras], bytes]


def _query_and(key: bytes) -> Body:
    start = b',"' + key + b'":['

    def body(query: bytes, titles: Sequence[bytes], extras: Extras) -> bytes:
        return b"".join((b'{"query":', query, start, b",".join(titles), b"]", extras, b"}"))

    return body


def _attention(query: bytes, titles: Sequence[bytes], extras: Extras) -> bytes:
    return b"".join((b'{"query":', query, b',"title":', titles[0], b',"heads":"0.0"', extras, b"}"))


ENDPOINTS: dict[str, tuple[str, Body, str | None]] = {
    "score": ("/v1/score", _query_and(b"titles"), "results"),
    "compare": ("/v1/compare", _query_and(b"titles"), None),
    "attention": ("/v1/attention", _attention, None),
    "condense": ("/v1/condense", _query_and(b"titles"), None),
    "rerank": ("/v1/rerank", _query_and(b"documents"), "results"),
    "tei-rerank": ("/rerank", _query_and(b"texts"), ""),
}
"""Path, body, and the answer's list with one item per title ("" if the answer is the list), by name."""


class Request:
    """A request and its result; times are seconds since the run's start."""

    __slots__ = (
        "dispatched",
        "done",
        "endpoint",
        "expects",
        "intended",
        "mask",
        "measured",
        "payload",
        "sent",
        "titles",
        "traffic",
        "variant",
        "written",
    )

    def __init__(
        self, intended: float, measured: bool, payload: bytes, titles: int, template: Template, kind: Kind
    ) -> None:
        self.intended = intended
        self.measured = measured
        self.payload = payload
        self.titles = titles
        self.traffic = template.traffic
        self.endpoint = template.endpoint
        self.expects = template.expects
        self.mask = kind.mask
        self.variant = kind.variant
        self.dispatched = 0.0
        self.sent = 0.0
        self.written = False
        self.done = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A mask and variant, empty if none is requested, and the body's fields that request them."""

    mask: str
    variant: str
    extras: bytes


@dataclass(frozen=True, slots=True)
class Template:
    """An entry of the plan's traffic, ready to build requests from.

    frequencies: of the pairs at which a request's texts may start, added up; None: all are equally frequent.
    """

    traffic: str
    endpoint: str
    head: bytes
    body: Body | None
    expects: str | None
    title_counts: tuple[NDArray[np.int64], NDArray[np.float64]]
    kinds: tuple[Kind, ...]
    kind_shares: NDArray[np.float64]
    units: int
    frequencies: NDArray[np.float64] | None


def title_counts(text: str | int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return numbers of titles and their shares of `20`, `1-50` or `1=5,10-20=3,100=2`. Raises PlanError."""
    shares: dict[int, float] = {}
    for item in str(text).split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*(?:=\s*(\d*\.?\d+))?\s*", item)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if match is None or not 1 <= low <= high <= 100_000:
            raise PlanError(
                f"--titles: {item!r} is not a number or range of titles such as 20, 1-50 or 1-9=3,100=1"
            )
        for count in range(low, high + 1):
            shares[count] = shares.get(count, 0.0) + float(match[3] or 1) / (high - low + 1)
    return np.array(list(shares)), _normal(list(shares.values()))


class Workload:
    """The requests of a plan.

    Args:
        pairs: source of the texts; a request takes the query of one pair and the titles from there on.
        api_keys: API keys by the name of the environment variable, if set.
    """

    def __init__(self, plan: Plan, pairs: Sequence[Pair], api_keys: dict[str, str]) -> None:
        self._plan = plan
        self._templates = [_template(plan, traffic, api_keys, len(pairs)) for traffic in plan.traffic]
        self._shares = _normal([traffic.weight for traffic in plan.traffic])
        max_titles = max(int(template.title_counts[0].max()) for template in self._templates)
        texts = list(pairs) * (-(-max_titles // len(pairs)) + 1)
        self._starts = len(pairs)
        self._queries = [orjson.dumps(query) for query, _ in texts[: len(pairs)]]
        self._titles = [orjson.dumps(title) for _, title in texts[: len(pairs) + max_titles]]

    def requests(self, process: int = 0, processes: int = 1) -> Iterator[Request]:
        """Yield every `processes`-th request from the `process`-th on, in the order of intended times."""
        first = 0
        for number, times in enumerate(chunks(self._plan)):
            rng = np.random.default_rng([self._plan.seed, 1, number])
            choice = rng.choice(len(self._templates), size=len(times), p=self._shares)
            draws = rng.random((4, len(times)))
            for place in range((process - first) % processes, len(times), processes):
                yield self._request(float(times[place]), self._templates[choice[place]], draws[:, place])
            first += len(times)

    def _request(self, intended: float, template: Template, draw: NDArray[np.float64]) -> Request:
        kind = template.kinds[_pick(template.kind_shares, draw[0])]
        counts, shares = template.title_counts
        titles = int(counts[_pick(shares, draw[1])])
        if template.body is None:
            payload, titles = template.head, 0
        else:
            if template.frequencies is None:
                start = int(draw[2] * self._starts)
            else:
                start = _pick(template.frequencies, draw[2])
            extras = kind.extras
            if template.units:
                extras += b',"unit":"user-%d"' % int(draw[3] * template.units)
            body = template.body(self._queries[start], self._titles[start : start + titles], extras)
            payload = template.head % len(body) + body
        return Request(intended, intended >= self._plan.warmup, payload, titles, template, kind)


def _template(plan: Plan, traffic: Traffic, api_keys: dict[str, str], starts: int) -> Template:
    method, _, free_path = traffic.endpoint.partition(" ")
    body: Body | None
    if free_path:
        if method != "GET" or not free_path.startswith("/") or re.search(r"[^!-~]", free_path):
            raise PlanError(f"traffic.endpoint: {traffic.endpoint!r}: write any other path as GET /path")
        path, body, expects = free_path, None, None
    elif traffic.endpoint in ENDPOINTS:
        method = "POST"
        path, body, expects = ENDPOINTS[traffic.endpoint]
    else:
        raise PlanError(
            f"traffic.endpoint: {traffic.endpoint!r} is none of {', '.join(ENDPOINTS)} and not GET /path"
        )
    kinds, shares = _kinds(traffic)
    return Template(
        traffic.name,
        traffic.endpoint,
        _head(plan, method, path, api_keys.get(traffic.api_key_env)),
        body,
        expects,
        _cumulated(title_counts(traffic.titles)),
        kinds,
        np.cumsum(shares),
        traffic.units,
        None if traffic.zipf == 0 else np.cumsum(_zipf(starts, traffic.zipf)),
    )


def _zipf(count: int, exponent: float) -> NDArray[np.float64]:
    """Return the shares of Zipf's law: the k-th is in proportion to 1/k^exponent."""
    return _normal((np.arange(1, count + 1, dtype=np.float64) ** -exponent).tolist())


def _head(plan: Plan, method: str, path: str, api_key: str | None) -> bytes:
    """Return everything before the body as a format whose only argument is the body's length."""
    url = urlsplit(plan.url)
    lines = [f"{method} {url.path.rstrip('/')}{path} HTTP/1.1", f"host: {url.netloc.rpartition('@')[2]}"]
    lines += ["user-agent: headroom-load", "accept: application/json"]
    if api_key:
        if not re.fullmatch(r"[!-~]+", api_key):
            raise PlanError("the API key holds characters that a header cannot contain")
        lines.append(f"authorization: Bearer {api_key}")
    if method == "POST":
        lines.append("content-type: application/json")
        return "\r\n".join(lines).replace("%", "%%").encode() + b"\r\ncontent-length: %d\r\n\r\n"
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _kinds(traffic: Traffic) -> tuple[tuple[Kind, ...], NDArray[np.float64]]:
    """Return all pairs of mask and variant with the products of weights; compare requests all at once."""
    deadline = (
        b"" if traffic.deadline_ms is None else b',"deadline_ms":%s' % orjson.dumps(traffic.deadline_ms)
    )
    if traffic.endpoint == "compare":
        masks = b',"masks":' + orjson.dumps(list(traffic.masks) or ["none"])
        variants = b',"variants":' + orjson.dumps(list(traffic.variants)) if traffic.variants else b""
        return (Kind("", "", masks + variants + deadline),), np.ones(1)
    kinds, shares = [], []
    for mask, mask_weight in (traffic.masks or {"": 1.0}).items():
        for variant, variant_weight in (traffic.variants or {"": 1.0}).items():
            extras = b',"head_mask":' + orjson.dumps(mask) if mask else b""
            extras += b',"variant":' + orjson.dumps(variant) if variant else b""
            kinds.append(Kind(mask, variant, extras + deadline))
            shares.append(mask_weight * variant_weight)
    return tuple(kinds), _normal(shares)


def _cumulated(
    counts: tuple[NDArray[np.int64], NDArray[np.float64]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return counts[0], np.cumsum(counts[1])


def _pick(cumulated: NDArray[np.float64], draw: float) -> int:
    return min(int(cumulated.searchsorted(draw, side="right")), len(cumulated) - 1)


def _normal(weights: list[float]) -> NDArray[np.float64]:
    total = sum(weights)
    if total <= 0:
        raise PlanError("weights: at least one must be above 0")
    return np.array(weights, dtype=np.float64) / total

"""The page's own arithmetic, in the browser: attention of joined words, Prometheus text, csv files."""

import pytest
from starlette.routing import Route

from headroom.service.api import create_app
from headroom.service.config.settings import Settings
from headroom.service.observe.metrics import Metrics
from tests.service.page.browsing import Page

pytestmark = pytest.mark.slow

METRICS = """\
# HELP a_total Things \\\\ done.
# TYPE a_total counter
a_total{kind="x",why="say \\"no\\", {then} = 1"} %d
a_total{kind="y",why=""} %d
t_bucket{le="0.1"} %d
t_bucket{le="1.0"} %d
t_bucket{le="+Inf"} %d
t_sum %d
t_count %d
gone NaN
"""
BEFORE = METRICS % (100, 5, 10, 10, 10, 1, 10)
AFTER = METRICS % (160, 1, 10, 30, 30, 11, 30)
"""x grew by 60; y began anew and is at 1; 20 things took 0.1 to 1 s."""


def test_rates_and_quantiles_come_from_differences(page: Page) -> None:
    page.open()
    script = """(() => {
      const [before, after] = [...arguments].slice(0, 2).map((text) => prometheus.parse(text));
      return [
        prometheus.growth(before, after, 'a_total', {kind: 'x'}),
        prometheus.growth(before, after, 'a_total', {kind: 'y'}),
        prometheus.samples(after, 'a_total')[0].labels.why, prometheus.quantileOf(before, after, 't', 0.5),
        prometheus.meanOf(before, after, 't'), prometheus.quantileOf(after, after, 't', 0.5),
      ]})()"""
    assert page.evaluate(script, BEFORE, AFTER) == [
        60,
        1,
        'say "no", {then} = 1',
        pytest.approx(0.55),
        0.5,
        None,
    ]


SCORING = {
    *("/v1/score", "/v1/compare", "/v1/attention", "/v1/condense", "/score", "/predict"),
    *("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"),
    "/v2/models/{model:path}/infer",
}
OTHER_POSTS = {
    *("/v1/outcomes", "/v1/ubi/events", "/v1/experiments"),
    *("/ofrep/v1/evaluate/flags", "/ofrep/v1/evaluate/flags/{experiment}"),
    *(f"/v1/experiments/{{name}}/{verb}" for verb in ("ramp", "ship", "rollback", "stop")),
    "/",  # TEI's, whose label the page's own loads have, too
}


def test_requests_per_second_are_those_that_score(page: Page) -> None:
    """Probes, clicks and flag look-ups were counted."""
    routes = [route for route in create_app(Settings(), Metrics()).routes if isinstance(route, Route)]
    posts = {route.path for route in routes if "POST" in (route.methods or ())}
    assert posts == SCORING | OTHER_POSTS, "say of a new route whether it scores; the page's SCORING, too"
    page.open()
    script = """arguments[0].map((route) => {
      const scrape = (n) => prometheus.parse(`headroom_requests_total{route="${route}",status="200"} ${n}`);
      const taken = [{time: 1000, scrape: scrape(5)}, {time: 1010, scrape: scrape(45)}];
      return prometheus.figures(taken, "")[0].requests;
    })"""
    paths = sorted({route.path for route in routes} | {"unmatched"})
    rates = page.evaluate(script, paths)
    assert dict(zip(paths, rates, strict=True)) == {path: 4 if path in SCORING else 0 for path in paths}

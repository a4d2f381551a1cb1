"""What the page reads of the metrics, in the browser."""

import pytest
from starlette.routing import Route

from headroom.service.api import create_app
from headroom.service.config.settings import Settings
from headroom.service.observe.metrics import Metrics
from tests.service.page.browsing import Page

pytestmark = pytest.mark.slow

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

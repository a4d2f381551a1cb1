"""Views that ask again and again, and what they do while the service, or a proxy, answers with errors."""

from itertools import pairwise

import pytest

from tests.service.page.browsing import Page

pytestmark = [pytest.mark.slow, pytest.mark.more]


def test_polls_come_no_sooner_than_the_service_asked_for(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse")
    page.one(".ranking")
    page.hurry()
    page.run("""
      window.times = [];
      window.answer = async () => {
        times.push(Date.now());
        const error = {type: 'overloaded', message: 'The queue is full.', param: null};
        return new Response(JSON.stringify({error}), {status: 503, headers: {'retry-after': '7'}});
      };""")
    page.one("nav a[href^='#experiments']").click()
    page.until(lambda: "Trying again in" in page.one(".trouble").text)
    assert page.one(".trouble [role=alert]").text == "The queue is full."  # the countdown is not read out
    times = page.until(lambda: (found := page.run("return times")) and len(found) > 3 and found)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) > 6900, gaps

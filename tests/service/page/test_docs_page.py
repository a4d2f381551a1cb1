"""`/docs` in a real browser, on a real service: with API keys it asks for one, and uses it."""

import httpx
import pytest
from selenium import webdriver

from tests.service.page.browsing import Page

pytestmark = [pytest.mark.slow, pytest.mark.more]


def test_with_keys_the_page_asks_for_one_and_tries_requests_with_it(
    page_server: str, chromium: webdriver.Chrome
) -> None:
    docs = f"{page_server}/docs"
    assert httpx.get(docs, headers={"accept": "text/html"}).status_code == 401
    scrape = f"{page_server}/metrics"
    before = models_read(scrape)
    page = Page(chromium, page_server).open("docs")
    field = page.one("#token")
    field.send_keys("wrong\n")
    page.until(lambda: "not one of" in page.one("#problem").text)
    field.clear()
    field.send_keys("plain\n")
    page.one("[id^=operations-what][id$=models] .opblock-summary-control").click()
    assert not field.is_displayed()
    page.one(".try-out__btn").click()
    page.one(".btn.execute").click()
    assert page.one(".live-responses-table .response .response-col_status").text.startswith("200")
    page.one(".btn.authorize").click()
    assert page.one(".auth-container").text.count("Authorized") == 1
    assert models_read(scrape) == before + 1
    page.check_and_leave()


def models_read(scrape: str) -> float:
    """Return how many requests for the models were answered, as a scrape with a key says."""
    scraped = httpx.get(scrape, headers={"authorization": "Bearer plain"})  # as docs/operations.md has it
    name = 'headroom_requests_total{route="/v1/models",status="200"} '
    return sum(float(line.removeprefix(name)) for line in scraped.text.splitlines() if line.startswith(name))

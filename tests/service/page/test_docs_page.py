"""`/docs` in a real browser, on a real service: with API keys it asks for one, and uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.referees import need
from tests.service.page.browsing import waiting
from tests.service.running import Server


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = need("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(need("chromedriver")))
    try:
        yield driver
        said = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert [line for line in said if "Failed to load resource" not in line] == []
    finally:
        driver.quit()


def wait(browser: webdriver.Chrome, selector: str) -> Any:
    """The first element that can be seen under a CSS selector."""

    def seen(driver: webdriver.Chrome) -> Any:
        found = [
            element for element in driver.find_elements(By.CSS_SELECTOR, selector) if element.is_displayed()
        ]
        return found[0] if found else None

    return waiting(browser).until(seen, f"nothing to see under {selector}")


@pytest.mark.slow
def test_with_keys_the_page_asks_for_one_and_tries_requests_with_it(
    page_server: str, browser: webdriver.Chrome
) -> None:
    scrape = f"{page_server}/metrics"
    assert httpx.get(scrape).status_code == 401
    before = models_read(scrape)
    browser.get(f"{page_server}/docs")
    field = wait(browser, "#token")
    field.send_keys("wrong\n")
    waiting(browser).until(lambda _: "not one of" in wait(browser, "#problem").text)
    field.clear()
    field.send_keys("plain\n")
    wait(browser, "[id^=operations-what][id$=models] .opblock-summary-control").click()
    assert not field.is_displayed()
    wait(browser, ".try-out__btn").click()
    wait(browser, ".btn.execute").click()
    assert wait(browser, ".live-responses-table .response .response-col_status").text.startswith("200")
    wait(browser, ".btn.authorize").click()
    assert wait(browser, ".auth-container").text.count("Authorized") == 1
    assert models_read(scrape) == before + 1


def models_read(scrape: str) -> float:
    """Return how many requests for the models were answered, as a scrape with a key says."""
    scraped = httpx.get(scrape, headers={"authorization": "Bearer plain"})  # as docs/operations.md has it
    name = 'headroom_requests_total{route="/v1/models",status="200"} '
    return sum(float(line.removeprefix(name)) for line in scraped.text.splitlines() if line.startswith(name))


@pytest.mark.slow
def test_without_keys_the_page_asks_for_none(server: Server, browser: webdriver.Chrome) -> None:
    browser.get(f"{server.url}/docs")
    wait(browser, "#operations-scoring-score")
    assert not browser.find_element(By.ID, "token").is_displayed()
    assert wait(browser, "a[href$='openapi.json']")

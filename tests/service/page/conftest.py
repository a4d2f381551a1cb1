"""One browser, and one real service with API keys and the shipped model, for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.service.page.browsing import Page, start_browser
from tests.service.page.seeding import LIVE, seed
from tests.service.running import Server, running

SHIPPED = Path(__file__).parents[3] / "models" / "default"
KEYS = "plain,boss;role=admin"


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`headroom serve` with keys, two masks as variants, and an experiment that has run for three days."""
    directory = tmp_path_factory.mktemp("page")
    seed(directory / "state" / "headroom" / "experiments.db")
    with running(directory, SHIPPED, live=LIVE, environment={"HEADROOM_API_KEYS": KEYS}) as server:
        yield server


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = start_browser(tmp_path_factory.mktemp("chromium"))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(chromium: webdriver.Chrome, page_server: Server) -> Iterator[Page]:
    """The page at 1440 × 1000 in light colours, with a user's key; at the end nothing went wrong in it."""
    page = Page(chromium, page_server.url, key="plain")
    yield page
    page.check_and_leave()

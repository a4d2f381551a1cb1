"""One browser, and one service with API keys and the shipped model, for all tests of the page."""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from headroom.service.config.settings import LiveConfig
from tests.service.page.browsing import Page, start_browser
from tests.service.page.seeding import LIVE, SHIPPED, seed, served

KEYS = "plain,boss;role=admin"


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with keys, two masks as variants, and an experiment that has run for days."""
    database = tmp_path_factory.mktemp("page") / "experiments.db"
    seed(database)
    live = LiveConfig.model_validate(LIVE)
    with served(SHIPPED, live, dtype="auto", api_keys=KEYS, database_url=f"sqlite:///{database}") as url:
        yield url


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = start_browser(tmp_path_factory.mktemp("chromium"))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(chromium: webdriver.Chrome, page_server: str) -> Iterator[Page]:
    """The page at 1440 × 1000 in light colours, with a user's key; at the end nothing went wrong in it."""
    page = Page(chromium, page_server, key="plain")
    yield page
    page.check_and_leave()

"""Fields keep what a person is typing, and take it once."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.service.page.browsing import Page
from tests.service.page.playground import spec

pytestmark = [pytest.mark.slow, pytest.mark.more]


def value(page: Page, selector: str) -> str:
    return str(page.one(selector).get_attribute("value"))


def type_while_the_page_is_drawn_anew(page: Page, text: str) -> None:
    """Press the keys of a text one by one; after each the page is drawn anew, as when an answer arrives."""
    for key in text:
        ActionChains(page.browser).send_keys(key).perform()
        page.run("for (const turn of [1, 2, 3]) document.querySelector('.theme').click()")
        page.next_frame()


def test_what_is_typed_stays_while_answers_arrive(page: Page) -> None:
    page.open("#attention?q=mouse&t=wireless+mouse&mask=none")
    page.one(".token")
    page.write("#pair-query", "")
    type_while_the_page_is_drawn_anew(page, "usb key")
    assert value(page, "#pair-query") == "usb key"
    page.one("#pair-query").send_keys(Keys.ENTER)
    page.until(lambda: "q=usb+key" in page.browser.current_url)

    page.one("nav a[href^='#playground']").click()
    seed = ".presets [type=number]"
    page.one(seed).send_keys(Keys.CONTROL, "a", Keys.NULL)
    type_while_the_page_is_drawn_anew(page, "1234")
    assert value(page, seed) == "1234"
    assert spec(page) == "none"  # it is not taken yet
    page.one(seed).send_keys(Keys.ENTER)
    page.until(lambda: spec(page) != "none")
    drawn = spec(page)
    page.write("#spec", "random:0.2@1234\n")
    page.next_frame()
    assert spec(page) == drawn

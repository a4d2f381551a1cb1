"""The panel that shortens a long query, in a real browser on a real service."""

import os
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests.service.page.browsing import Page
from tests.service.page.playground import skip_steps

pytestmark = [pytest.mark.slow, pytest.mark.more]

IMAGES = Path(__file__).parents[3] / "docs" / "images"
LONG = "where can i find a quiet wireless mouse that works with my laptop?"

KEEP_ANSWER = """
const send = window.fetch;
window.fetch = async (...what) => {
  const reply = await send(...what);
  if (String(what[0]).endsWith('v1/condense')) window.condensed = await reply.clone().json();
  return reply;
};
"""


def at_rest(page: Page) -> None:
    """Wait until the ranking is there, so that nothing is drawn anew under the hand."""
    page.until(lambda: not page.all(".result[aria-busy=true]") and page.all(".ranking"))


def condense(page: Page) -> None:
    """Press the panel's button."""
    at_rest(page)
    page.one(".condense button:not(:disabled)").click()


def struck(page: Page) -> list[str]:
    return [str(element.text) for element in page.all(".struck del")]


def test_words_of_a_long_query_are_struck_out_as_the_loss_grows(page: Page) -> None:
    page.open()
    page.one("#query")
    assert page.all(".condense") == []  # two words are short enough
    Select(page.one("#example")).select_by_visible_text("A long question")
    page.run(KEEP_ANSWER)
    condense(page)
    page.one(".struck")
    answer: dict[str, Any] = page.run("return window.condensed")
    assert " ".join(word["word"] for word in answer["words"]) == LONG
    order = [step["left_out"] for step in answer["path"][1:]]

    slider = page.one("#words-kept")
    for left in (len(order) + 1, len(order), len(order) - 1, 1):
        wanted = sorted(order[: len(order) + 1 - left])
        slider.send_keys(Keys.END if left > len(order) else Keys.HOME if left == 1 else Keys.ARROW_LEFT)
        page.until(
            lambda wanted=wanted: struck(page) == [LONG.split()[place] for place in wanted],  # type: ignore[misc]
            f"not the words {wanted}",
        )
        text = str(slider.get_attribute("aria-valuetext"))
        step = next(step for step in answer["path"] if step["words"] == left)
        assert text == f"{left} of {len(order) + 1} words, loss {step['loss']:.3f}"
        assert page.one(".lengths output").text == text.replace(" words", "")
        if left == len(order) - 1:
            pictures(page, slider)

    page.one(".lengths button").click()
    page.until(lambda: page.one("#query").get_attribute("value") == answer["path"][-1]["query"])
    page.until(lambda: page.all(".condense") == [])


def pictures(page: Page, slider: WebElement) -> None:
    """Write the documentation's pictures, at three words, if they are wanted."""
    if "SCREENSHOTS" in os.environ:
        skip_steps(page)
        slider.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 2)
        page.run("document.activeElement.blur()")
        page.size(1440, 720)
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.screenshot(IMAGES / f"playground-condense-{scheme}.png")
        page.colours("light")

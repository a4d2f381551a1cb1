"""The panel that shortens a long query, in a real browser on a real service."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests.service.page.browsing import Page
from tests.service.page.playground import skip_steps

pytestmark = [pytest.mark.slow, pytest.mark.more]

IMAGES = Path(__file__).parents[3] / "docs" / "images"
LONG = "where can i find a quiet wireless mouse that works with my laptop?"

# How opaque a cell's background is, from 0 to 1.
OPACITY = """
const pen = document.createElement('canvas').getContext('2d');
pen.fillStyle = getComputedStyle(arguments[0]).backgroundColor;
pen.fillRect(0, 0, 1, 1);
return pen.getImageData(0, 0, 1, 1).data[3] / 255;
"""

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


def test_a_query_is_written_and_shows_what_its_words_attend_to(page: Page) -> None:
    page.open()
    Select(page.one("#example")).select_by_visible_text("A long question")
    Select(page.one(".condense select")).select_by_visible_text("writing it anew")
    page.run(KEEP_ANSWER)
    condense(page)
    page.one(".alignment")
    answer: dict[str, Any] = page.run("return window.condensed")
    rows = [str(element.text) for element in page.all(".alignment tbody th")]
    assert rows == answer["condensed"].split()
    columns = [str(element.text) for element in page.all(".alignment thead th")]
    assert "".join(columns) == "".join(LONG.split())
    heads = {(one["layer"], one["head"]) for one in answer["attention"]["heads"]}
    options = Select(page.one(".condense .alignment-head")).options
    assert len(options) == 1 + len(heads)
    page.one(".written button").click()
    page.until(lambda: page.one("#query").get_attribute("value") == answer["condensed"])


def write_anew(page: Page, question: str) -> None:
    page.open(f"#playground?q={quote(question)}&t=laptop&t=bag")
    Select(page.one(".condense select")).select_by_visible_text("writing it anew")
    condense(page)


def test_a_cell_is_darker_the_more_a_word_attends_and_chinese_pieces_have_columns_each(page: Page) -> None:
    question = "我想买一个适合学生用的轻薄笔记本电脑"
    write_anew(page, question)
    page.one(".alignment")
    columns = [str(element.text) for element in page.all(".alignment thead th")]
    assert len(columns) > 3
    assert "".join(columns) == question
    opacity_of = {
        int(cell.text.rstrip(" %") or 0): float(page.run(OPACITY, cell))
        for cell in page.all(".alignment td")[1:]
    }
    shares = sorted(opacity_of)
    assert len(shares) > 3
    assert [opacity_of[share] for share in shares] == pytest.approx(
        [share / 100 for share in shares], abs=0.01
    )


def test_a_question_that_is_too_long_to_write_anew_is_not_offered_again(page: Page) -> None:
    write_anew(page, "lamp " * 200)
    assert "longer than the model's window" in page.one(".condense .trouble").text
    assert page.all(".condense .trouble button") == []


def pictures(page: Page, slider: WebElement) -> None:
    """Write the documentation's pictures, at three words, if they are wanted."""
    if "SCREENSHOTS" in os.environ:
        skip_steps(page)
        slider.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 2)
        page.run("document.activeElement.blur()")
        page.size(1440, 720)
        for scheme in ("light", "dark"):
            page.colours(scheme)
            page.screenshot(IMAGES / f"playground-condense-{scheme}.png", whole=True)
        page.colours("light")

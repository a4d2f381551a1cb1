"""The grid of heads in a real browser: pointer, keyboard and tools switch heads, and the ranking follows."""

import json
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from headroom.models.errors import InvalidMask
from headroom.models.masks.head_mask import HeadMask
from tests.service.page.browsing import Page
from tests.service.page.playground import (
    cell,
    settled,
    shown_scores,
    spec,
    with_all_heads,
)

pytestmark = pytest.mark.slow
CASES, STRUCTURED = (
    json.loads((Path(__file__).parents[2] / "cases" / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("masks", "structured_masks")
)


def test_a_click_a_drag_a_row_and_a_column_switch_heads_and_the_ranking_follows(
    page: Page, page_server: str
) -> None:
    before = with_all_heads(page)
    assert len(before) == 10
    assert before[0]["title"].startswith("Logitech M185 Wireless Mouse")
    assert before[0]["scores"][0] == before[0]["scores"][1]

    cell(page, 0, 8).click()
    assert spec(page) == "0.8"
    shown_scores(page, page_server, "0.8")

    hand = ActionChains(page.browser, duration=20)
    hand.click_and_hold(cell(page, 1, 0))
    for head in range(1, 12):
        hand.move_to_element(cell(page, 1, head))
    hand.release().perform()
    assert spec(page) == "0.8,1.*"
    shown_scores(page, page_server, "0.8,1.*")

    hand = ActionChains(page.browser, duration=0)  # so fast that the pointer is seen on few cells
    hand.click_and_hold(cell(page, 4, 0)).move_to_element(cell(page, 4, 11)).release().perform()
    assert spec(page) == "0.8,1.*,4.*"
    page.one('[role="rowheader"][data-at="4.-1"]').click()

    page.one('[role="rowheader"][data-at="1.-1"]').click()
    assert spec(page) == "0.8"
    page.one('[role="columnheader"][data-at="-1.3"]').click()
    assert HeadMask.parse(spec(page), layers=12, heads=12) == HeadMask.parse("0.8,*.3", layers=12, heads=12)
    changed = settled(page)
    assert any(row["changes"][1].startswith(("+", "−")) for row in changed)
    page.button("All on").click()
    assert spec(page) == "none"


def test_the_grid_works_with_the_keyboard_alone(page: Page) -> None:
    with_all_heads(page)
    focusable = page.run("return document.querySelectorAll('[role=grid] [tabindex=\"0\"]').length")
    assert focusable == 1
    page.run("document.querySelector('[role=grid] [tabindex=\"0\"]').focus()")
    active = lambda: page.browser.switch_to.active_element  # noqa: E731
    active().send_keys(Keys.ARROW_DOWN)
    active().send_keys(Keys.ARROW_RIGHT)
    assert active().get_attribute("data-at") == "1.1"
    active().send_keys(Keys.SPACE)
    assert spec(page) == "1.1"
    active().send_keys(Keys.ENTER)
    assert spec(page) == "none"
    active().send_keys(Keys.SHIFT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert len(page.all("[role=gridcell][aria-selected=true]")) == 4
    active().send_keys(Keys.SPACE)
    assert spec(page) == "1.1-2,2.1-2"
    active().send_keys(Keys.NULL, Keys.HOME, Keys.ARROW_LEFT, Keys.SPACE)  # the layer's name
    assert spec(page) == "1.1-2,2.*"
    assert "layer 2, all heads" in (active().get_attribute("aria-label") or "")
    assert "layer 2 head 5, off" in (cell(page, 2, 5).get_attribute("aria-label") or "")


def test_the_browser_reads_masks_as_the_service_does(page: Page) -> None:
    page.open()
    script = """arguments[0].map(([text, layers, heads]) => {
        try {
          const read = mask_spec.parseSpec(text, {layers, heads});
          return [mask.canonical(read, {layers, heads}), mask.maskId(read, {layers, heads})];
        } catch (error) { return error instanceof mask_spec.MaskError ? error.message : String(error.stack); }
      })"""
    cases = CASES["valid"] + STRUCTURED["valid"]
    valid = [(case["spec"], case["layers"], case["heads"]) for case in cases if "spec" in case]
    valid += [(f"random:0.{n}@{n * n}/*.0-{n % 5 + 1}", n, 7) for n in range(1, 30)]
    for (text, layers, heads), answer in zip(valid, page.evaluate(script, valid), strict=True):
        mask = HeadMask.parse(text, layers=layers, heads=heads)
        assert answer == [mask.spec, mask.id], text
    specs = CASES["wrong"]["specs"] + STRUCTURED["wrong"]["specs"]
    specs += ["2.3,weights:0", "keep:12.0,3.1", "random:0.2,1.1@7", "constructor:1", "0.0," * 8192 + "0.0"]
    wrong = [(text, 12, 12) for text in specs]
    for (text, *_), answer in zip(wrong, page.evaluate(script, wrong), strict=True):
        with pytest.raises(InvalidMask) as refused:
            HeadMask.parse(text, layers=12, heads=12)
        assert answer == str(refused.value), text
    weighted = [case for case in cases if set(case.get("json", {})) in ({"weights"}, {"weights", "skip"})]
    script = """arguments[0].map(({json, layers, heads}) => {
        const weights = Float32Array.from(json.weights.flat());
        const whole = mask.withoutLayers({weights, skipped: []}, json.skip ?? [], {layers, heads});
        return mask.canonical(whole, {layers, heads});
      })"""
    assert page.evaluate(script, weighted) == [case["canonical"] for case in weighted]

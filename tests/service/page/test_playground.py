"""The playground in a real browser, on a real service: heads are switched, and the ranking follows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from models.errors import InvalidMask
from models.head_mask import HeadMask
from tests.service.page.browsing import Page
from tests.service.running import Server

pytestmark = pytest.mark.slow

KEY = {"authorization": "Bearer plain"}
MOUSE = "wireless mouse"
CASES = json.loads((Path(__file__).parents[2] / "cases" / "masks.json").read_text(encoding="utf-8"))


def rows(page: Page) -> list[dict[str, Any]]:
    """The ranking as it is read: title, scores by mask, place changes, best first."""
    script = """
      const text = (element) => element?.textContent.replace(/\\s+/g, ' ').trim() ?? '';
      return [...document.querySelectorAll('.ranking > tbody > tr')].map((row) => ({
        title: text(row.querySelector('.name')),
        scores: [...row.querySelectorAll('.number')].map((cell) => Number(cell.textContent)),
        changes: [...row.querySelectorAll('.change')].map(text),
        move: text(row.querySelector('.move')),
      }))"""
    found: list[dict[str, Any]] = page.run(script)
    return found


def settled(page: Page, columns: int = 2) -> list[dict[str, Any]]:
    """The ranking once no request is under way."""

    def done() -> list[dict[str, Any]]:
        assert not page.all(".result[aria-busy=true]")
        found = rows(page)
        assert found
        assert len(found[0]["scores"]) == columns
        return found

    ranking: list[dict[str, Any]] = page.until(done, "the ranking never came to rest")
    return ranking


def expected(server: Server, body: dict[str, Any]) -> dict[str, float]:
    """The scores that the service itself gives, by title."""
    answer = httpx.post(f"{server.url}/v1/score", json=body, headers=KEY, timeout=30).raise_for_status()
    return {body["titles"][result["index"]]: result["score"] for result in answer.json()["results"]}


def cell(page: Page, layer: int, head: int) -> Any:
    return page.one(f'[data-at="{layer}.{head}"]')


def spec(page: Page) -> str:
    return str(page.one("#spec").get_attribute("value"))


def shown_scores(page: Page, server: Server, mask: str) -> None:
    """Assert that the second column's scores are those of the service under a mask."""
    ranking = settled(page)
    titles = [row["title"] for row in ranking]
    scores = expected(server, {"query": MOUSE, "titles": titles, "head_mask": mask})
    assert [row["scores"][1] for row in ranking] == pytest.approx([scores[t] for t in titles], abs=0.02)
    assert [row["scores"][1] for row in ranking] == sorted(
        (row["scores"][1] for row in ranking), reverse=True
    )


def test_a_click_a_drag_a_row_and_a_column_switch_heads_and_the_ranking_follows(
    page: Page, page_server: Server
) -> None:
    page.open()
    before = settled(page)
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

    page.one('[role="rowheader"][data-at="1.-1"]').click()
    assert spec(page) == "0.8"
    page.one('[role="columnheader"][data-at="-1.3"]').click()
    assert HeadMask.parse(spec(page), layers=12, heads=12) == HeadMask.parse("0.8,*.3", layers=12, heads=12)
    changed = settled(page)
    assert any(row["changes"][1].startswith(("+", "−")) for row in changed)
    page.button("All on").click()
    assert spec(page) == "none"


def test_tools_make_halves_random_and_named_masks_and_weights(page: Page, page_server: Server) -> None:
    page.open()
    settled(page)
    page.button("Lower half off").click()
    assert spec(page) == "0-5.*"
    page.button("Upper half off").click()
    assert spec(page) == "6-11.*"
    page.button("Random 20 % off").click()
    assert spec(page) == HeadMask.parse("random:0.2@7", layers=12, heads=12).spec
    page.run(
        "const seed = document.querySelector('[type=number]'); seed.value = 8;"
        "seed.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    assert spec(page) == HeadMask.parse("random:0.2@8", layers=12, heads=12).spec
    page.one("optgroup option[value='mask:pruned60']").click()
    assert page.one(".chip.active .label").text == "pruned60"
    settled(page)
    shown_scores(page, page_server, "@pruned60")

    page.write("#spec", "12.0\n")
    assert "layer 12 does not exist; this model has layers 0 to 11" in page.one("#spec-wrong").text
    page.write("#spec", "keep:0-1.*\n")
    assert spec(page) == "2-11.*"
    assert not page.one("#spec").get_attribute("aria-invalid")

    # The weight of a selection: the id of the mask is that of the service.
    page.button("All on").click()
    cell(page, 2, 3).click()
    page.run(
        "const weight = document.querySelector('.selected [type=range]'); weight.value = 0.4;"
        "weight.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    weights = [[1.0] * 12 for _ in range(12)]
    weights[2][3] = 0.4
    assert spec(page) == HeadMask.from_matrix(weights).spec
    settled(page)
    page.button("Keep only this").click()
    assert spec(page) == HeadMask.parse("keep:2.3", layers=12, heads=12).spec


def test_four_masks_side_by_side_with_a_baseline(page: Page, page_server: Server) -> None:
    page.open(
        f"#playground?q={quote(MOUSE)}&t=a+wireless+mouse&t=deck+screws&t=cotton+towel&mask=none&mask=0-2.*&base=0&active=1"
    )
    ranking = settled(page)
    assert [row["changes"][0] for row in ranking] == [""] * 3
    assert all(row["move"] in ("–same place", "▲up 1", "▲up 2", "▼down 1", "▼down 2") for row in ranking), (
        ranking
    )
    page.button("Compare one more mask").click()
    page.button("Upper half off").click()
    page.button("Compare one more mask").click()
    page.one("optgroup option[value='variant:pruned20']").click()
    ranking = settled(page, columns=4)
    assert not page.all("[aria-label='Compare one more mask']")
    titles = [row["title"] for row in ranking]
    body = {"query": MOUSE, "titles": titles, "masks": ["none", "0-2.*", "6-11.*"], "variants": ["pruned20"]}
    answer = httpx.post(
        f"{page_server.url}/v1/compare", json=body, headers=KEY, timeout=30
    ).raise_for_status()
    for place, row in enumerate(ranking):
        of_service = [column["results"][place]["score"] for column in answer.json()["columns"]]
        assert row["scores"] == pytest.approx(of_service, abs=0.02)
    page.button("pin mask B as the baseline").click()
    assert page.one(".chip .pin[aria-pressed=true]").get_attribute("aria-label") == "base: mask B"
    assert all(row["changes"][1] == "" and row["changes"][0] for row in settled(page, columns=4))
    page.button("Remove mask A").click()
    assert len(settled(page, columns=3)[0]["scores"]) == 3


def test_a_shared_address_opens_the_whole_state(page: Page) -> None:
    page.open()
    settled(page)
    page.write("#query", "무선 마우스 & more?")
    cell(page, 3, 4).click()
    page.run(
        "const weight = document.querySelector('.selected [type=range]'); weight.value = 0.35;"
        "weight.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.button("Compare one more mask").click()
    page.button("Lower half off").click()
    before = settled(page, columns=3)
    page.button("Copy as…").click()
    link = page.one("dialog textarea").get_attribute("value")
    page.button("Close").click()
    assert link
    assert link.startswith(f"{page.url}/#playground?")
    page.until(lambda: page.browser.current_url == link)
    page.open(link.removeprefix(f"{page.url}/"))
    assert settled(page, columns=3) == before
    assert page.one("#query").get_attribute("value") == "무선 마우스 & more?"
    assert spec(page) == "0-5.*"
    assert page.one(".chip .label").text == "all heads"


def test_copied_commands_run_and_give_the_same_scores(page: Page) -> None:
    page.open("#playground?q=mouse&t=it's+a+%22mouse%22&t=towel&mask=none&mask=0-2.*&active=1&base=0")
    scores = {row["title"]: row["scores"][1] for row in settled(page)}
    page.button("Copy as…").click()
    page.button("curl", "dialog").click()
    command = page.one("dialog textarea").get_attribute("value")
    assert command is not None
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        env={"HEADROOM_API_KEY": "plain", "PATH": "/usr/bin:/bin"},
    )
    results = json.loads(done.stdout)["results"]
    assert [result["score"] for result in results] == pytest.approx(
        [scores['it\'s a "mouse"'], scores["towel"]], abs=0.02
    )
    page.button("Python", "dialog").click()
    compile(page.one("dialog textarea").get_attribute("value") or "", "copied", "exec")
    page.button("serve.yaml", "dialog").click()
    assert '{name: mine, head_mask: "0-2.*", sliced: true}' in (
        page.one("dialog textarea").get_attribute("value") or ""
    )


def test_the_grid_works_with_the_keyboard_alone(page: Page) -> None:
    page.open()
    settled(page)
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


def test_a_burst_of_clicks_leaves_one_request_in_flight_and_the_last_state_counts(
    page: Page, page_server: Server
) -> None:
    page.open()
    settled(page)
    page.run("""
      const press = (cell) => cell.dispatchEvent(new PointerEvent('pointerdown', {bubbles: true, button: 0}));
      const cells = [...document.querySelectorAll('[role=gridcell]')];
      let next = 0;
      const step = () => {
        press(cells[next++]); dispatchEvent(new PointerEvent('pointerup'));
        if (next < 143) setTimeout(step, 4); else window.clicked = true;
      };
      step();""")
    page.until(lambda: page.run("return window.clicked"))
    assert spec(page) == "0-10.*,11.0-10"
    shown_scores(page, page_server, "0-10.*,11.0-10")
    assert page.run("return seen.most") <= 4  # the four listings at the start; then one
    assert page.run("return seen.flying") == 0
    assert page.run("return seen.requests") < 150


def test_what_others_wrote_stays_text(page: Page) -> None:
    hostile = [
        "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>",
        "\u202egnihton si siht\u202c mouse",
        "mouse " * 1700,
        "=cmd|' /C calc'!A0 ${window.stolen = 1} {{7*7}}",
        "a" * 10_000,
    ]
    page.open("#playground?q=" + quote(hostile[0]) + "".join(f"&t={quote(title)}" for title in hostile))
    ranking = settled(page)
    assert {row["title"] for row in ranking} == {" ".join(title.split()) for title in hostile}
    assert page.run("return window.stolen ?? null") is None
    assert page.run("return document.querySelectorAll('main script, main img').length") == 0
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    bidi = page.run("return getComputedStyle([...document.querySelectorAll('.name bdi')][0]).unicodeBidi")
    assert bidi == "isolate"
    page.one(".ranking .name").click()
    page.one(".details")


def test_errors_stand_at_their_field_and_come_back_by_themselves(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse&t=towel")
    settled(page)
    page.run(
        "document.querySelector('#query').value = '\\u200b'; document.querySelector('#query')"
        ".dispatchEvent(new InputEvent('input', {bubbles: true}))"
    )
    page.until(lambda: "must not be blank" in page.one("#query-wrong").text)
    assert page.one("#query").get_attribute("aria-invalid") == "true"
    page.write("#query", "")
    page.until(lambda: page.one("#query-wrong").text == "Type a query.")
    page.one(".empty")

    page.run("""
      const message = 'The queue is full; try again later.';
      const busy = JSON.stringify({error: {type: 'queue_full', message, param: null}});
      const real = window.fetch; let refused = 0;
      window.answer = (...what) => refused++ < 2
        ? Promise.resolve(new Response(busy, {status: 429, headers: {'retry-after': '1'}}))
        : (window.answer = undefined, real(...what));""")
    page.one("#query").send_keys("mouse")
    page.until(lambda: "The queue is full" in page.one(".trouble").text)
    assert page.button("Try now", ".trouble")
    settled(page)
    page.until(lambda: not page.all(".trouble"))


def test_titles_are_typed_pasted_and_read_from_a_file(page: Page, tmp_path: Path) -> None:
    page.open("#playground?q=mouse&t=one+mouse")
    settled(page)
    page.button("Edit 1 title").click()
    page.write("#titles", "")
    page.one(".empty")
    page.write("#titles", "a mouse\n\n  \na towel\n")
    assert len(settled(page)) == 2
    file = tmp_path / "judged.csv"
    lines = [
        "query,title,grade",
        '"angle bracket","Steel ""angle"", 2 inch",4',
        "angle bracket,Towel,0",
        "other,Screw,1",
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    page.one("[type=file]").send_keys(str(file))
    page.until(lambda: page.one("#query").get_attribute("value") == "angle bracket")
    page.until(lambda: {row["title"] for row in rows(page)} == {'Steel "angle", 2 inch', "Towel"})
    assert "1 other query of the file is left out" in page.one(".note").text


def test_the_browser_reads_masks_as_the_service_does(page: Page) -> None:
    page.open()
    script = """arguments[0].map(([text, layers, heads]) => {
        try {
          const weights = mask_spec.parseSpec(text, {layers, heads});
          return [mask.canonical(weights, {layers, heads}), mask.maskId(weights)];
        } catch (error) { return error instanceof mask_spec.MaskError ? error.message : String(error.stack); }
      })"""
    valid = [(case["spec"], case["layers"], case["heads"]) for case in CASES["valid"] if "spec" in case]
    valid += [(f"random:0.{n}@{n * n}/*.0-{n % 5 + 1}", n, 7) for n in range(1, 30)]
    for (text, layers, heads), answer in zip(valid, page.evaluate(script, valid), strict=True):
        mask = HeadMask.parse(text, layers=layers, heads=heads)
        assert answer == [mask.spec, mask.id], text
    wrong = [(text, 12, 12) for text in CASES["wrong"]["specs"]]
    for (text, *_), answer in zip(wrong, page.evaluate(script, wrong), strict=True):
        with pytest.raises(InvalidMask) as refused:
            HeadMask.parse(text, layers=12, heads=12)
        assert answer == str(refused.value), text
    weighted = [case for case in CASES["valid"] if "weights" in case.get("json", {})]
    script = """arguments[0].map(({json, layers, heads}) =>
        mask.canonical(Float32Array.from(json.weights.flat()), {layers, heads}))"""
    assert page.evaluate(script, weighted) == [case["canonical"] for case in weighted]


def test_time_is_measured_in_turns(page: Page) -> None:
    page.open("#playground?q=mouse&t=mouse&t=towel&mask=none&mask=0-11.*&active=1&base=0")
    settled(page)
    page.button("Measure time, B against A").click()
    page.until(lambda: "medians" in page.one(".time [role=status]").text)
    assert "ms in the model for 2 titles (medians of 11 turns" in page.one(".time [role=status]").text

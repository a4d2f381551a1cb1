"""Attention, experiments and live load in a real browser, on a real service with seeded experiments."""

import base64
import math
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from headroom.service.experiments.definition import ExperimentConfig
from tests.service.page.browsing import Page

pytestmark = pytest.mark.slow

KEY = {"authorization": "Bearer plain"}


def attention(server: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server}/v1/attention", json=body, headers=KEY, timeout=30).raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def tokens(page: Page) -> list[str]:
    found: list[str] = page.run(
        "return [...document.querySelectorAll('.token')].map((token) => token.innerText)"
    )
    return found


def painted(page: Page) -> int:
    """How many small maps are drawn."""
    found: int = page.run(
        """return [...document.querySelectorAll('.small canvas')]
          .filter((canvas) => canvas.width > 1).length"""
    )
    return found


def test_a_heads_attention_is_read_as_text_and_as_a_map(page: Page, page_server: str) -> None:
    query, title = "angle bracket", "Simpson Strong-Tie 12-Gauge Angle"
    page.open(f"#attention?q={quote(query)}&t=towel&t={quote(title)}&pair=1&head=0.8")
    page.until(lambda: len(tokens(page)) > 5)
    answer = attention(page_server, query=query, title=title, heads="0.8")
    shown = [token.removeprefix("▁") for token in answer["tokens"]]
    assert tokens(page) == shown
    rows = answer["heads"][0]["probabilities"]

    source = shown.index("angle")
    page.all(".token")[source].click()
    strongest = page.one(".strongest li").text
    to = max(range(len(rows)), key=lambda i: rows[source][i])
    part = lambda i: "" if shown[i] in ("<s>", "</s>") else (" query", " title")[answer["segments"][i]]  # noqa: E731
    assert strongest == f"{shown[to]}{part(to)} {100 * rows[source][to]:.1f} %"
    assert page.one(".reading .soft").text == "of the query"
    page.button("Looks at it").click()
    to = max(range(len(rows)), key=lambda i: rows[i][source])
    assert page.one(".strongest li").text == f"{shown[to]}{part(to)} {100 * rows[to][source]:.1f} %"

    # The map, under the pointer.
    size = page.run("return document.querySelector('.field-of-cells canvas').width")
    assert size == len(rows)
    cells = page.one(".field-of-cells")
    page.run("arguments[0].scrollIntoView({block: 'center'})", cells)
    step = cells.size["width"] / size
    offset = lambda i: math.floor((i + 0.5) * step - cells.size["width"] / 2)  # noqa: E731
    ActionChains(page.browser).move_to_element_with_offset(cells, offset(3), offset(1)).perform()
    share = f"{100 * rows[1][3]:.1f} %"
    assert page.one(".map-line").text == f"{shown[1]}{part(1)} → {shown[3]}{part(3)}: {share}".replace(
        "  ", " "
    )

    # Special tokens go, and word pieces are joined; what is hidden is counted.
    page.one(".boxes label:nth-child(1)").click()
    page.one(".boxes label:nth-child(2)").click()
    assert tokens(page) == ["angle", "bracket", "Simpson", "Strong-Tie", "12-Gauge", "Angle"]
    page.button("It looks at").click()
    assert page.one(".strongest li.soft").text.startswith("hidden tokens ")

    # All heads, small; the arrow keys go from one to the next.
    page.until(lambda: painted(page) == 144)
    page.one(".small[aria-checked=true]").send_keys(Keys.ARROW_DOWN)
    assert page.one(".one-head h2").text.startswith("Layer 1 · head 8")
    assert page.browser.switch_to.active_element.get_attribute("aria-checked") == "true"


def test_an_experiment_shows_the_services_report_and_its_trips(page: Page, page_server: str) -> None:
    def analysed() -> Any:
        return httpx.get(f"{page_server}/v1/experiments/prune20", headers=KEY, timeout=60).json()["report"]

    page.open("#experiments")
    page.until(lambda: page.all(".report .verdict"))
    report = analysed()
    text = page.one(".report").text.replace("\N{NO-BREAK SPACE}", " ")
    assert page.one(".report .verdict").text.replace("\N{NO-BREAK SPACE}", " ").endswith(report["text"])
    for count in report["exposures"].values():
        assert f"{count:,}" in text
    assert f"{sum(report['exposures'].values()):,} of {report['planned_units']:,} planned units" in text
    assert text.count(report["arms"][0]["metrics"][0]["text"]) == 1  # the verdict is said once
    assert report["sample_ratio"]["text"] in text
    assert "mean score difference" in text
    assert "No guardrail has tripped." in page.one(".experiment").text
    page.until(lambda: page.run("return document.querySelector('.report img').naturalWidth > 0"))
    page.one(".report details:nth-of-type(2) summary").click()
    assert "confidence sequences" in page.one(".report").text
    shared = httpx.get(f"{page_server}/v1/experiments/prune20/report.html", headers=KEY, timeout=60)
    assert "http" not in re.sub(r"http://www.w3.org/\S+", "", shared.text)  # it needs no other file
    drawing = base64.b64decode(shared.text.partition("svg+xml;base64,")[2].partition('"')[0]).decode()
    assert drawing.count(">margin<") == 2
    lines = re.findall('d="(M[^"]+)" class="line"', drawing)
    assert max(path.count("L") for path in lines) >= 20  # over time
    widths = [
        m["high"] - m["low"] for look in report["looks"] for m in look["effects"][:1] if m["low"] is not None
    ]
    assert widths[-1] < widths[0] / 2

    page.button("deeper\nrolled back", ".list").click()
    page.until(lambda: "p99 612 ms over 500 ms" in page.one(".trip").text)
    assert page.one(".experiment .status").text == "rolled back"


def choices(page: Page, within: str) -> list[str]:
    """Return what a person can press."""
    return [button.text for button in page.all(f"{within} button")]


def test_live_load_is_read_from_the_metrics(page: Page, page_server: str) -> None:
    page.open("#live")
    page.one(".tiles")
    body = {"query": "mouse", "titles": ["wireless mouse"] * 7, "variant": "half"}
    for _ in range(3):
        httpx.post(f"{page_server}/v1/score", json=body, headers=KEY, timeout=30).raise_for_status()

    def row() -> list[str]:
        rows = page.run("""
          const rows = [...document.querySelectorAll('.live tbody tr')];
          return rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))""")
        return next((cells for cells in rows if cells[0] == "half"), [""] * 7)

    page.until(lambda: row()[1] == "72" and row()[2] not in ("–", "0") and row()[5].endswith(" ms"))
    page.button("half", ".live").click()
    page.until(lambda: "Pair time, half" in page.one(".charts").text)
    assert page.until(lambda: page.all(".charts .line"))
    names = [name.text for name in page.all(".tiles dt")]
    assert [name for name in names if "half" in name] == ["Pairs, half", "Pair time, p99, half"]
    page.run("""
      window.answer = async (...what) => { // the variant leaves the config
        const text = await (await unwatched(...what)).text();
        return new Response(text.split('\\n').filter((line) => !line.includes('"half"')).join('\\n'));
      };""")
    page.until(lambda: "Pair time, all variants" in page.one(".charts").text)
    assert not any("half" in name.text for name in page.all(".tiles dt"))
    page.run("window.answer = undefined")


def test_without_an_experiment_there_is_a_text_to_copy(page: Page) -> None:
    page.open("#playground?q=mouse&t=towel")
    page.one(".ranking")
    page.run("window.answer = async () => Response.json({experiments: []})")
    page.one("nav a[href^='#experiments']").click()
    entry = yaml.safe_load(page.one(".nothing pre:not(.needs-keys)").text)["experiments"][0]
    assert ExperimentConfig.model_validate(entry).name == "first"

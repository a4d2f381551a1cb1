"""Reads the playground in a browser, for the tests."""

from typing import Any

import httpx
import pytest

from tests.service.page.browsing import Page

KEY = {"authorization": "Bearer plain"}
MOUSE = "wireless mouse"


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


def with_all_heads(page: Page) -> list[dict[str, Any]]:
    """Open the page as on a first visit, switch all heads on, and return the ranking."""
    page.open()
    settled(page)
    page.button("All on").click()
    return settled(page)


def skip_steps(page: Page) -> None:
    """Leave the steps of a first visit, if they are shown."""
    for button in page.all(".step .quiet"):
        button.click()


def expected(server: str, body: dict[str, Any]) -> dict[str, float]:
    """The scores that the service itself gives, by title."""
    answer = httpx.post(f"{server}/v1/score", json=body, headers=KEY, timeout=30).raise_for_status()
    return {body["titles"][result["index"]]: result["score"] for result in answer.json()["results"]}


def cell(page: Page, layer: int, head: int) -> Any:
    return page.one(f'[data-at="{layer}.{head}"]')


def spec(page: Page) -> str:
    return str(page.one("#spec").get_attribute("value"))


def shown_scores(page: Page, server: str, mask: str | dict[str, Any]) -> None:
    """Assert that the second column's scores are those of the service under a mask."""
    ranking = settled(page)
    titles = [row["title"] for row in ranking]
    scores = expected(server, {"query": MOUSE, "titles": titles, "head_mask": mask})
    assert [row["scores"][1] for row in ranking] == pytest.approx([scores[t] for t in titles], abs=0.02)
    assert [row["scores"][1] for row in ranking] == sorted(
        (row["scores"][1] for row in ranking), reverse=True
    )

"""The page when the service is started again with another model."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from headroom.loadtest.server import free_port
from tests.checkpoints import write_checkpoint
from tests.service.page.browsing import Page
from tests.service.page.playground import cell, rows, settled
from tests.service.page.seeding import running

pytestmark = [pytest.mark.slow, pytest.mark.more]

QUERY = "wireless mouse"
TITLES = ["black wireless mouse", "steel angle bracket", "mouse cable", "kitchen towel set"]
ASKED = f"q={QUERY.replace(' ', '+')}" + "".join(f"&t={title.replace(' ', '+')}" for title in TITLES)


def first_column(page: Page) -> list[float]:
    """Return the scores of the first column, in the order of the titles."""
    settled(page)
    of_title = {row["title"]: row["scores"][0] for row in rows(page)}
    return [of_title[title] for title in TITLES]


def test_another_model_after_a_restart_is_followed(chromium: Any, tmp_path: Path) -> None:
    """The live config, and so its version, is the same; the masks are read again for the other model."""
    deep = write_checkpoint(tmp_path / "deep", seed=1, num_hidden_layers=4)
    wide = write_checkpoint(tmp_path / "wide", seed=2, num_attention_heads=8)
    port = free_port()
    with running(deep, port=port) as (url, _):
        page = Page(chromium, url)
        page.open(f"#playground?{ASKED}&mask=1.2&mask=3.*&active=1&base=0")
        settled(page)
        cell(page, 3, 1)
    with running(wide, port=port):
        page.write("#query", "mouse cable")
        page.until(lambda: "wide" in page.one(".model").text)
        assert "3 layers × 8 heads" in page.one(".model").text
        page.until(lambda: len(page.all(".cell")) == 24)
        assert [one.text for one in page.all(".chip .label")] == ["1.2", "all heads"]
        said = "Another model runs now, which cannot read a mask: layer 3 does not exist"
        assert page.one(".heads .trouble").text.startswith(said)
        asked = {"query": "mouse cable", "titles": TITLES}
        answer = httpx.post(f"{url}/v1/score", json={**asked, "head_mask": "1.2"}, timeout=30).json()
        scores = [result["score"] for result in answer["results"]]
        page.until(lambda: first_column(page) == pytest.approx(scores, abs=0.0006))
        page.one("nav a[href^='#attention']").click()
        page.until(lambda: len(page.all(".small")) == 24)
        page.check_and_leave()

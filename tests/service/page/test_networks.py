"""The page on a service of several networks, and while its live config changes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from headroom.loadtest.server import free_port
from headroom.models.checkpoint.files import HEAD_STUDY, weights_id
from headroom.service.config.settings import LiveConfig
from headroom.service.replica import Replica
from tests.checkpoints import write_checkpoint
from tests.service.page.browsing import Page
from tests.service.page.playground import cell, copied_for_serve_yaml, rows, settled
from tests.service.page.seeding import running

pytestmark = [pytest.mark.slow, pytest.mark.more]

QUERY = "wireless mouse"
TITLES = ["black wireless mouse", "steel angle bracket", "mouse cable", "kitchen towel set"]
KEY = "boss"
AUTH = {"authorization": f"Bearer {KEY}"}
ASKED = f"q={QUERY.replace(' ', '+')}" + "".join(f"&t={title.replace(' ', '+')}" for title in TITLES)


@dataclass(frozen=True)
class Networks:
    """A service whose own checkpoint is one of two called `ranker`; `short` has one raw score."""

    url: str
    replica: Replica
    variants: dict[str, dict[str, Any]]

    def put_in_force(self, *names: str, **fields: Any) -> None:
        """Change the live config to these variants."""
        entries = [self.variants[name] for name in names]
        self.replica.apply(LiveConfig.model_validate({"variants": entries, **fields}))

    def scores(self, **fields: Any) -> list[float]:
        """Return the service's own answer for the titles."""
        body = {"query": QUERY, "titles": TITLES, **fields}
        answer = (
            httpx.post(f"{self.url}/v1/score", json=body, headers=AUTH, timeout=30).raise_for_status().json()
        )
        return [result["score"] for result in answer["results"]]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Networks]:
    folder = tmp_path_factory.mktemp("networks")
    own = write_checkpoint(folder / "first" / "ranker", seed=1)
    study = {
        "weights": weights_id(own),
        "shape": [3, 4],
        "data": "mine.csv",
        "pairs": 27,
        "queries": 9,
        "heads": [
            {
                "layer": layer,
                "head": head,
                "delta": {"qwk": -0.01},
                "interval": {"qwk": [None, None]},
                "p_adjusted": None,
                "roles": {"term_match": 0.5},
            }
            for layer in range(3)
            for head in range(4)
        ],
    }
    (own / HEAD_STUDY).write_text(json.dumps(study), encoding="utf-8")
    namesake = write_checkpoint(folder / "second" / "ranker", seed=2)
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    short = write_checkpoint(
        folder / "short", seed=3, num_labels=1, num_hidden_layers=2, sentence_transformers=identity
    )
    variants: dict[str, dict[str, Any]] = {
        "full": {"name": "full"},
        "fewer": {"name": "fewer", "head_mask": "0.0-1"},
        "next": {"name": "next", "checkpoint": str(namesake)},
        "short": {"name": "short", "checkpoint": str(short)},
    }
    live = LiveConfig.model_validate({"variants": list(variants.values())})
    with running(own, live, api_keys=f"{KEY};role=admin") as (url, replica):
        yield Networks(url, replica, variants)


@pytest.fixture
def page(chromium: Any, networks: Networks) -> Iterator[Page]:
    """The page; at the end nothing went wrong in it."""
    networks.put_in_force("full", "fewer", "next", "short")
    page = Page(chromium, networks.url, key=KEY)
    yield page
    page.check_and_leave()


def shown(page: Page, column: int, columns: int = 2) -> list[float]:
    """Return the scores of a column, in the order of the titles."""
    settled(page, columns)
    of_title = {row["title"]: row["scores"][column] for row in rows(page)}
    return [of_title[title] for title in TITLES]


def shows(page: Page, column: int, scores: list[float], columns: int = 2) -> Callable[[], bool]:
    """Return whether a column has these scores, as a condition to wait for."""
    return lambda: shown(page, column, columns) == pytest.approx(scores, abs=0.0006)


def choose(page: Page, variant: str) -> None:
    """Make the active column a variant."""

    def chosen() -> bool:
        if page.one(".chip.active .label").text != variant:
            page.one(f"optgroup option[value='variant:{variant}']").click()
        return page.one(".chip.active .label").text == variant

    page.until(chosen, f"{variant} is not chosen")


def options(page: Page, selector: str) -> list[str]:
    return [option.text for option in page.all(f"{selector} option")]


def test_a_change_of_the_live_config_is_followed(page: Page, networks: Networks) -> None:
    page.open(f"#playground?{ASKED}&mask=none&mask=none&active=1&base=0")
    settled(page)
    choose(page, "fewer")  # as a mask, which then is not the variant any more
    assert page.all(".grid-box.fixed") == []
    networks.put_in_force("full", "fewer", "short", default="fewer")
    cell(page, 2, 3).click()
    page.until(lambda: [one.text for one in page.all(".chip .label")] == ["fewer none", "fewer 0.0-1,2.3"])
    page.until(shows(page, 0, networks.scores(variant="fewer")))
    page.until(shows(page, 1, networks.scores(head_mask="2.3")))
    assert cell(page, 0, 1).get_attribute("aria-label").startswith("layer 0 head 1, off by fewer")  # type: ignore[union-attr]
    assert options(page, "optgroup[label=Variants]") == ["full", "fewer", "short"]
    assert '{name: mine, head_mask: "0.0-1,2.3", sliced: true}' in copied_for_serve_yaml(page)
    page.button("Close", "dialog").click()

    page.one("nav a[href^='#experiments']").click()
    page.button("Start an experiment").click()
    control = page.one(".start select[name=control]")
    assert control.get_attribute("value") == "fewer"
    page.write(".start [name=traffic]", "50")
    networks.put_in_force("full", "next")
    page.hurry()
    page.until(lambda: control.get_attribute("value") == "full")
    assert options(page, ".start select[name=treatment]") == ["full", "next"]
    assert page.one(".start [name=traffic]").get_attribute("value") == "50"


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
        page.until(shows(page, 0, [result["score"] for result in answer["results"]]))
        page.one("nav a[href^='#attention']").click()
        page.until(lambda: len(page.all(".small")) == 24)
        page.check_and_leave()

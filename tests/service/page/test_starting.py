"""The page begins an experiment, ships an arm and takes it back, without the config."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from headroom.service.config.settings import LiveConfig
from tests.checkpoints import write_checkpoint
from tests.service.page.browsing import Page
from tests.service.page.seeding import served
from tests.service.page.test_access import AXE, reaching_out
from tests.service.page.test_views import choices

pytestmark = pytest.mark.more

VARIANTS = [{"name": "full"}, {"name": "fewer", "head_mask": "0.0"}]


def fits(page: Page, width: int) -> bool:
    return reaching_out(page) == ([], width)


def look(page: Page, name: str) -> None:
    """Check that nothing reaches beyond a telephone's edge."""
    for width in (1440, 390):
        page.size(width, 844)
        page.next_frame()
        page.until(partial(fits, page, width), f"{name} at {width}")
        if AXE.exists():
            page.run(AXE.read_text(encoding="utf-8"))
            found = page.browser.execute_async_script("axe.run(document).then(arguments[0])")["violations"]
            assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [], name
    page.size(1440, 1000)


def test_an_admin_starts_ships_and_rolls_back_and_others_are_asked_for_a_key(
    chromium: Any, tmp_path: Path
) -> None:
    live = LiveConfig.model_validate({"variants": VARIANTS})
    database = f"sqlite:///{tmp_path / 'x.db'}"
    model = write_checkpoint(tmp_path / "model")
    with served(model, live, api_keys="plain,boss;role=admin", database_url=database) as url:

        def listed() -> list[dict[str, Any]]:
            answer = httpx.get(f"{url}/v1/experiments", headers={"authorization": "Bearer boss"}, timeout=30)
            found: list[dict[str, Any]] = answer.json()["experiments"]
            return found

        page = Page(chromium, url, key="plain").open("#experiments")
        page.button("Start an experiment").click()
        assert page.one(".start select[name=control]").get_attribute("value") == "full"
        assert page.one(".start select[name=treatment]").get_attribute("value") == "fewer"
        look(page, "form")
        page.write(".start [name=name]", "fewer-heads")
        page.write(".start [name=traffic]", "50")
        page.button("Start fewer-heads").click()
        page.one("dialog.key #key").send_keys("boss\n")
        page.until(lambda: not page.all("dialog.key[open]"))
        assert "admin role" in page.one(".start .wrong").text
        assert listed() == []
        page.button("Start fewer-heads").click()
        page.until(lambda: page.one(".experiment .status").text == "running")
        (one,) = listed()
        assert [one[key] for key in ("name", "traffic", "slots", "in_config")] == [
            *("fewer-heads", 0.5, [0, 10_000], False)
        ]
        assert [(arm["name"], arm["variant"]) for arm in one["arms"]] == [
            ("control", "full"),
            ("fewer", "fewer"),
        ]

        page.button("Start an experiment").click()  # a second one would have nobody
        assert "Other experiments have all users" in page.one(".start").text
        assert not page.button("Start fewer-1").is_enabled()
        page.button("Cancel", ".start").click()

        page.button("Ship").click()
        assert choices(page, ".confirm") == ["Ship fewer", "Cancel"]
        look(page, "ship")
        page.button("Ship fewer", ".confirm").click()
        page.until(lambda: page.one(".experiment .status").text == "shipped")
        page.until(lambda: choices(page, ".actions") == ["Roll back", "Stop"])
        page.button("Roll back").click()
        assert "Everybody gets the default again" in page.one(".confirm span").text
        page.button("Roll back fewer", ".confirm").click()
        page.until(lambda: page.one(".experiment .status").text == "stopped")
        page.until(lambda: choices(page, ".actions") == ["Ship"])
        assert not page.all(".trip")  # no guardrail did it
        look(page, "over")

        page.button("Start an experiment").click()
        page.write(".start [name=name]", "fewer-heads")
        page.button("Start fewer-heads").click()
        page.until(lambda: "there is an experiment 'fewer-heads' already" in page.one(".start .wrong").text)
        assert len(listed()) == 1
        page.check_and_leave()

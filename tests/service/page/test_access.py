"""Who can use the page: with a key, without a mouse, on a telephone, with another model, in the dark."""

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.referees import in_ci
from tests.service.page.browsing import PATIENCE_S, Page
from tests.service.page.playground import MOUSE, settled, skip_steps

pytestmark = pytest.mark.slow

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
IMAGES = Path(__file__).parents[3] / "docs" / "images"
ALL_RULES = {"rules": {"target-size": {"enabled": True}}}
OF_COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
"""Options of axe-core: its rules, with one that is off by default, and those that look at colours."""
VIEWS = ("playground", "attention", "experiments", "live")
SHOWN = (
    "Logitech M185 Wireless Mouse, 2.4 GHz with USB Receiver, Black",
    "Rechargeable Bluetooth mouse for laptop and tablet, silent click",
    "Wireless keyboard and mouse set, full size",
    "Wireless phone charger, 15 W fast charging stand",
    "Wired optical mouse with 1.8 m USB cable",
    "Toy mouse for cats, 12 pack",
    "Mouse pad, 300 × 250 mm, non-slip rubber base",
    "Cotton dish towel, set of 4",
    "Replacement USB receiver for wireless mouse",
    "Gaming mouse with RGB light, 6 buttons, wired",
)


def address(view: str, masks: str = "&mask=none&mask=5-6.*&active=1&base=0") -> str:
    titles = "".join(f"&t={httpx.QueryParams({'t': title})}".replace("&t=t=", "&t=") for title in SHOWN)
    return f"#{view}?q=wireless+mouse{titles}{masks}" + ("&pair=0&head=5.5" if view == "attention" else "")


def ready(page: Page, view: str) -> None:
    """Until a view shows what it is for."""
    match view:
        case "playground":
            settled(page, len(page.all(".chip")) or 2)
        case "attention":
            page.until(
                lambda: page.run("""
                    const maps = [...document.querySelectorAll('.small canvas')];
                    return maps.length && maps.every((map) => map.width > 1)""")
            )
        case "experiments":
            page.until(lambda: page.all(".report figure img"))
        case _:
            page.until(lambda: len(page.all(".charts .line")) >= 3)


@pytest.mark.more
def test_axe_finds_nothing_serious(page: Page) -> None:
    if not AXE.exists():
        reason = "axe-core is missing; run: npm ci --prefix tests/service/page"
        if in_ci():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    for scheme, widths in (("light", (1280, 390)), ("dark", (1280,))):  # of the width, no colour depends
        page.colours(scheme)
        options = ALL_RULES if scheme == "light" else OF_COLOURS
        for view in VIEWS:
            page.open(address(view))
            ready(page, view)
            if view == "playground":
                page.one(".ranking .name").click()
            page.run(AXE.read_text(encoding="utf-8"))
            for width in widths:
                page.size(width, 844)
                page.next_frame()
                found = page.browser.execute_async_script(
                    f"axe.run(document, {json.dumps(options)})"
                    ".then((found) => arguments[0](found.violations))"
                )
                serious = [
                    (one["id"], one["nodes"][0]["html"][:160], one["nodes"][0]["failureSummary"])
                    for one in found
                    if one["impact"] in ("serious", "critical")
                ]
                assert serious == [], (scheme, view, width, serious)


@pytest.mark.more
def test_a_telephone_shows_every_view_without_scrolling_sideways(page: Page) -> None:
    for view in VIEWS:
        page.open(address(view))
        ready(page, view)
        for width in (390, 320):
            page.size(width, 844)
            # Charts are drawn anew a frame later, so what counts is where the page comes to rest.
            deadline = time.monotonic() + PATIENCE_S
            while (found := reaching_out(page)) != ([], width) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert found == ([], width), view


def reaching_out(page: Page) -> tuple[list[str], int]:
    """Return what reaches beyond the window on the right, and the width of the whole page."""
    wide = page.run("""
      const scrolls = '.scroll, .map-scroll, .grid-box, .details, svg';
      return [...document.querySelectorAll('body *')]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
        .filter((element) => !element.closest(scrolls))
        .map((element) => element.outerHTML.slice(0, 90))""")
    return wide, page.run("return document.documentElement.scrollWidth")


def test_with_keys_it_asks_for_one_and_keeps_it_for_the_tab(page_server: str, chromium: Any) -> None:
    page = Page(chromium, page_server)
    page.open()
    page.write("dialog.key #key", "wrong\n")
    page.until(lambda: "not one that the service takes" in page.one("dialog.key .wrong").text)
    page.write("dialog.key #key", "plain\n")
    assert len(settled(page)) == 10
    assert page.run("return sessionStorage.getItem('headroom-key')") == "plain"
    assert page.run("return localStorage.length") == 0
    assert "plain" not in page.browser.current_url
    page.check_and_leave()


def test_the_files_are_open_strict_and_kept_for_good(page_server: str) -> None:
    answer = httpx.get(page_server)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-cache"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    again = httpx.get(page_server, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    files = re.findall(r'(?:href|src)="(playground/[^"]+)"', answer.text)
    assert sorted(Path(file.partition("?")[0]).suffix for file in files) == [".css", ".js", ".svg"]
    for file in files:
        plain, packed = (
            httpx.get(f"{page_server}/{file}", headers={"accept-encoding": encoding})
            for encoding in ("identity", "gzip")
        )
        assert "immutable" in plain.headers["cache-control"]
        path, _, digest = file.partition("?")
        assert hashlib.sha256(plain.content).hexdigest().startswith(digest)
        other = httpx.get(f"{page_server}/{path}?of-another-version")  # as during a rolling upgrade
        assert (other.content, other.headers["cache-control"]) == (plain.content, "no-cache")
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content  # httpx unpacks it
    key = {"authorization": "Bearer plain"}
    for path in ("v1/heads", "playground/facts"):  # what a study found is not open
        assert httpx.get(f"{page_server}/{path}").status_code == 401
    found = httpx.get(f"{page_server}/v1/heads", headers=key).json()
    assert (found["layers"], found["heads"], len(found["study"]["heads"])) == (12, 12, 144)
    facts = httpx.get(f"{page_server}/playground/facts", headers=key)
    assert facts.json()["heads"] == found
    assert facts.headers["content-encoding"] == "gzip"
    again = httpx.get(
        f"{page_server}/playground/facts", headers=key | {"if-none-match": facts.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(f"{page_server}/playground/facts", headers={"if-none-match": "*"}).status_code == 401
    for path in ("/playground/../http/app.py", "/playground/nope.js", "/playground/vendor/preact.d.ts"):
        assert httpx.get(page_server + path).status_code in (401, 404)


def test_the_page_needs_six_requests(page: Page) -> None:
    page.open()
    settled(page)
    resources = page.run("return performance.getEntriesByType('resource').length")
    assert resources + 2 <= 6  # the page and its icon


@pytest.mark.more
@pytest.mark.skipif(
    "SCREENSHOTS" not in os.environ, reason="set SCREENSHOTS=1 to write docs/images/playground-*.png"
)
def test_screenshots_for_the_documentation(page: Page, page_server: str) -> None:
    for scheme in ("light", "dark"):
        page.colours(scheme)
        page.size(1440, 720)
        for view in VIEWS:
            page.open(address(view))
            ready(page, view)
            skip_steps(page)
            if view == "playground":
                page.run("document.querySelector('[data-at=\"3.8\"]').focus()")
            if view == "live":
                page.until(lambda: under_load(page, page_server) >= 8)
            name = view if view == "playground" else f"playground-{view}"
            image = IMAGES / f"{name}-{scheme}.png"
            image.unlink(missing_ok=True)
            page.screenshot(image)
            assert image.stat().st_size > 10_000, f"{image.name} shows nothing"


def under_load(page: Page, server: str) -> int:
    """Send some traffic. Returns how many points a chart of the live view has."""
    for variant, titles in (("full", 12), ("pruned20", 8), ("half", 20)):
        body = {"query": MOUSE, "titles": list(SHOWN[: titles % 8 + 1]) * 2, "variant": variant}
        httpx.post(f"{server}/v1/score", json=body, headers={"authorization": "Bearer plain"}, timeout=30)
    path = page.run("return document.querySelector('.charts .line')?.getAttribute('d') ?? ''")
    return path.count("L")

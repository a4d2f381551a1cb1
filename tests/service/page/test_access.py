"""Who can use the page: with a key, without a mouse, on a telephone, with another model, in the dark."""

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.files import HEAD_STUDY, weights_id
from headroom.models.quality.metrics import RANKED
from headroom.models.study.head_study import head_study
from headroom.service.config.settings import LiveConfig
from tests.checkpoints import write_checkpoint
from tests.referees import in_ci
from tests.service.page.browsing import PATIENCE_S, Page
from tests.service.page.playground import MOUSE, cell, copied_for_serve_yaml, settled, skip_steps, spec
from tests.service.page.seeding import SHIPPED, served

pytestmark = pytest.mark.slow

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
IMAGES = Path(__file__).parents[3] / "docs" / "images"
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


ALL_ON = "&mask=none&mask=none&active=1&base=0"


@pytest.fixture(autouse=True)
def state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


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
            page.until(lambda: page.all(".finding .band"))
        case _:
            page.until(lambda: len(page.all(".charts .line")) >= 3)


def test_axe_finds_nothing_serious(page: Page) -> None:
    if not AXE.exists():
        reason = "axe-core is missing; run: npm ci --prefix tests/service/page"
        if in_ci():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    for scheme, widths in (("light", (1280, 390)), ("dark", (1280,))):  # of the width, no colour depends
        page.colours(scheme)
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
                    "axe.run(document, {rules: {'target-size': {enabled: true}}})"
                    ".then((found) => arguments[0](found.violations))"
                )
                serious = [
                    (one["id"], one["nodes"][0]["html"][:160], one["nodes"][0]["failureSummary"])
                    for one in found
                    if one["impact"] in ("serious", "critical")
                ]
                assert serious == [], (scheme, view, width, serious)


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


def test_the_theme_can_be_switched_and_is_kept(page: Page) -> None:
    page.open()
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)
    page.button("Colours: Auto. Change").click()
    page.button("Colours: Light. Change").click()
    dark = page.run(paper)
    assert dark != light
    page.open()
    page.one(".brand")
    assert page.run(paper) == dark
    page.colours("dark")
    page.button("Colours: Dark. Change").click()
    assert page.run(paper) == dark  # as the system has it
    page.run("localStorage.clear()")


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


def test_the_key_dialog_can_be_left_and_opened_again(page_server: str, chromium: Any) -> None:
    page = Page(chromium, page_server)
    page.open()
    page.button("Cancel", "dialog.key").click()
    page.until(lambda: not page.all("dialog.key[open]"))
    assert "This service asks for an API key." in page.one(".empty").text
    page.button("Enter a key").click()
    page.write("dialog.key #key", "plain\n")
    settled(page)
    page.run("window.answer = async () => new Response('', {status: 401})")  # somebody withdraws the key
    page.write("#query", "a mouse")
    page.button("Cancel", "dialog.key").click()
    assert "This service asks for an API key." in page.one("main > .empty").text
    page.run("window.answer = undefined")
    page.button("Enter a key").click()
    page.write("dialog.key #key", "plain\n")
    page.until(lambda: not page.all("main > .empty"))
    page.check_and_leave()


def test_a_refused_key_is_not_typed_on_and_a_dialog_that_was_left_stays_closed(
    page_server: str, chromium: Any
) -> None:
    page = Page(chromium, page_server)
    page.open()
    page.write("dialog.key #key", "wrong\n")
    page.until(lambda: "not one that the service takes" in page.one("dialog.key .wrong").text)
    page.one("dialog.key #key").send_keys("plain\n")  # and not wrongplain
    settled(page)
    page.run("window.answer = async () => new Response('', {status: 401})")  # somebody withdraws the key
    page.write("#query", "a mouse")
    page.one("dialog.key #key").send_keys("old")
    page.button("Cancel", "dialog.key").click()
    page.until(lambda: not page.all("dialog.key[open]"))
    page.one("main > .empty")
    asked = page.run("return seen.requests")
    page.one("#query").click()
    page.one("#query").send_keys(" pad")
    page.until(lambda: page.run("return seen.requests > arguments[0] && !seen.flying", asked))
    page.next_frame()
    assert not page.all("dialog.key[open]")
    assert page.one("#query").get_attribute("value") == "a mouse pad"
    assert "This service asks for an API key." in page.one("main > .empty").text
    page.button("Enter a key").click()
    assert page.one("dialog.key #key").get_attribute("value") == ""
    page.button("Cancel", "dialog.key").click()
    # The service takes requests as they are again; whatever other tests did, its experiments run.
    page.run("""
      window.answer = async (path, options) => {
        const reply = await unwatched(path, options);
        if (!path.startsWith('v1/experiments') || options.method === 'POST') return reply;
        const { experiments, ...one } = await reply.json();
        const running = (each) => ({...each, status: 'running'});
        return Response.json(experiments ? {experiments: experiments.map(running)} : running(one));
      };""")
    page.one("#query").send_keys("s")
    page.until(lambda: not page.all("main > .empty"))

    page.one("nav a[href^='#experiments']").click()
    page.button("Stop", ".actions").click()
    page.button("Stop prune20", ".confirm").click()  # that needs an admin's key
    assert page.one("dialog.key #key").get_attribute("value") == ""
    page.button("Cancel", "dialog.key").click()
    page.check_and_leave()


def test_a_browser_that_keeps_nothing_shows_the_page(page_server: str, chromium: Any) -> None:
    page = Page(chromium, page_server)
    page.begin_with("""
      const get = () => { throw new DOMException('denied', 'SecurityError'); };
      if (location.protocol.startsWith('http'))
        for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, {get});""")
    page.open()
    page.write("dialog.key #key", "plain\n")
    settled(page)
    page.button("Colours: Auto. Change").click()
    page.button("Colours: Light. Change")
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


def test_a_slow_network_shows_the_page_soon_and_with_six_requests(page: Page) -> None:
    page.slow_network(megabits=1.6, round_trip_ms=300)
    page.open()
    settled(page)
    painted = page.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    requests = 2 + page.run("return performance.getEntriesByType('resource').length")  # the page and its icon
    print(f"first paint after {painted:.0f} ms at 1.6 Mbit/s and 300 ms, {requests} requests")
    assert painted < 3000  # 1,500 ms on a machine that does nothing else
    assert requests <= 6


def test_a_first_visit_leads_through_three_steps_once(page: Page) -> None:
    page.open()
    page.run("localStorage.clear()")
    page.open()
    ranking = settled(page)
    assert any(row["move"] not in ("", "–same place") for row in ranking)  # there is something to read
    assert not any(row["changes"][1] == "±0.000" for row in ranking)
    for number in "123":
        assert page.one(".step .letter").text == number
        page.one(".step .strong").click()
    assert not page.all(".step")
    page.open()
    settled(page)
    assert not page.all(".step")
    page.run("localStorage.clear()")


def test_a_word_explains_itself_to_pointer_and_keyboard(page: Page) -> None:
    page.open()
    settled(page)
    page.run("document.querySelector('.legend .term').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.TAB, Keys.SHIFT, Keys.TAB)
    assert "Quadratic weighted kappa" in page.one(".tip").text
    page.browser.switch_to.active_element.send_keys(Keys.NULL, Keys.ESCAPE)
    page.until(lambda: not [tip for tip in page.all(".tip") if tip.is_displayed()])
    ActionChains(page.browser).move_to_element(page.one(".chip:nth-of-type(2) .pin")).perform()
    assert "the other" in page.one(".tip").text


def in_view(page: Page, *selectors: str) -> list[str]:
    """Return those of the elements that reach beyond the window."""
    script = """return arguments[0].filter((selector) => {
      const box = document.querySelector(selector).getBoundingClientRect();
      return box.top < 0 || box.left < 0 || box.bottom > innerHeight + 1 || box.right > innerWidth + 1; })"""
    return [selector for selector in selectors if selector in page.run(script, selectors)]


def test_a_laptop_shows_grid_mask_inspector_and_ranking_without_scrolling(page: Page) -> None:
    page.size(1280, 720)
    page.open(address("playground"))
    settled(page)
    assert "Point at a head" in page.one(".facts").text
    cell(page, 3, 8).click()
    assert "Layer 3 · head 8" in page.one(".facts").text
    assert in_view(page, ".grid", ".facts", ".selected", "#spec", ".ranking") == []


def test_a_tap_on_a_telephone_moves_a_ranking_that_is_in_view(page: Page) -> None:
    page.size(390, 844)
    page.open(address("playground", ALL_ON))
    before = settled(page)
    page.run("document.querySelector('.grid').scrollIntoView({block: 'end'})")
    for layer in (5, 6, 7, 8):
        page.one(f'[role="rowheader"][data-at="{layer}.-1"]').click()
    page.until(lambda: [row["title"] for row in settled(page)] != [row["title"] for row in before])
    assert in_view(page, ".grid", ".pane") == []
    assert page.run("return document.querySelector('.grid').getBoundingClientRect().top") >= page.run(
        "return document.querySelector('.pane').getBoundingClientRect().bottom"
    )


@pytest.mark.parametrize(("layers", "heads", "labels"), [(6, 12, 1), (24, 16, 3)])
def test_models_of_other_shapes_and_with_one_label_are_shown(
    chromium: Any, tmp_path: Path, layers: int, heads: int, labels: int
) -> None:
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": 8 * heads}
    model = write_checkpoint(tmp_path / "model", num_labels=labels, **shape)
    with served(model) as url:
        page = Page(chromium, url)
        page.open(address("playground", ALL_ON))
        ranking = settled(page)
        assert len(page.all("[role=gridcell]")) == layers * heads
        assert "there is no study of this model" in page.one(".legend").text
        cell(page, layers - 1, heads - 1).click()
        assert spec(page) == f"{layers - 1}.{heads - 1}"
        assert settled(page)[0]["scores"] != ranking[0]["scores"] or labels == 1
        grades = page.one(".grades").text
        assert ("no grades" in grades) is (labels == 1)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        page.open(address("attention", "").replace("5.5", "99.99"))
        page.one(".token")
        assert len(page.all(".small")) == layers * heads
        page.check_and_leave()


def test_a_study_of_too_few_queries_shows_what_is_missing(chromium: Any, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    config = read_config(model)
    missing = {
        "delta": {"qwk": None, "ndcg10": -0.01, "accuracy": -0.02},
        "interval": {metric: [None, None] for metric in ("qwk", "ndcg10", "accuracy")},
        "p_adjusted": None,
        "roles": {},
    }
    places = [(layer, head) for layer in range(config.num_layers) for head in range(config.num_heads)]
    study = {
        "weights": weights_id(model),
        "shape": [config.num_layers, config.num_heads],
        "data": "mine.csv",
        "pairs": 27,
        "queries": 9,
        "heads": [{"layer": layer, "head": head, **missing} for layer, head in places],
    }
    (model / HEAD_STUDY).write_text(json.dumps(study), encoding="utf-8")
    with served(model) as url:
        page = Page(chromium, url)
        page.open(address("playground", ALL_ON))
        settled(page)
        ActionChains(page.browser).move_to_element(cell(page, 0, 0)).perform()
        text = page.one(".facts").text
        effects = [" ".join(row.text.split()) for row in page.all(".effects div")]
        assert effects == ["QWK – no interval", "NDCG@10 −0.010 no interval", "accuracy −0.020 no interval"]
        assert "The study has too few queries to tell this from chance." in text
        assert page.all("[class*=shade-][role=gridcell]") == []
        assert cell(page, 0, 0).get_attribute("aria-label") == "layer 0 head 0, on"
        page.check_and_leave()


def test_a_model_with_one_score_shows_what_its_heads_are_worth_in_ndcg(chromium: Any, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", num_labels=1)
    metrics = ("ndcg10", "mrr10", "pair_accuracy", "query_spearman")
    rows = [
        {
            "layer": layer,
            "head": head,
            "delta": dict.fromkeys(metrics, -0.01 * head),
            "interval": {metric: [-0.01 * head - 0.005, -0.01 * head + 0.005] for metric in metrics},
            "p_adjusted": 0.01,
        }
        for layer in range(3)
        for head in range(4)
    ]
    report = {
        "heads": rows,
        "data": {"source": "mine.csv", "pairs": 27, "queries": 9},
        "baseline": dict.fromkeys(metrics, 0.8),
        "number_format": "float32",
    }
    study = head_study(report, weights_id(model), (3, 4), RANKED)
    assert study is not None
    (model / HEAD_STUDY).write_text(study, encoding="utf-8")
    with served(model) as url:
        page = Page(chromium, url)
        page.open(address("playground", ALL_ON))
        settled(page)
        assert page.one(".legend").text.startswith("NDCG@10")
        ActionChains(page.browser).move_to_element(cell(page, 0, 2)).perform()
        effects = [" ".join(row.text.split()) for row in page.all(".effects div")]
        assert effects == [f"{name} −0.020 −0.025 to −0.015" for name in ("NDCG@10", "pair accuracy")]
        assert (cell(page, 2, 3).get_attribute("aria-label") or "").endswith("changes NDCG@10 by −0.030")
        assert "shade-8" in (cell(page, 1, 3).get_attribute("class") or "")
        page.check_and_leave()


def test_a_variant_shows_its_own_scores_beside_a_default_with_a_mask(chromium: Any) -> None:
    weights = [[0.5] * 12] * 6 + [[0.0] * 12] * 6
    soft = {"name": "soft", "head_mask": {"weights": weights}}
    live = LiveConfig.model_validate({"variants": [{"name": "full"}, soft], "default": "soft"})
    with served(SHIPPED, live) as url:
        page = Page(chromium, url)
        page.open(address("playground", "&mask=none"))
        settled(page, columns=1)
        assert page.one(".chip").text.split("\n")[:2] == ["A", "soft none"]
        assert "72 of 144 heads, with the mask of soft" in page.one(".chip").text
        assert len(page.all("[role=gridcell].unknown")) == 144
        assert "Which heads the default variant has off is not known" in page.one(".grid-box").text
        page.one("optgroup option[value='variant:full']").click()
        page.until(lambda: page.one(".chip .label").text == "full")
        page.until(lambda: page.run("return seen.flying") == 0)
        shown = {row["title"]: row["scores"] for row in settled(page, columns=1)}
        body = {"query": MOUSE, "titles": list(shown), "variant": "full"}
        answer = httpx.post(f"{url}/v1/score", json=body, timeout=30).raise_for_status().json()
        scores = [result["score"] for result in answer["results"]]
        assert [score for (score,) in shown.values()] == pytest.approx(scores, abs=0.002)
        page.open(address("playground", "&mask=0-2.*"))
        settled(page, columns=1)
        copied = copied_for_serve_yaml(page)
        assert "on top of the default variant, soft" in copied
        assert yaml.safe_load(copied) is None
        page.check_and_leave()


def test_a_variant_that_was_copied_scores_what_the_page_showed(chromium: Any, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    variants: list[dict[str, Any]] = [{"name": "full"}, {"name": "fewer", "head_mask": "0.0-1"}]
    shown = {}
    with served(model, LiveConfig.model_validate({"variants": variants, "default": "fewer"})) as url:
        page = Page(chromium, url)
        for name, mask in (("binary", "1.*"), ("weighted", "1.*;0.2=0.5"), ("shorter", "1.2,skip:0")):
            page.open(address("playground", f"&mask={quote(mask)}"))
            shown[name] = {row["title"]: row["scores"][0] for row in settled(page, columns=1)}
            (entry,) = yaml.safe_load(copied_for_serve_yaml(page))
            variants.append({**entry, "name": name})
        what_a_default_with_heads_off_shows(page)
        page.check_and_leave()
    with served(model, LiveConfig.model_validate({"variants": variants, "default": "fewer"})) as url:
        for name, scores in shown.items():
            body = {"query": MOUSE, "titles": list(scores), "variant": name}
            answer = httpx.post(f"{url}/v1/score", json=body, timeout=30).raise_for_status().json()
            given = [result["score"] for result in answer["results"]]
            assert given == pytest.approx(list(scores.values()), abs=0.0006)


def what_a_default_with_heads_off_shows(page: Page) -> None:
    """Assert that `none` on the default variant `fewer` is not called all heads, nor drawn so."""
    page.open(address("playground", "&mask=none"))
    settled(page, columns=1)
    assert page.one(".chip .label").text == page.one("th.score .label").text == "fewer none"
    assert "10 of 12 heads" in page.one(".chip").text
    off = [one.get_attribute("data-at") for one in page.all("[role=gridcell].off")]
    assert off == ["0.0", "0.1"]
    assert cell(page, 0, 1).get_attribute("aria-label") == "layer 0 head 1, off by fewer"
    cell(page, 0, 1).click()  # what the variant has off, the page cannot switch on
    page.next_frame()
    assert spec(page) == "none"
    page.one('[data-at="0.-1"]').click()  # of the layer, it switches the others
    page.until(lambda: spec(page) == "0.2-3")
    page.one("optgroup option[value='variant:full']").click()
    page.until(lambda: page.one(".chip .label").text == "full")
    assert not page.all("[role=gridcell].off")
    page.one("optgroup option[value='variant:fewer']").click()
    page.until(lambda: page.one(".chip .label").text == "fewer")
    assert [one.get_attribute("data-at") for one in page.all("[role=gridcell].off")] == ["0.0", "0.1"]


def test_a_raw_score_is_called_so_and_has_no_bar(chromium: Any, tmp_path: Path) -> None:
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    model = write_checkpoint(tmp_path / "model", num_labels=1, sentence_transformers=identity)
    with served(model) as url:
        page = Page(chromium, url)
        page.open(address("playground", ""))
        settled(page)
        assert page.one(".grades").text == "This model gives one raw score, any number, and no grades."
        assert not page.all(".ranking .bars")
        page.check_and_leave()


def test_time_is_not_measured_on_answers_of_the_score_cache(chromium: Any, tmp_path: Path) -> None:
    with served(write_checkpoint(tmp_path / "model"), score_cache_size=1000) as url:
        page = Page(chromium, url)
        page.open("#playground?q=mouse&t=mouse&t=towel&mask=none&mask=0.0&active=1&base=0")
        settled(page)
        page.button("Measure time, B against A").click()
        page.until(lambda: "answered from kept scores" in page.one(".time [role=status]").text)
        page.check_and_leave()


def test_an_action_on_a_service_without_keys_says_so_and_asks_for_none(chromium: Any, tmp_path: Path) -> None:
    arms = [
        {"name": "control", "variant": "full", "weight": 50},
        {"name": "fewer", "variant": "fewer", "weight": 50},
    ]
    experiment = {"name": "first", "salt": "1", "arms": arms, "metrics": [{"name": "click", "margin": 0.1}]}
    variants = [{"name": "full"}, {"name": "fewer", "head_mask": "0.0"}]
    live = LiveConfig.model_validate({"variants": variants, "experiments": [experiment]})
    with served(write_checkpoint(tmp_path / "model"), live) as url:
        for key in (None, "from-before-a-restart"):
            page = Page(chromium, url, key=key)
            page.open("#experiments")
            page.button("Stop").click()
            page.button("Stop first", ".confirm").click()
            page.until(lambda page=page: "no keys are set" in page.one(".actions .wrong").text)
            page.until(lambda page=page: page.run("return seen.flying") == 0)
            page.next_frame()  # which would open it
            assert not page.all("dialog.key[open]")
            page.check_and_leave()


def test_a_key_with_a_low_rate_sees_the_attention_of_all_heads(chromium: Any, tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48}
    model = write_checkpoint(tmp_path / "model", max_position_embeddings=80, **shape)
    with served(model, api_keys="slow;rate=40") as url:  # a head costs as much as a pair
        page = Page(chromium, url, key="slow")
        page.open(f"#attention?q=mouse&t={'+'.join(['towel'] * 76)}")  # 80 tokens: 46 heads in a request
        ready(page, "attention")
        assert len(page.all(".small canvas")) == 144
        page.until(lambda: not page.all(".trouble"))
        page.check_and_leave()


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
            page.screenshot(image, whole=True)
            assert image.stat().st_size > 10_000, f"{image.name} shows nothing"


def under_load(page: Page, server: str) -> int:
    """Send some traffic. Returns how many points a chart of the live view has."""
    for variant, titles in (("full", 12), ("pruned20", 8), ("half", 20)):
        body = {"query": MOUSE, "titles": list(SHOWN[: titles % 8 + 1]) * 2, "variant": variant}
        httpx.post(f"{server}/v1/score", json=body, headers={"authorization": "Bearer plain"}, timeout=30)
    path = page.run("return document.querySelector('.charts .line')?.getAttribute('d') ?? ''")
    return path.count("L")

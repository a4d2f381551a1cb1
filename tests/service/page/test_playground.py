"""The playground in a real browser, on a real service: columns of masks, addresses, commands and mistakes."""

import json
import subprocess
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import scipy.stats

from tests.service.page.browsing import Page
from tests.service.page.playground import KEY, MOUSE, rows, settled

pytestmark = pytest.mark.slow


def test_four_masks_side_by_side_with_a_baseline(page: Page, page_server: str) -> None:
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
    answer = httpx.post(f"{page_server}/v1/compare", json=body, headers=KEY, timeout=30).raise_for_status()
    for place, row in enumerate(ranking):
        of_service = [column["results"][place]["score"] for column in answer.json()["columns"]]
        assert row["scores"] == pytest.approx(of_service, abs=0.02)
    page.button("pin mask B as the baseline").click()
    assert page.one(".chip .pin[aria-pressed=true]").get_attribute("aria-label") == "base: mask B"
    assert all(row["changes"][1] == "" and row["changes"][0] for row in settled(page, columns=4))
    page.button("Remove mask A").click()
    assert len(settled(page, columns=3)[0]["scores"]) == 3


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


def test_a_change_of_time_is_claimed_only_if_its_interval_leaves_out_none(page: Page) -> None:
    page.open("#playground?q=mouse&t=mouse&mask=none")
    settled(page, columns=1)
    for factor, claim in ((0.8, "saved"), (1.25, "more"), (1.0, "No difference shown")):
        rng = np.random.default_rng(3)
        base = rng.uniform(4, 6, 11)
        active = base * factor * rng.uniform(0.95, 1.05, 11)
        said = page.evaluate("time_saved.verdict(arguments[0], 10)", [base.tolist(), active.tolist()])
        shares = 1 - active / base
        # The sign test's interval of a median: between the order statistics k and 12 − k of 11 values.
        low, high = scipy.stats.quantile_test(shares, p=0.5).confidence_interval(confidence_level=0.98)
        assert (low > 0 or high < 0) == (claim != "No difference shown")
        if claim == "No difference shown":
            expected = f"{claim}: from {-100 * low:.0f} % more to {100 * high:.0f} % saved ("
        else:
            ends = sorted(abs(100 * end) for end in (low, high))
            expected = f"{ends[0]:.0f} % to {ends[1]:.0f} % {claim}: {np.median(active):.1f} ms instead"
        assert said.startswith(expected)

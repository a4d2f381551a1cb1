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
from tests.service.page.playground import KEY, MOUSE, cell, rows, settled, spec, with_all_heads

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


def test_a_shared_address_opens_the_whole_state(page: Page) -> None:
    with_all_heads(page)
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


def test_errors_stand_at_their_field(page: Page) -> None:
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


def test_a_long_title_is_not_cut_within_a_character(page: Page) -> None:
    page.open("#attention?q=mouse&mask=none&t=" + "a" * 39 + "🐁" * 90)
    page.one(".token")
    assert page.run("return document.querySelector('#pair-title option').text") == "a" * 39 + "🐁" * 81
    page.run("""
      const error = {type: 'invalid_request', message: 'is wrong', param: 'titles[0]'};
      window.answer = async () => Response.json({error}, {status: 422});""")
    page.one("nav a[href^='#playground']").click()
    page.until(lambda: page.one("#titles-wrong").text == f"Line 1 (“{'a' * 39}🐁”): is wrong")
    page.run("window.answer = undefined")


def test_a_broken_answer_is_asked_for_again_and_a_missed_deadline_only_by_hand(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse&t=towel")
    settled(page)
    page.run("""
      const real = window.fetch;
      const broken = () => new ReadableStream({start: (stream) => stream.error(new TypeError('cut'))});
      window.answer = async () => { window.answer = undefined; return new Response(broken()); };""")
    page.write("#query", "a mouse")
    assert page.button("Try now", ".trouble")
    page.until(lambda: not page.all(".trouble"))
    page.hurry()
    for status, kind in ((504, "deadline_exceeded"), (503, "out_of_memory")):
        page.run(
            """
            const [status, type] = arguments;
            const error = JSON.stringify({error: {type, message: type, param: null}});
            window.answer = async () => new Response(error, {status, headers: {'retry-after': '1'}});""",
            *(status, kind),
        )
        page.one("#query").send_keys("s")
        page.until(lambda kind=kind: kind in page.one(".trouble").text)
        assert "Trying again" not in page.one(".trouble").text
        asked = page.run("return seen.requests")
        page.browser.execute_async_script("setTimeout(arguments[0], 10_000)")  # of the page's clock
        assert page.run("return seen.requests") == asked
        page.run("window.answer = undefined")
        page.button("Try now", ".trouble").click()
        page.until(lambda: not page.all(".trouble"))
        assert page.run("return seen.requests") == asked + 1


def test_back_and_forward_lead_through_the_views(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse&mask=none&mask=0-2.*&active=1&base=0")
    settled(page)
    page.one("nav a[href^='#attention']").click()
    page.one(".token")
    page.one("nav a[href^='#experiments']").click()
    page.one(".experiment")
    page.browser.back()
    page.one(".token")
    page.browser.back()
    settled(page)
    assert spec(page) == "0-2.*"
    page.browser.forward()
    page.one(".token")
    page.browser.forward()
    page.one(".experiment")


def test_the_chosen_experiment_stays_chosen_and_a_missing_one_is_said_to_be(page: Page) -> None:
    page.open("#experiments")
    page.button("deeper\nrolled back", ".list").click()
    page.one("nav a[href^='#playground']").click()
    page.one("nav a[href^='#live']").click()
    page.browser.back()
    settled(page)
    page.one("nav a[href^='#experiments']").click()
    assert page.one(".experiment h1").text.startswith("deeper")
    page.open("#experiments?experiment=gone")
    assert "There is no experiment “gone”." in page.one(".experiments .empty").text
    assert not page.all(".experiment")


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ("2.99", "head 99 does not exist; this model has heads 0 to 11"),
        ("none;12.0=0.5", "layer 12 does not exist; this model has layers 0 to 11"),
        ("none;2.3", "'2.3' is not layer.head=weight (such as 2.3=0.4)"),
    ],
)
def test_an_unreadable_mask_of_the_address_is_named_until_it_is_changed(
    page: Page, mask: str, reason: str
) -> None:
    address = f"q=mouse&t=wireless+mouse&mask=0.1&mask={quote(mask)}"
    message = (
        "The opened address holds a mask that this model cannot read: "
        f"{reason}. Mask B shows all heads instead."
    )
    page.open(f"#attention?{address}")
    assert page.one(".trouble [role=alert]").text == message
    page.one("nav a[href^='#playground']").click()
    settled(page)
    assert [trouble.text for trouble in page.all(".trouble")] == [message]
    page.button("B\nall heads\n144 of 144 heads", ".masks").click()
    page.button("All on").click()
    page.until(lambda: not page.all(".trouble"))


def test_an_address_may_name_a_stored_mask(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse&mask=@pruned20")
    settled(page, columns=1)
    assert not page.all(".trouble")
    assert spec(page) != "none"


def test_a_screen_reader_finds_a_live_region_before_it_has_a_text(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse&mask=none&mask=0.0&active=1&base=0")
    settled(page)

    def live_regions() -> int:
        nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return sum(node["role"]["value"] == "status" for node in nodes if not node["ignored"])

    assert [region.text for region in page.all("[role=status]")] == ["", "", ""]
    assert live_regions() == 2  # under the titles, and beside the measured time
    page.button("Copy as…").click()
    page.until(lambda: live_regions() == 1)  # the dialog's own


@pytest.mark.parametrize("indices", ["active=-1&base=-1", "active=0.5&base=x", "active=9&base=9"])
def test_an_address_with_a_wrong_index_opens(page: Page, indices: str) -> None:
    page.open(f"#playground?q=mouse&t=wireless+mouse&mask=none&mask=0.1&{indices}")
    settled(page)
    assert spec(page) == ("0.1" if "9" in indices else "none")


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


def test_a_printout_has_all_titles(page: Page) -> None:
    page.open("#playground?q=mouse&mask=none" + "&t=wireless+mouse" * 60)
    settled(page, columns=1)
    page.size(718, 1000)  # A4
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.next_frame()
    shown, height = page.run("""
      const pane = document.querySelector('.pane');
      return [pane.clientHeight, pane.scrollHeight]""")
    assert shown == height
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_an_opened_row_stays_with_its_title(page: Page) -> None:
    page.open("#playground?q=mouse&t=first+mouse&t=second+mouse&t=third+mouse&mask=none")
    settled(page, columns=1)
    page.button("second mouse", ".ranking").click()
    page.button("Edit 3 titles").click()
    page.run("window.answer = () => new Promise(() => {})")  # the next answer is late
    page.write("#titles", "second mouse\nthird mouse")
    page.button("See the attention").click()
    assert page.run("return document.querySelector('#pair-title').selectedOptions[0].text") == "second mouse"
    page.run("window.answer = undefined")
    page.one("nav a[href^='#playground']").click()
    page.one("#query").send_keys("s")
    page.until(lambda: len(settled(page, columns=1)) == 2)
    page.button("third mouse", ".ranking").click()
    page.one(".ranking tr.open")
    page.one("#example").send_keys("Angle")
    page.until(lambda: len(settled(page, columns=1)) == 8)
    assert not page.all(".ranking tr.open")


def test_a_large_change_of_place_leaves_the_title_room_on_a_telephone(page: Page) -> None:
    page.open("#playground?q=mouse&mask=none&mask=none&active=1&base=0" + "&t=mouse" * 150)
    page.size(390, 844)
    settled(page)
    page.run("""window.answer = async (...what) => { // the second mask turns the order round
      const answer = await (await unwatched(...what)).json();
      answer.columns.forEach(({ results }, column) => results.forEach((result, i) => {
        Object.assign(result, {score: i / 1000, raw_score: column ? i : -i});
      }));
      return Response.json(answer);
    }""")
    page.one("#query").send_keys("s")
    page.until(lambda: "149" in rows(page)[0]["move"])
    over = page.run("""
      return [...document.querySelectorAll('.ranking > tbody > tr')].filter((row) => {
        const [move, title] = ['.move', '.name'].map((one) => row.querySelector(one).getBoundingClientRect());
        return move.right > title.left;
      }).length""")
    assert over == 0
    page.run("window.answer = undefined")


def test_a_cascade_that_was_short_of_time_is_marked(page: Page) -> None:
    page.open("#playground?q=mouse&t=wireless+mouse&mask=none&mask=none&base=0")
    settled(page)
    assert not page.all("thead .mark")
    page.run("""
      window.answer = async (...what) => {
        const answer = await (await unwatched(...what)).json();
        answer.columns[1].degraded = true;
        return Response.json(answer);
      };""")
    page.write("#query", "a mouse")
    page.until(lambda: [mark.text for mark in page.all("thead .mark")] == ["degraded"])
    assert "short of time" in page.one("thead th:nth-child(4) .mark").get_attribute("title")


def test_time_is_measured_in_turns(page: Page) -> None:
    page.open("#playground?q=mouse&t=mouse&t=towel&mask=none&mask=0-11.*&active=1&base=0")
    settled(page)
    page.run("""
      window.bodies = [];
      window.answer = (...what) => { bodies.push(JSON.parse(what[1].body)); return unwatched(...what); };""")
    page.button("Measure time, B against A").click()
    page.until(lambda: "of 11 turns" in page.one(".time [role=status]").text)
    page.run("window.answer = undefined")
    assert "for 2 titles, in the model; 98.8 % interval" in page.one(".time [role=status]").text
    # An order that was kept would look like a time of 0: whatever the service's default, it is an error here.
    assert {body["on_failure"] for body in page.run("return bodies")} == {"error"}


@pytest.mark.parametrize(("factor", "claim"), [(0.8, "saved"), (1.25, "more"), (1.0, "No difference shown")])
def test_a_change_of_time_is_claimed_only_if_its_interval_leaves_out_none(
    page: Page, factor: float, claim: str
) -> None:
    rng = np.random.default_rng(3)
    base = rng.uniform(4, 6, 11)
    active = base * factor * rng.uniform(0.95, 1.05, 11)
    page.open("#playground?q=mouse&t=mouse&mask=none")
    settled(page, columns=1)
    said = page.evaluate("time_saved.verdict(arguments[0], 10)", [base.tolist(), active.tolist()])
    shares = 1 - active / base
    # The sign test's interval of a median: between the order statistics k and 12 − k of 11 values.
    low, high = scipy.stats.quantile_test(shares, p=0.5).confidence_interval(confidence_level=0.98)
    assert (low > 0 or high < 0) == (claim != "No difference shown")
    ends = sorted(abs(100 * end) for end in (low, high))
    if claim == "No difference shown":
        assert said.startswith(
            f"No difference shown: from {-100 * low:.0f} % more to {100 * high:.0f} % saved ("
        )
    else:
        assert said.startswith(
            f"{ends[0]:.0f} % to {ends[1]:.0f} % {claim}: {np.median(active):.1f} ms instead"
        )

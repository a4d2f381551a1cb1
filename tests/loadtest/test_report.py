"""The report: the contract's fields, the client's audit first, and a page that needs nothing but itself."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest

from loadtest import objective, page, report, server_side
from loadtest.plan import make_plan
from loadtest.recorder import Recorder
from loadtest.running import Outcome
from loadtest.soak.watching import conclusion
from loadtest.validity import invalid_because
from tests.loadtest.test_recorder import answer, record, request
from tests.loadtest.test_watching import watch

EVIL = '</script><script>alert("x")</script>'


def outcome(**more) -> Outcome:
    """Twenty seconds, ten requests a second: 10 ms, of every tenth a 503, and Server-Timing."""
    plan = make_plan(
        {"url": "http://127.0.0.1:1", "duration": 20, "warmup": 0, "rate": 10, "description": EVIL}
    )
    recorder = Recorder(0)
    for place in range(200):
        sent = request(place / 10, variant="full")
        recorder.dispatched(sent)
        got = answer(place / 10 + 0.010, status=503 if place % 10 == 9 else 200)
        got.server_timing = b"tokenize;dur=1, inference;dur=5, total;dur=8"
        recorder.answered(sent, got)
    values = {"cpu_share": 0.1, "interrupted": False, "seconds": 20.0, **more}
    return Outcome(plan, recorder, datetime.now(UTC), **values)


def build(**more) -> report.Report:
    slo = objective.parse("p99=100ms,errors=1%")
    metrics = {"stage_mean_ms": {"queue": 1.5}, "counters": {'a_total{x="<"}': 3.0}, "restarted": False}
    made = report.build(outcome(**more), slo, metrics=metrics, models={"models": [EVIL]})
    return json.loads(json.dumps(made))


def test_it_has_what_the_contract_promises():
    made = build()
    assert list(made)[:3] == ["schema", "valid", "invalid_because"]
    assert (made["schema"], made["valid"], made["invalid_because"]) == (1, True, [])
    for name in ("latency_ms", "service_ms", "send_lag_ms"):
        assert {"p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"} <= made[name].keys()
    assert made["latency_ms"]["p50"] == pytest.approx(10, rel=1e-2)
    assert made["rate"]["intended"] == pytest.approx(10)
    assert made["rate"]["achieved"] == made["rate"]["goodput"] == pytest.approx(9)
    assert made["requests"] == {
        "scheduled": 200,
        "sent": 200,
        "answered": 200,
        "ok": 180,
        "errors": {"http_503": 20},
    }
    assert made["by"]["variant"]["full"]["ok"] == 180
    assert made["by"]["mask"]["none"]["errors"] == 20
    assert made["stages_ms"]["inference"]["p50"] == pytest.approx(5, rel=1e-2)
    assert made["objective"]["missed_because"] == ["10.00% of the requests failed, over 1.00%"]
    assert made["machine"]["python"]


def test_the_spectrum_is_even_in_nines_and_ends_at_the_maximum():
    recorder = Recorder(0)
    for value in np.linspace(0.001, 1, 5000):
        record(recorder, 0.0, float(value))
    points = report.spectrum(recorder.latency())
    steps = np.diff([-math.log10(1 - p / 100) for p, _ in points])
    assert steps == pytest.approx(steps[0], rel=1e-3)
    assert points[-1][1] == pytest.approx(1000, rel=2e-3)
    for percent, ms in points[:-1]:
        assert ms == pytest.approx(10 * percent, rel=5e-3, abs=2)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda o: [o.recorder.send_lag.record(0.5) for _ in range(10)], "send lag p99 was 500"),
        (lambda o: o.recorder.errors.update(not_sent=10), "did not send 10 of 200 .*more --processes"),
        (lambda o: o.recorder.errors.update(out_of_files=3), "did not send 3 of 200 .*ulimit -n"),
        (lambda o: o.recorder.errors.update(out_of_ports=3), "did not send 3 of 200 .*local port"),
        (lambda o: o.recorder.errors.update(connection_wait_timeout=3), "more --connections"),
        (lambda o: setattr(o.recorder, "scheduled", 0), "nothing was scheduled"),
    ],
)
def test_a_run_that_the_client_spoiled_is_invalid_and_says_why_first(spoil, reason):
    spoiled = outcome()
    spoil(spoiled)
    assert re.search(reason, invalid_because(spoiled)[0])
    made = json.loads(json.dumps(report.build(spoiled)))
    assert report.verdict(made).startswith("INVALID: ")
    text = re.sub(r"<style>.*?</style>|<title>.*?</title>|<[^>]*>", "", page.render(made), flags=re.DOTALL)
    assert text.strip().startswith("INVALID: ")


@pytest.mark.parametrize(
    "kind", ["refused", "reset", "closed", "connect_failed", "connect_tls", "connect_timeout"]
)
def test_a_server_that_takes_no_connection_does_not_make_a_run_invalid(kind):
    broken = outcome()
    broken.recorder.errors[kind], broken.recorder.sent = 100, 100
    assert invalid_because(broken) == []


def test_a_run_without_any_tls_connection_is_invalid():
    """The server may be well, and its certificate one that this machine does not trust."""
    broken = outcome()
    broken.recorder.errors["connect_tls"] = broken.recorder.scheduled
    broken.recorder.ok = 0
    (reason,) = invalid_because(broken)
    assert "no TLS connection could be made (does it speak https?" in reason


def test_a_server_that_refused_nearly_all_is_not_blamed_on_the_certificate():
    broken = outcome()
    broken.recorder.errors.update(refused=broken.recorder.scheduled - 1, connect_tls=1)
    broken.recorder.ok = 0
    assert invalid_because(broken) == []


def test_send_lag_is_judged_where_the_objective_looks():
    """0.5 % of the requests went out late: p99 does not show it, and p99.9 is nothing else."""
    late = outcome()
    for place in range(200):
        late.recorder.send_lag.record(0.5 if place < 2 else 0.0)
    assert invalid_because(late) == []
    for slo, reasons in (("p50=1s", 0), ("p50=1s,p99.9=1s", 1)):
        found = invalid_because(replace(late, plan=late.plan.changed(slo=slo)))
        assert len(found) == reasons
        assert all("send lag p99.9 was 500" in reason for reason in found)


def test_a_busy_client_makes_a_run_invalid():
    assert "a process used 97% of a core" in invalid_because(outcome(cpu_share=0.97))[0]
    assert invalid_because(outcome(cpu_share=None)) == []


def test_a_run_without_a_key_is_invalid_and_a_refusal_among_answers_is_none():
    closed = Recorder(0)
    for place in range(20):
        sent = request(place / 10)
        closed.dispatched(sent)
        closed.answered(sent, answer(place / 10 + 0.01, status=401))
    (reason,) = invalid_because(replace(outcome(), recorder=closed))
    assert reason == "no request was answered: the server says 401 (--api-key, or HEADROOM_API_KEY)"
    sent = request(3.0)
    closed.dispatched(sent)
    closed.answered(sent, answer(3.01))
    assert invalid_because(replace(outcome(), recorder=closed)) == []


class Page(HTMLParser):
    """Every tag and address of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")
        ]


def test_the_page_needs_no_network_and_runs_nothing():
    text = page.render(build())
    found = Page(text)
    assert all(address.startswith("#") for address in found.addresses)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(found.tags)
    assert text.count("url(") == text.count("url(#")
    assert "@import" not in text
    assert found.tags.count("svg") == 4  # latency over time, spectrum, rates, stages


def test_the_drawings_have_the_page_s_colours_which_dark_mode_changes():
    text = page.render(build())
    assert "prefers-color-scheme: dark" in text
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", text[text.index("<svg") :]))
    assert colours <= {"none", *(f"var(--{name})" for name in ("soft", "rule", *(f"c{n}" for n in range(6))))}


def test_the_page_shows_a_search():
    made = build()
    point = {
        "achieved": 9.0,
        "errors": 0.0,
        "p50_ms": 1.0,
        "p90_ms": 2.0,
        "p99_ms": 3.0,
        "missed_because": ["late"],
    }
    curve = [{"rate": rate, "purpose": "bisection", "held": rate < 3, **point} for rate in (1.0, 2.0, 4.0)]
    made["find_max"] = {"rate": 2.0, "lost_at": 4.0, "limited_by": "server", "curve": curve}
    text = page.render(made)
    assert "Highest rate that holds the objective: 2.0 requests/s; 4.0/s did not hold it." in text
    assert Page(text).tags.count("svg") == 5


def test_a_run_without_answers_still_has_a_page():
    empty = Outcome(outcome().plan, Recorder(0), datetime.now(UTC), 1.0, None, True)
    made = json.loads(json.dumps(report.build(empty)))
    assert made["latency_ms"]["p50"] is None
    assert "INVALID: nothing was scheduled" in page.render(made)


def test_what_the_server_counted_is_the_difference_of_two_scrapes():
    before = {("headroom_requests_total", (("route", "/v1/score"), ("status", "200"))): 5.0}
    stage = (("stage", "queue"),)
    after = {
        ("headroom_requests_total", (("route", "/v1/score"), ("status", "200"))): 12.0,
        ("headroom_stage_seconds_sum", stage): 0.5,
        ("headroom_stage_seconds_count", stage): 10.0,
    }
    grown = server_side.difference(before, after)
    assert grown["counters"] == {'headroom_requests_total{route="/v1/score",status="200"}': 7}
    assert grown["stage_mean_ms"] == {"queue": pytest.approx(50)}
    assert not grown["restarted"]
    assert server_side.difference(after, before)["restarted"]
    assert server_side.difference(None, after) is None


def test_a_server_that_did_wrong_makes_the_first_line_red() -> None:
    for leak, colour in ((0, "good"), (1e6, "bad")):
        made = build() | {"objective": None}
        found = watch(1200, {(1, 0.0): lambda at, leak=leak: 5e8 + leak * at})
        made["watch"] = conclusion(found, made)
        said = "valid; 2 problems of the server, listed further down" if leak else "valid"
        assert f'<p class="verdict {colour}">{said}</p>' in page.render(made)

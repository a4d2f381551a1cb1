"""The report: the contract's fields, the client's audit first, and a page that needs nothing but itself."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from headroom.loadtest import judging, page, report, server, tables
from headroom.loadtest.judging import invalid_because
from headroom.loadtest.recorder import Recorder
from headroom.loadtest.running import Outcome
from tests.loadtest.measuring import ran
from tests.loadtest.test_recorder import answer, request

EVIL = '</script><script>alert("x")</script>'


def outcome(errors=None, ok=None, scheduled=None, send_lag=0.0, cpu_share=0.1) -> Outcome:
    """Twenty seconds, ten requests a second: 10 ms, of every tenth a 503, and Server-Timing."""
    recorder = Recorder(0)
    for place in range(200):
        sent = request(place / 10, variant="full")
        recorder.dispatched(sent)
        got = answer(place / 10 + 0.010, status=503 if place % 10 == 9 else 200)
        got.server_timing = b"tokenize;dur=1, inference;dur=5, total;dur=8"
        recorder.answered(sent, got)
    for _ in range(10 if send_lag else 0):
        recorder.send_lag.record(send_lag)
    recorder.errors.update(errors or {})
    recorder.ok = recorder.ok if ok is None else ok
    recorder.scheduled = recorder.scheduled if scheduled is None else scheduled
    return ran(recorder, 20, cpu_share=cpu_share, rate=10, description=EVIL)


def build() -> report.Report:
    slo = judging.parse("p99=100ms,errors=1%")
    metrics = {"counters": {'a_total{x="<"}': 3.0}, "restarted": False}
    made = report.build(outcome(), slo, metrics=metrics)
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
        **dict.fromkeys(("scheduled", "sent", "answered"), 200),
        "ok": 180,
        "unreranked": 0,
        "errors": {"http_503": 20},
    }
    assert made["by"]["variant"]["full"]["ok"] == 180
    assert made["by"]["mask"]["none"]["errors"] == 20
    assert made["stages_ms"]["inference"]["p50"] == pytest.approx(5, rel=1e-2)
    assert made["objective"]["missed_because"] == ["10.00% of the requests failed, over 1.00%"]
    assert made["machine"]["python"]


def test_titles_in_the_callers_order_are_counted_apart():
    """They are 200, and as quick as errors: without a count of their own a broken service would look well."""
    recorder = Recorder(0)
    for place, reranked in enumerate(["true", "false", "false", "false", ""] * 10):
        sent = request(place / 10, variant="full")
        recorder.dispatched(sent)
        got = answer(place / 10 + 0.010)
        got.reranked = reranked
        recorder.answered(sent, got)
    run = ran(recorder, 5, rate=10)
    made = report.build(run, judging.parse("p99=100ms,unreranked=59%"))
    assert (made["requests"]["ok"], made["requests"]["errors"]) == (50, {})
    assert made["requests"]["unreranked"] == 30
    assert made["by"]["variant"]["full"]["unreranked"] == 30
    assert sum(window["unreranked"] for window in made["series"]["windows"]) == 30
    assert made["objective"]["missed_because"] == ["60.00% of the answers were not reranked, over 59.00%"]
    assert tables.summary(made).endswith("50 of 50 ok, 30 unreranked, 0 errors")
    assert report.build(run, judging.parse("p99=100ms,unreranked=60%"))["objective"]["met"]
    assert report.build(run, judging.parse("p99=100ms"))["objective"]["missed_because"] == [
        "0.00% of the requests failed and 60.00% were not reranked, together over 0.10%"
    ]
    assert sum(window.titles for window in recorder.windows) == 20, "they would hide the saturation"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"send_lag": 0.5}, "send lag p99 was 500"),
        ({"errors": {"not_sent": 10}}, "did not send 10 of 200 .*a lower --rate"),
        ({"errors": {"out_of_ports": 3}}, "did not send 3 of 200 .*local port"),
        ({"errors": {"connection_wait_timeout": 3}}, "more --connections"),
        ({"errors": {"connect_tls": 200}, "ok": 0}, "no TLS connection could be made .does it speak https"),
        # Not to be blamed on the certificate.
        (
            {"errors": {"refused": 199, "connect_tls": 1}, "ok": 0},
            r"^no request got a good answer \(refused 199, http_503 20, connect_tls 1\)",
        ),
        ({"cpu_share": 0.97}, "it used 97% of a core"),
    ],
)
def test_a_run_that_the_client_spoiled_is_invalid_and_says_why_first(changes, reason):
    spoiled = outcome(**changes)
    assert re.search(reason, invalid_because(spoiled)[0])
    assert report.verdict(report.build(spoiled)).startswith("INVALID: ")


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"errors": {kind: 100}}
            for kind in ("refused", "reset", "closed", "connect_failed", "connect_tls")
        ),
        {"errors": {"connect_timeout": 100}},
        {"errors": {"http_401": 199}, "ok": 1},
        {"cpu_share": None},
    ],
)
def test_a_server_that_does_not_answer_does_not_make_a_run_invalid(changes):
    assert invalid_because(outcome(**changes)) == []


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
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", text[text.index("<svg") :]))
    assert all(colour == "none" or colour.startswith("var(--") for colour in colours)
    assert found.tags.count("svg") == 3  # latency over time, spectrum, rates


def test_the_page_shows_a_search():
    made = build()
    times = {"p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": None}
    point = {"achieved": 9.0, "errors": 0.0, "missed_because": ["late"], **times}
    curve = [{"rate": rate, "purpose": "bisection", "held": rate < 3, **point} for rate in (1.0, 2.0, 4.0)]
    made["find_max"] = {"rate": 2.0, "lost_at": 4.0, "curve": curve}
    text = page.render(made)
    assert "Highest rate that holds the objective: 2.0 requests/s; 4.0/s did not hold it." in text
    assert Page(text).tags.count("svg") == 4


def test_a_run_without_answers_still_has_a_page():
    empty = report.build(ran(Recorder(0), 1, cpu_share=None, interrupted=True))
    made = json.loads(json.dumps(empty))
    assert made["latency_ms"]["p50"] is None
    assert "INVALID: nothing was scheduled" in page.render(made)


def test_what_the_server_counted_is_the_difference_of_two_scrapes():
    before = {("headroom_requests_total", (("route", "/v1/score"), ("status", "200"))): 5.0}
    after = dict.fromkeys(before, 12.0)
    grown = server.difference(before, after)
    assert grown["counters"] == {'headroom_requests_total{route="/v1/score",status="200"}': 7}
    assert not grown["restarted"]
    assert server.difference(after, before)["restarted"]
    assert server.difference(None, after) is None

"""What is recorded: nothing lost, nothing twice, in the same memory after an hour as after a minute."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from headroom.loadtest.histogram import Histogram
from headroom.loadtest.plan import make_plan
from headroom.loadtest.recorder import MAX_GROUPS, Recorder, server_timing
from headroom.loadtest.wire import Answer
from headroom.loadtest.workload import Request, Workload


def first_request(endpoint: str) -> Request:
    traffic = [{"endpoint": endpoint, "titles": 1}]
    plan = make_plan({"url": "http://a", "warmup": 0, "traffic": traffic})
    return next(Workload(plan, [("q", "t")], {}).requests())


ONE = first_request("score")


def request(intended: float, *, variant: str = "") -> Request:
    times = dict.fromkeys(("intended", "dispatched", "sent"), intended)
    return replace(ONE, **times, written=True, kind=replace(ONE.kind, variant=variant))


def answer(at: float, body: bytes = b'{"variant": "full", "results": [{}]}', status: int = 200) -> Answer:
    return Answer(at, status, body, is_json=True)


def record(recorder: Recorder, intended: float, latency: float, **more) -> None:
    sent = request(intended)
    recorder.dispatched(sent)
    recorder.answered(sent, answer(intended + latency, **more))


def test_percentiles_are_within_a_thousandth():
    times = np.sort(np.random.default_rng(1).lognormal(-4, 1.5, 20_000))
    histogram = Histogram()
    for value in times:
        histogram.record(value)
    for percent, rank in ((1, 200), (50, 10_000), (90, 18_000), (99, 19_800), (99.9, 19_980), (100, 20_000)):
        assert histogram.percentile_ms(percent) == pytest.approx(1000 * times[rank - 1], rel=1e-3, abs=2e-3)
    assert histogram.mean_ms() == pytest.approx(1000 * times.mean(), rel=2e-3)
    values, counts = histogram.counts()
    assert counts.sum() == 20_000
    assert np.all(np.diff(values) > 0)


def test_a_percentile_is_never_below_its_share_of_the_requests():
    """158 of 160 are 98.75 %, so p99 is the next longer one; 999 of 1,000 are p99.9 exactly."""
    for quick, slow, percent, ms in ((158, 2, 99, 1000), (999, 1, 99.9, 10), (998, 2, 99.9, 1000)):
        histogram = Histogram()
        for place in range(quick + slow):
            histogram.record(0.01 if place < quick else 1.0)
        assert histogram.percentile_ms(percent) == pytest.approx(ms, rel=1e-3)


def test_titles_are_counted_when_they_are_scheduled_and_when_they_are_answered():
    one = Recorder(0)
    for titles, status in ((3, 200), (5, 429), (0, 503)):
        sent = replace(request(0.9), titles=titles, kind=replace(ONE.kind, expects=None))
        one.dispatched(sent)
        one.answered(sent, answer(1.5, status=status))
    assert one.titles == 3 + 5 + 1
    assert [window.titles for window in one.windows] == [0, 3]


def test_durations_beyond_the_range_are_kept_at_its_ends():
    histogram = Histogram()
    histogram.record(1e9)
    histogram.record(-1)
    assert len(histogram) == 2
    assert histogram.max_ms() == pytest.approx(3_600_000, rel=1e-3)


def test_nothing_is_lost_on_the_way_from_the_client_process():
    recorder = Recorder(0)
    for place in range(1000):
        record(recorder, place * 0.05, 0.001 * (1 + place % 37), status=200 if place % 10 else 503)
    arrived = pickle.loads(pickle.dumps(recorder))
    assert arrived.latency().summary_ms() == recorder.latency().summary_ms()
    assert arrived.service.summary_ms() == recorder.service.summary_ms()
    assert arrived.errors == recorder.errors == {"http_503": 100}
    assert [(r.ok, r.sent, r.scheduled) for r in (arrived, recorder)] == [(900, 1000, 1000)] * 2
    assert [w.ok for w in arrived.windows] == [w.ok for w in recorder.windows]


def test_names_from_answers_cannot_fill_the_memory():
    recorder = Recorder(0)
    for number in range(3 * MAX_GROUPS):
        record(recorder, 0.0, 0.01, body=b'{"variant": "v%d", "results": [{}]}' % number)
    assert len(recorder.groups) <= MAX_GROUPS + 1
    assert sum(group.ok for group in recorder.groups.values()) == recorder.ok == 3 * MAX_GROUPS


def test_timeouts_count_in_the_percentiles_and_quick_refusals_do_not():
    recorder = Recorder(0)
    for _ in range(98):
        record(recorder, 0.0, 0.01)
    late, refused = request(0.0), request(0.0)
    recorder.dispatched(late)
    recorder.failed(late, "timeout", 5.0)
    recorder.dispatched(refused)
    recorder.answered(refused, answer(0.0001, b"{}", 429))
    latency = recorder.latency()
    assert len(latency) == 99
    assert latency.max_ms() == pytest.approx(5000, rel=1e-3)
    assert latency.summary_ms()["min"] == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("endpoint", ["score", "rerank", "tei-rerank", "compare", "attention", "condense"])
@pytest.mark.parametrize(
    ("body", "is_json"), [(b"<html>maintenance</html>", False), (b"null", True), (b'"busy"', True)]
)
def test_a_page_of_maintenance_with_status_200_is_no_good_answer(endpoint, body, is_json):
    recorder = Recorder(0)
    sent = first_request(endpoint)
    recorder.dispatched(sent)
    recorder.answered(sent, Answer(1.0, 200, body, is_json=is_json))
    assert (recorder.ok, recorder.errors) == (0, {"bad_answer": 1})


@pytest.mark.parametrize("body", [b"<html>", b"{", b'{"live": true}'])
def test_of_a_get_only_the_status_counts(body):
    recorder = Recorder(0)
    sent = first_request("GET /health/live")
    for status in (200, 503):
        recorder.dispatched(sent)
        recorder.answered(sent, Answer(1.0, status, body, is_json=True))
    assert (recorder.ok, recorder.errors) == (1, {"http_503": 1})


def test_server_timing_is_read_and_nonsense_left_out():
    assert server_timing(b"tokenize;dur=0.2, queue;dur=1.5;desc=x, cache;desc=hit, total;dur=soon") == [
        ("tokenize", pytest.approx(0.0002)),
        ("queue", pytest.approx(0.0015)),
    ]

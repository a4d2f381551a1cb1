"""What `on_failure: original_order` promises, on a small scale: each client reads an order."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import failures
from benchmarks.failures import SHAPES, TITLES, Fault, Found, freeze_one, kill, report_on
from benchmarks.peers import reading
from headroom.loadtest.wire import Answer
from headroom.loadtest.workload import Request

pytestmark = pytest.mark.more

ANSWERS = 60
SHORT = (
    Fault("overload"),
    Fault("a deadline of 1 ms", deadline_ms=1.0),
    Fault("a device freezes", [(0.05, freeze_one)]),
    Fault("a replica is killed", [(0.05, kill)]),
)
"""Those of the benchmark. The last one begins when the frozen replica has a successor."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_page_breaks_whatever_fails(tiny_checkpoint: Path) -> None:
    report = failures.measure(1, tiny_checkpoint, answers=ANSWERS, rate=120.0, faults=SHORT)
    rows = {row.name: row for row in report.rows}
    for fault in SHORT:
        whole = rows[f"{fault.name}: 200 and whole"]
        assert whole.ok, whole.value
        assert whole.value.startswith("360 of 360")
        read = rows[f"{fault.name}: read by the clients"]
        assert read.ok, read.value
        assert read.value == "240"
    kinds = rows["a device freezes: p99 after the deadline"].value
    assert "false" in kinds
    assert "true 100.0%" not in rows["a deadline of 1 ms: p99 after the deadline"].value


def answer(scores: Sequence[tuple[int, float]], reranked: str, status: int = 200) -> Answer:
    results = [{"index": index, "relevance_score": score} for index, score in scores]
    body = json.dumps({"results": results}).encode()
    return Answer(0.0, status, body, is_json=True, reranked=reranked)


def test_an_answer_of_200_is_no_failure_whatever_its_clients_shape() -> None:
    """TEI's is a bare list. Whether it is whole is judged later."""
    recorder = failures.Kept()
    one = json.dumps([{"index": index, "score": 0.0} for index in range(TITLES)]).encode()
    for name in SHAPES:
        body = one if name == "tei" else b'{"results": []}'
        sent = Request(0.0, measured=True, payload=b"", titles=TITLES, kind=failures._kind(name, 1.0))
        recorder.dispatched(sent)
        recorder.answered(sent, Answer(0.1, 200, body, is_json=True))
    assert (recorder.ok, recorder.errors) == (len(SHAPES), {})


FALSE = [(index, 0.0) for index in range(TITLES)]
PARTIAL = [(4, 0.9), (2, 0.1), *((index, 0.0) for index in range(TITLES) if index not in (2, 4))]
TRUE = [(index, 1 - index / TITLES) for index in range(TITLES)]


@pytest.mark.parametrize(
    ("scores", "reranked", "complaint"),
    [
        (FALSE, "false", ""),
        (PARTIAL, "partial", ""),
        (TRUE, "true", ""),
        (FALSE, "", "x-reranked is ''"),
        (FALSE, "partial", "says another share"),
        (PARTIAL, "false", "says another share"),
        (FALSE[:-1], "false", "does not hold each title once"),
        ([*FALSE[:-1], FALSE[0]], "false", "does not hold each title once"),
        (FALSE[::-1], "false", "does not keep the order"),
        (PARTIAL[1::-1] + PARTIAL[2:], "partial", "is not sorted"),
    ],
)
def test_an_answer_that_is_no_whole_order_is_named(scores: Any, reranked: str, complaint: str) -> None:
    found = failures._complaint("jina", answer(scores, reranked))
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)


@pytest.mark.slow
def test_what_a_client_cannot_read_is_counted() -> None:
    """Else a change of an answer that breaks the clients would pass."""
    whole = json.dumps([{"index": index, "score": 0.0} for index in range(TITLES)]).encode()
    answers = [Answer(0.0, 200, body, is_json=True) for body in (whole, whole)]
    answers.append(Answer(0.0, 503, b'{"error": "no"}', is_json=True))
    counted = reading._read("tei", {"none": {"tei": answers}}, TITLES)["none"]
    assert counted["read"] == 2
    assert counted.total() == 3


def test_a_report_says_what_was_missed() -> None:
    found = Found(6, late_ms=[80.0] * 6, late_in_replica_ms=[5.0] * 6, lag_ms=1.0)
    found.kinds.update({"false": 5})
    found.wrong.update({"jina: http_503": 1})
    found.read.update({"read": 3, "tei: ValueError: no": 1})
    report = report_on({"overload": found}, 1, "")
    assert len(SHAPES) == 6
    assert [(row.ok, row.value.split(" (")[0]) for row in report.rows] == [
        (False, "5 of 6"),
        (False, "80 ms"),
        (False, "3"),
    ]

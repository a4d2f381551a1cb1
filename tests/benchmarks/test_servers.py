"""Servers are measured by the load tester, and one that does not come up is named with its reason."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks import checkpoints, environments, servers
from benchmarks.environments import Unavailable
from benchmarks.load import LoadRuns
from benchmarks.peers import servers as peers
from benchmarks.peers.engines import Engine
from benchmarks.report import Report
from benchmarks.workload import SHAPES
from headroom.loadtest.plan import Plan
from headroom.loadtest.recorder import Recorder
from headroom.loadtest.running import Outcome
from tests.loadtest.test_recorder import record

pytestmark = pytest.mark.more


def test_ratios_are_turn_by_turn_and_targets_are_against_the_best_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mosec, stock = "mosec, OpenVINO bf16", servers.STOCK
    speed = {servers.BF16: {0: 100.0, 1: 120.0}, mosec: {0: 80.0, 1: 120.0}, stock: {0: 20.0}}
    scores = {servers.BF16: [3.0, 1.0], mosec: [3.0, 1.1], stock: [3.0, 1.0]}
    report = Report("")
    names = (servers.BF16, servers.INT8, mosec, stock)
    monkeypatch.setattr(servers, "SERVERS", {name: servers.SERVERS[name] for name in names})
    servers.report_on(report, "base", speed, scores)

    lines = {line["server, engine"]: line for line in report.tables[SHAPES["base"].name]}
    assert [*lines] == [servers.BF16, mosec, stock]
    assert lines[mosec]["headroom bf16 is ×"] == "1.12 (1.00 to 1.25)"
    assert lines[mosec]["headroom int8 is ×"] == ""
    assert lines[mosec]["scores"] == "± 0.1"
    assert [(row.value, row.ok) for row in report.rows] == [
        ("1.12 (1.00 to 1.25)", False),
        ("not measured: headroom int8", False),
        ("5.00 (5.00 to 5.00)", True),
    ]


def test_no_target_is_met_beside_the_best_other_server_if_one_was_not_measured() -> None:
    """Without mosec, ours would be compared with Ray Serve alone, which is slower."""
    speed = {name: {0: 70.0} for name in servers.SERVERS} | {
        servers.BF16: {0: 132.0},
        servers.INT8: {0: 264.0},
    }
    report = Report("")
    servers.report_on(report, "base", speed, {})
    assert [row.ok for row in report.rows] == [True, True, False]

    fast = "mosec, CTranslate2 int8"
    del speed[fast]
    report = Report("")
    servers.report_on(report, "base", speed, {})
    assert [(row.value, row.ok) for row in report.rows[:2]] == [(f"not measured: {fast}", False)] * 2


def test_each_engine_of_mosec_is_measured_with_one_worker_and_with_two() -> None:
    """One worker of two threads is faster for some engines, two of one thread for others."""
    forms = [name.split(", ") for name in servers.SERVERS if name.startswith("mosec")]
    one = {form[-1] for form in forms if len(form) == 2}
    assert one == {form[-1] for form in forms if len(form) == 3} == {"OpenVINO bf16", "CTranslate2 int8"}


@pytest.fixture
def no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "exported", lambda _: tmp_path)
    monkeypatch.setattr(environments, "RUNS", tmp_path)


@pytest.mark.usefixtures("no_model")
def test_a_server_that_ends_at_once_is_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(servers.SERVERS, "broken", ("ours", "python -c raise(SystemExit('no_such_engine'))"))
    with (
        pytest.raises(Unavailable, match="did not become ready: no_such_engine"),
        servers.running("broken", "base"),
    ):
        pass


def test_a_batch_of_requests_is_scored_in_order_whatever_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine here gives a row's number of tokens as its only logit that counts."""

    def lengths(_: Path, __: str) -> Engine:
        return lambda batch: np.stack([np.zeros(len(batch.input_ids)), batch.lengths / 10.0], axis=1)

    monkeypatch.setitem(peers.SERVING, "lengths", lengths)
    monkeypatch.setattr(peers, "BATCH", 2)
    monkeypatch.setenv("BENCH_ENGINE", "lengths:")
    monkeypatch.setenv("BENCH_MODEL", str(checkpoints.DEFAULT))

    answers = peers.Scorer()(
        [{"query": "lamp", "titles": ["a b c d e f", "x", "a b c"]}, {"query": "lamp", "titles": ["a"]}]
    )

    scores = [result["score"] for answer in answers for result in answer["results"]]
    assert [len(answer["results"]) for answer in answers] == [3, 1]
    assert scores[0] > scores[2] > scores[1] == pytest.approx(scores[3])
    expected = 1 / (1 + np.exp(-(4 + 1 + 6) / 10))  # <s> lamp </s> </s> six letters </s>
    assert scores[0] == pytest.approx(expected)


@pytest.mark.parametrize(("latency", "keeps_up"), [(0.02, True), (0.2, False)])
def test_a_server_keeps_up_if_each_answer_comes_within_a_tenth_of_the_run(
    latency: float, keeps_up: bool
) -> None:
    plan = Plan(url="http://127.0.0.1:1", duration=1.0, warmup=0.0, rate=2.0, traffic=[{"titles": 2}])

    class Known(LoadRuns):
        """A run whose latencies are known, which those of a busy machine are not."""

        def run(self, plan: Plan, _: str) -> Outcome:
            recorder = Recorder(0)
            for intended in (0.0, 0.5):
                record(recorder, intended, latency)
            return Outcome(plan, recorder, datetime.now(UTC), 1.0, None, False)

    assert servers.saturated(plan, Known()) == (2.0, keeps_up)


def capacity_of(true: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, list[str]]:
    """Measure a server that answers this many requests per second, with a far too low first guess."""

    def saturated(plan: Plan, _: LoadRuns) -> tuple[float, bool]:
        assert isinstance(plan.rate, float)
        return min(plan.rate, true), plan.rate < true

    monkeypatch.setattr(servers, "first_guess", lambda _: 5.0)
    monkeypatch.setattr(servers, "saturated", saturated)
    runs = LoadRuns()
    return servers.capacity("http://127.0.0.1:1", 1.0, 0.0, "it", runs), runs.invalid


def test_a_server_that_keeps_up_is_asked_for_more_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capacity_of(100.0, monkeypatch) == (100.0, [])


def test_a_server_that_keeps_up_with_every_rate_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capacity_of(1e9, monkeypatch)[1] == ["it: not saturated: it kept up with each of 8 rates"]

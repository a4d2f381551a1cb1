"""Servers are measured by the load tester, and one that does not come up is named with its reason."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import checkpoints, environments, servers
from benchmarks.environments import Unavailable
from benchmarks.peers import servers as peers
from benchmarks.peers.batch import Engine
from benchmarks.report import Report
from benchmarks.workload import SHAPES

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

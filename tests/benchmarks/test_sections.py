"""Every section runs on a small model and counts what it says it counts. No thresholds on time."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from benchmarks import load, service
from benchmarks.serving import CONFIG, Server, headroom
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.more

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, at import

MIXED = """
rate: 15
duration: 4s
warmup: 0
max_lag: 10s
timeout: 20s
traffic:
  - {name: score, weight: 4, titles: 1-10, masks: {none: 1, "0.*": 1}, variants: {full: 1, pruned20: 1}}
  - {name: compare, endpoint: compare, titles: 3, masks: {none: 1, "0.*": 1}}
  - {name: attention, endpoint: attention, titles: 1}
"""


@pytest.fixture(scope="module")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that some tens of requests a second saturate, so that a short load is enough."""
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 512}
    return write_checkpoint(tmp_path_factory.mktemp("small"), **shape)


@pytest.fixture(scope="module")
def server(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the variants of deploy/serve.yaml, for all tests; it leaves no process behind."""
    config = tmp_path_factory.mktemp("server") / "config.yaml"
    text = CONFIG.read_text("utf-8")
    text = text.replace('"@pruned20", sliced: true, optional: true', '"0.*", sliced: true')
    config.write_text(text, "utf-8")
    before = psutil.Process().children(recursive=True)
    with headroom(config, small_checkpoint, replicas=1) as server:
        yield server
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    lines = [" ".join(process.cmdline()) for process in left]
    assert not any("headroom serve" in line or "ray" in line for line in lines)


@pytest.mark.slow
def test_the_load_tester_and_the_server_count_the_same_requests(server: Server, tmp_path: Path) -> None:
    scenario = tmp_path / "mixed.yaml"
    scenario.write_text(MIXED)
    command = [sys.executable, "-m", "loadtest", "run", server.url, "--scenario", scenario]
    run = subprocess.run(
        [*command, "--out", tmp_path / "out"], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["requests"]["errors"] == {}
    counters = report["server_metrics"]["counters"]
    for endpoint in ("score", "compare", "attention"):
        counted = counters[f'headroom_requests_total{{route="/v1/{endpoint}",status="200"}}']
        assert counted == report["by"]["endpoint"][endpoint]["ok"] > 0
    assert {"full", "pruned20"} <= report["by"]["variant"].keys()
    assert report["by"]["mask"].keys() == {"none", "0.*"}
    assert {"tokenize", "queue", "inference"} <= report["stages_ms"].keys()
    assert report["stages_ms"]["total"]["p50"] < report["latency_ms"]["p99"]


@pytest.mark.slow
def test_a_short_run_of_the_service_has_every_row(
    server: Server, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"saturate": 1.0, "idle": 0.5, "overload": 2.0, "crowd": 1.0, "memory": 1.0, "interleaved": 1.0}
    monkeypatch.setattr(service, "SECONDS", short)
    monkeypatch.setattr(service, "FILL_S", 0.5)
    monkeypatch.setattr(service, "peak_rate", lambda _: 60.0)  # the search for it has tests of its own
    monkeypatch.setattr(load, "MAX_LAG_S", 1e9)
    report = service.measure(1, small_checkpoint, small_checkpoint, lambda *_: nullcontext(server))

    rows = {row.name: row for row in report.rows}
    rows.pop("overload: p99 of a refusal", None)  # two seconds may be too short to fill the queue
    assert [*rows] == [
        "HTTP against the model alone, saturated",
        "one pair, idle: p50 beyond the model's",
        "overload: goodput",
        "overload: lost (neither answered nor 429)",
        "overload: memory after / before",
        "single titles beside 1,000 in a loop",
        "memory with a second mask variant",
        "an interleaved request of 20 titles under two masks",
        "ready after",
        "HTTP against the model alone, saturated, BERT-base's shape",
    ]
    assert not any("nan" in row.value for row in rows.values())
    interleaved = rows["an interleaved request of 20 titles under two masks"]
    assert interleaved.value.startswith("2.00 × the pairs")
    assert interleaved.value.endswith("100% of the lists drawn")
    crowd = rows["single titles beside 1,000 in a loop"].value
    assert "; 0 of either failed, " in crowd
    assert ", 0 long requests" not in crowd

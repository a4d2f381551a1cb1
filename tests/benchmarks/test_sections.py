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
import torch

from benchmarks import front, generate, int8, load, pruned, service
from benchmarks.report import Report
from benchmarks.serving import CONFIG, Server, headroom
from benchmarks.workload import SHAPES, Shape, encoder, network
from default_model.smaller import share_words
from headroom.models.quality import comparison
from tests.checkpoints import write_checkpoint
from tests.generators import with_generator

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


@pytest.mark.slow
def test_a_short_run_of_the_front_has_every_row(
    server: Server, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the network of the shared server; the front's own is below."""
    monkeypatch.setattr(front, "cores", lambda: 1)
    monkeypatch.setattr(front, "headroom", lambda *_: nullcontext(server))
    monkeypatch.setattr(front, "CONNECTIONS", 2)  # no more than the network of a slow machine answers
    report = front.measure(1, 0.5, small_checkpoint)
    assert [row.name for row in report.rows] == [
        f"pairs/s and core of front, 1 replica(s), {kind} texts" for kind in ("known", "new")
    ]
    assert all(float(row.value.split()[0].replace(",", "")) > 0 for row in report.rows)


@pytest.mark.usefixtures("one_thread")
def test_generate_measures_greedy_and_beams(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with_generator(tiny_checkpoint, tmp_path)
    report = generate.measure(rounds=1, model=tmp_path)
    assert [row.name for row in report.rows] == ["greedy: milliseconds", "4 beams: milliseconds"]


def test_every_stored_mask_and_network_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_checkpoint(tmp_path / "model")
    (model / "masks").mkdir()
    (model / "masks" / "pruned20.json").write_text(json.dumps({"mask": "2.*"}))
    for name, layers in (("fast", 2), ("rough", 1)):
        share_words(write_checkpoint(model / "networks" / name, num_hidden_layers=layers))
    monkeypatch.setattr(pruned, "DEFAULT", model)
    monkeypatch.setattr(int8, "formats", lambda: [int8.FP32])
    monkeypatch.setattr(comparison, "RESAMPLES", 100)
    report = pruned.measure(rounds=1, limit=24)

    assert "whose tokens are cached" in report.about, "a caller's new texts are tokenized too"
    assert report.tables.keys() == {"fp32", "int8"}
    for lines in report.tables.values():
        assert {line["variant"] for line in lines} >= {"intact", "pruned20", "fast", "rough"}
    names = [row.name for row in report.rows]
    assert {"`fast` × intact, fp32", "`fast`, int8: qwk"} <= {*names}


@pytest.mark.usefixtures("one_thread")
def test_int8_measures_the_speed_of_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Shape("tiny", hidden=24, inner=48, vocabulary=100, layers=2, heads=2)
    monkeypatch.setitem(SHAPES, "tiny", tiny)
    model, report = network(tiny), Report("")
    networks = {name: encoder(model, int8.DTYPES[name]) for name in int8.formats()}
    int8.speed(report, "tiny", networks | {int8.INT8: encoder(model, torch.bfloat16)}, rounds=2)

    engines = [f"ours {name}" for name in (*int8.formats(), int8.INT8, int8.MASKED)]
    assert [line["engine"] for line in report.tables["tiny"]] == engines
    assert report.rows[-1].name == "tiny: cost of masks"

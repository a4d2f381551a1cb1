"""Every section runs on a small model and counts what it says it counts. No thresholds on time."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import yaml

from benchmarks import bulk, cascade, condense, front, generate, int8, load, pruned, service, studies
from benchmarks.load import LoadRuns, plan_for
from benchmarks.model_alone import ModelAlone
from benchmarks.report import Report
from benchmarks.serving import CONFIG, Server, headroom
from benchmarks.workload import SAMPLE, SHAPES, Shape, encoder, network
from default_model.smaller import share_words
from headroom.loadtest.plan import Plan
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.classifier import Classifier
from headroom.models.quality.labelled import read_labelled
from tests.checkpoints import write_checkpoint
from tests.generators import with_generator
from tests.loadtest.servers import reference
from tests.service import in_process

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, at import
    from benchmarks import front_engine

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


def test_a_model_alone_that_stops_early_had_texts_of_all_lengths(small_checkpoint: Path) -> None:
    texts = [(query, title) for query, titles in load.texts(20, 100) for title in titles]
    with closing(ModelAlone(texts, small_checkpoint)) as alone:
        seen = [pair for batch in islice(alone._batches, 10) for pair in batch]
        encoded = alone._classifier.tokenizer.encode(texts)
    assert np.mean([*map(len, seen)]) == pytest.approx(np.mean([*map(len, encoded)]), rel=0.15)


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


def test_a_run_that_the_client_spoiled_is_kept_by_name() -> None:
    with reference("0") as referee:
        one_title = [{"titles": 1}]  # as many results as the referee answers with
        plan = Plan(url=referee.url, rate=20.0, duration=0.5, warmup=0.0, max_lag=1e-6, traffic=one_title)
        runs = LoadRuns()
        runs.run(plan, "the first")
        runs.run(plan.changed(max_lag=60.0), "the second")
    (line,) = runs.invalid
    assert line.startswith("the first: the client sent late")


@pytest.mark.slow
def test_latency_compares_the_cascade_with_the_full_model(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cascade.stage_of() == ("rough", "10"), "the cascade is that of deploy/serve.yaml"
    monkeypatch.setattr(cascade, "CASCADE", "pruned20")  # the shared server's variants
    monkeypatch.setattr(cascade, "TITLES", 5)
    monkeypatch.setattr(cascade, "LATENCY_S", 1.0)
    report, runs = Report(""), LoadRuns()
    cascade.latency(report, runs, plan_for(server.url).changed(rate=5.0), rounds=1)
    p99, failed = report.rows
    assert float(p99.value.split()[0]) > 0
    assert p99.target.endswith(" ms")
    assert failed.value == "0"


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


async def test_the_front_answers_without_a_network(tiny_checkpoint: Path) -> None:
    with front_engine.WITHOUT_NETWORK:
        async with in_process.serve(tiny_checkpoint) as running:
            assert isinstance(running.replica.engine, front_engine.InstantEngine)
            answer = await running.post("/v1/score", query="lamp", titles=["red lamp", "screw"])
        assert len(answer["results"]) == 2
    (named,) = yaml.safe_load(front.front_config())["applications"]
    assert named["import_path"] == f"{front_engine.__name__}:build"
    assert front_engine.build({"max_pairs": 7})._bound_deployment.init_args[0] == {"max_pairs": 7}


def test_bulk_measures_the_same_pairs_both_ways(tiny_checkpoint: Path) -> None:
    report = bulk.measure(rounds=1, model=str(tiny_checkpoint), pairs=300, seconds=0.1)
    assert [row.name for row in report.rows] == [bulk.ALONE, bulk.JOB, "share of the network's rate"]
    assert "a csv file of 300 different" in report.as_markdown()


@pytest.mark.usefixtures("one_thread")
def test_generate_measures_greedy_and_beams(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with_generator(tiny_checkpoint, tmp_path)
    report = generate.measure(rounds=1, model=tmp_path)
    assert [row.name for row in report.rows] == ["greedy: milliseconds", "4 beams: milliseconds"]


def test_condense_measures_every_method_in_passes(tiny_checkpoint: Path) -> None:
    report = condense.measure(rounds=1, model=tiny_checkpoint, candidates=3)
    rows = {row.name: row for row in report.rows}
    assert {f"{method}: passes" for method in condense.METHODS} == rows.keys()
    assert rows["greedy: passes"].target == "≤ 90"
    assert "15 words with 3 candidates" in report.as_markdown()


def test_studies_give_the_same_logits_both_ways(tiny_checkpoint: Path) -> None:
    report = studies.measure(rounds=2, model=tiny_checkpoint, pairs=12)
    rows = {row.name: row for row in report.rows}
    assert float(rows["largest difference of a logit"].value) < 0.1
    assert rows["one pass, share of the time"].target == "≤ 60%"
    assert "12 pairs under " in report.as_markdown()


def test_every_stored_mask_and_network_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_checkpoint(tmp_path / "model")
    (model / "masks").mkdir()
    (model / "masks" / "pruned20.json").write_text(json.dumps({"mask": "2.*"}))
    for name, layers in (("fast", 2), ("rough", 1)):
        share_words(write_checkpoint(model / "networks" / name, num_hidden_layers=layers))
    monkeypatch.setattr(pruned, "DEFAULT", model)
    monkeypatch.setattr(int8, "formats", lambda: [int8.FP32])
    monkeypatch.setattr(pruned, "RESAMPLES", 100)
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


def test_int8_compares_accuracy_under_every_mask() -> None:
    report = Report("")
    exact, other = (Classifier.load(DEFAULT, "cpu", name) for name in ("float32", "bfloat16"))
    test = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:20]
    int8.accuracy(report, {int8.BF16: other, int8.FP32: exact, int8.INT8: other}, test)

    assert len(report.rows) == 2 * len(int8.MASKS)
    assert [row.target for row in report.rows[:2]] == ["", "QWK ≥ −0.005"]
    assert "have the same grade" in report.rows[0].value

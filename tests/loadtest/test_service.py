"""Against the service itself: what the client counted is what the server counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy" / "serve.yaml"
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


@pytest.mark.slow
def test_client_and_server_agree_on_every_request(tiny_checkpoint: Path, tmp_path: Path):
    scenario = tmp_path / "mixed.yaml"
    scenario.write_text(MIXED)
    headroom = Path(sys.executable).with_name("headroom")
    config = tmp_path / "serve.yaml"
    config.write_text(
        DEPLOY.read_text().replace('"@pruned20", sliced: true, optional: true', '"0.1", sliced: true')
    )
    serve = f"{headroom} serve --port {{port}} --replicas 1 --device cpu"
    serve += f" --model {tiny_checkpoint} --config {config}"
    command = [sys.executable, "-m", "loadtest", "run", "--start", serve, "--scenario", str(scenario)]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=240, check=False
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
    assert report["server_models"]

"""The peer's side of the pipe: `python -m benchmarks.peers.pipe ADAPTER MODEL WORKLOAD`, with JSON lines.

It first sends {"engines": [...], "versions": {...}} or {"error": "..."}. It answers each
{"engine", "batch", "calls"} with {"seconds": [...], "logits": [...]}, the logits of the last call.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.batch import Batch, Engines, padded


def read_workload(file: Path) -> list[Batch]:
    """Return the batches of a JSON file: a list of batches of [ids, length of the first segment]."""
    import numpy as np

    return [
        padded([(np.array(ids), first) for ids, first in batch])
        for batch in json.loads(file.read_text(encoding="utf-8"))
    ]


def main(adapter: str, model: str, workload: str) -> None:
    """Load the adapter, then answer until the pipe is closed."""
    # Libraries print to standard output, but only our lines may reach the pipe.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        module = importlib.import_module(f"benchmarks.peers.{adapter}")
        engines: Engines = module.engines(Path(model))
        versions = {name: importlib.metadata.version(name) for name in module.PACKAGES}
        batches = read_workload(Path(workload))
    except Exception as error:  # any error goes into the table
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"engines": list(engines), "versions": versions})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer(run(engines, batches, asked))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


def run(engines: Engines, batches: list[Batch], asked: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of each call and the last call's logits."""
    call, batch = engines[asked["engine"]], batches[asked["batch"]]
    seconds = []
    for _ in range(asked["calls"]):
        started = time.perf_counter()
        logits = call(batch)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "logits": logits.tolist()}


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Has recorded answers read by the clients that they are for, each in its own process.

`make clients` installs the clients. `benchmarks.peers.clients` runs in their environment.
"""

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT, Unavailable
from headroom.loadtest.wire import Answer

CLIENTS = ("cohere 2", "cohere 1", "jina", "tei")
"""The shapes whose clients are in Python: Cohere's, LiteLLM for Jina, `rerankers` for TEI. Weaviate's is in
Go: `rows_of` reads what its ranker.go reads. /v1/score has none."""

PYTHON = ROOT / ".venv-clients" / "sdk" / "bin" / "python"
SCRIPT = Path(__file__).with_name("clients.py")

Rows = list[tuple[int, float]]
"""Index and score of each title, in the order of the answer."""


def rows_of(name: str, document: Any) -> Rows:
    """Return the rows of an answer in the shape of this name. Raises ValueError, KeyError, TypeError."""
    match name:
        case "tei":
            return [(row["index"], row["score"]) for row in document]
        case "weaviate":
            return [
                (index, float(row["score"]))
                for index, row in enumerate(document["scores"])
                if row["document"]
            ]
        case "score":
            return [(row["index"], row["score"]) for row in document["results"]]
    return [(row["index"], row["relevance_score"]) for row in document["results"]]


def check_installed() -> None:
    """Raise Unavailable if the clients are not installed."""
    if not PYTHON.exists():
        raise Unavailable("the clients are not installed; run: make clients")


def read(answers: Mapping[str, Mapping[str, Sequence[Answer]]], titles: int) -> dict[str, Counter[str]]:
    """Return how many answers the clients read, as `read`, and the others by what was wrong, of each fault.

    answers: by the fault and the name of the shape. titles: of each request.
    """
    found: dict[str, Counter[str]] = {fault: Counter() for fault in answers}
    with ThreadPoolExecutor(2) as pool:
        for counted in pool.map(lambda name: _read(name, answers, titles), CLIENTS):
            for fault, count in counted.items():
                found[fault] += count
    return found


def _read(
    name: str, answers: Mapping[str, Mapping[str, Sequence[Answer]]], titles: int
) -> dict[str, Counter[str]]:
    """Have one client read the answers of its shape under all faults: it takes seconds to import."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for fault, by_shape in answers.items():
            for answer in by_shape[name]:
                body = str(answer.body, "utf-8")
                rows = rows_of(name, json.loads(body)) if answer.status == 200 else []
                line = {"fault": fault, "status": answer.status, "body": body, "rows": rows}
                file.write(json.dumps(line) + "\n")
        file.flush()
        command = [str(PYTHON), str(SCRIPT), name, file.name, str(titles)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {fault: Counter({f"{name}: {done.stderr.strip().splitlines()[-1]}": 1}) for fault in answers}
    counted = json.loads(done.stdout.splitlines()[-1])
    return {fault: Counter(count) for fault, count in counted.items()}

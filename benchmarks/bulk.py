"""Measures `headroom score --input` against the network alone on the same batches, in turns.

The network alone gets batches that are tokenized already, on the same threads. The job reads csv, tokenizes,
computes, and writes parts and the output. Loading the model counts for neither.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import alternate, machine, ratio
from models.batch import batches_by_length
from models.checkpoint.text_cache import TextCache
from models.quality.labelled import read_labelled
from service.bulk import local
from service.bulk.job import make_job, run
from service.bulk.reading import Fields, windows
from service.bulk.request import Column, Request
from service.bulk.scoring import Scorer, forward
from service.bulk.storage import Disk
from service.bulk.writing import Layout
from service.settings import LiveConfig

DATA = Path(__file__).parents[1] / "data" / "sample" / "test.jsonl.gz"
ROUNDS = 3
PAIRS = 5 * 4096
ALONE, JOB = "the network alone", "headroom score --input"
LEAST_SHARE = 0.95


def measure(rounds: int, model: str | None = None, pairs: int = PAIRS) -> dict[str, Any]:
    """Return pairs per second of both, and the job's share of the network's rate by round."""
    request = Request(model, LiveConfig(), (Column(),), Fields(), device="cpu")
    scorer = Scorer(request)
    with tempfile.TemporaryDirectory() as directory:
        source, output = Path(directory, "pairs.csv"), Path(directory, "scored.csv")
        write_pairs(source, pairs)
        layout = Layout(("",), bool(scorer.catalog.base.grades), chunks=False)
        job = make_job(str(source), str(output), request, layout)
        score = partial(local.score, scorer=scorer)
        batches = batches_of(scorer, source)

        def alone() -> None:
            for future in [scorer.pool.submit(forward, scorer.choices[0], batch, None) for batch in batches]:
                future.result()

        def whole_job() -> None:
            scorer.catalog.base.tokenizer._cache = TextCache(65_536)  # each turn reads new texts
            run(job, score, lambda *_: None, overwrite=True)

        seconds = alternate({ALONE: alone, JOB: whole_job}, rounds)
    scorer.close()
    return {
        "machine": machine(),
        "pairs": pairs,
        "pairs_per_second": {name: pairs / statistics.median(values) for name, values in seconds.items()},
        "share": asdict(ratio(seconds, JOB, ALONE)),
    }


def write_pairs(path: Path, count: int) -> None:
    """Write the labelled sample's pairs as csv, over and over; no title comes twice."""
    labelled = read_labelled(DATA, grades=5)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("id", "query", "title"))
        for row in range(count):
            pair = labelled[row % len(labelled)]
            writer.writerow((row, pair.query, f"{pair.title} {row}"))


def batches_of(scorer: Scorer, source: Path) -> list[list[Any]]:
    """Return the batches that the job makes of the file, tokenized."""
    batches = []
    tokenizer = scorer.catalog.base.tokenizer
    for window in windows(Disk(), str(source), 0, Fields(), target="csv"):
        encoded = tokenizer.encode([(record["query"], record["title"]) for record in window.records])
        cut = batches_by_length([len(pair) for pair in encoded], scorer.batch_tokens)
        batches += [[encoded[row] for row in rows] for rows in cut]
    return batches


def as_markdown(result: dict[str, Any]) -> str:
    """Return the table."""
    share = result["share"]
    return "\n".join(
        [
            f"{result['machine']}; the shipped model, a csv file of {result['pairs']:,} different product "
            "titles with their queries.",
            "",
            "| | pairs/s |",
            "|---|---|",
            *(f"| {name} | {rate:.0f} |" for name, rate in result["pairs_per_second"].items()),
            "",
            f"The job reaches {share['median']:.1%} of the network's rate ({share['low']:.1%} to "
            f"{share['high']:.1%} by round); target ≥ {LEAST_SHARE:.0%}.",
        ]
    )


def missed(result: dict[str, Any]) -> list[str]:
    """Return the target if this run misses it, in words."""
    share = result["share"]["median"]
    if share >= LEAST_SHARE:
        return []
    return [f"headroom score --input reaches {share:.1%} of the network's rate, target {LEAST_SHARE:.0%}"]

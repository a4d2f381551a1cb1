"""Measures `headroom score --input` against the network alone on the same pairs, in turns.

The network alone gets pairs that are tokenized already, on as many threads. The job reads csv, tokenizes,
computes, and writes parts and the output. Loading the model counts for neither.
"""

import csv
import statistics
import tempfile
import time
from contextlib import closing, nullcontext
from itertools import cycle, islice
from pathlib import Path

from benchmarks.measure import Ratio, turns
from benchmarks.model_alone import ModelAlone
from benchmarks.report import Report, Row, at_least
from benchmarks.workload import SAMPLE
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.quality.labelled import Columns, read_labelled
from headroom.service.config.settings import LiveConfig
from headroom.service.files.job import make_job
from headroom.service.files.options import ColumnSet, ScoreOptions
from headroom.service.files.running import run
from headroom.service.files.scoring import WindowScorer

ROUNDS = 3
PAIRS = 5 * 4096
ALONE = "the network alone"
JOB = "headroom score --input"


def measure(rounds: int, model: str | None = None, pairs: int = PAIRS, seconds: float = 20.0) -> Report:
    """Measure pairs per second of both. seconds: of each turn of the network alone."""
    graded = read_config(Path(model) if model else DEFAULT).is_graded
    options = ScoreOptions(model, LiveConfig(), (ColumnSet(),), Columns(), graded, device="cpu")
    scorer = WindowScorer(options)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "pairs.csv")
        output = Path(directory, "scored.csv")
        texts = write_pairs(source, pairs)
        job = make_job(str(source), str(output), options)

        def whole_job(_: int) -> float:
            began = time.monotonic()
            scorer.catalog.base.tokenizer._cache.clear()  # each turn reads new texts
            run(job, lambda: nullcontext(scorer), lambda *_: None, overwrite=True)
            return pairs / (time.monotonic() - began)

        with closing(ModelAlone(texts, Path(model) if model else DEFAULT)) as alone:
            whole_job(0)
            rates = turns({ALONE: lambda _: alone.pairs_per_second(seconds), JOB: whole_job}, rounds)
    scorer.close()
    share = Ratio.of(rates[JOB], rates[ALONE])
    return Report(
        f"the shipped model, a csv file of {pairs:,} different titles with their queries.",
        [
            *(Row(name, f"{statistics.median(rates[name]):.0f} pairs/s") for name in rates),
            at_least("share of the network's rate", share.median, 0.95, ".1%", share.range(".1%")),
        ],
    )


def write_pairs(path: Path, count: int) -> list[tuple[str, str]]:
    """Write the labelled sample's pairs as csv, over and over, and return them; no title comes twice."""
    labelled = cycle(read_labelled(SAMPLE / "test.jsonl.gz", grades=5))
    pairs = [(pair.query, f"{pair.title} {row}") for row, pair in enumerate(islice(labelled, count))]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("id", "query", "title"))
        writer.writerows((row, *pair) for row, pair in enumerate(pairs))
    return pairs

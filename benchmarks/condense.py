"""Condensing a query of 15 words with 50 candidates, against one forward pass over the candidates."""

import statistics
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measure import alternate, ratio
from benchmarks.report import Report, Row, at_most
from benchmarks.workload import SAMPLE
from headroom import Classifier
from headroom.models.condense.local import Titles, condense, judge
from headroom.models.condense.search import METHODS, Task
from headroom.models.condense.words import read_words
from headroom.models.quality.labelled import read_labelled

QUERY = "where can i find a good warm dish towel set that dries fast and lasts"
ROUNDS = 5
WORDS_KEPT = 4
LARGEST = {"greedy": 90.0, "leave_one_out": 16.0}
ONE_PASS = "one pass"


def measure(rounds: int, model: Path | None = None, candidates: int = 50) -> Report:
    """Measure one pass and each method, in turns."""
    classifier = Classifier.load(model, device="cpu")
    labelled = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)
    chosen = np.random.default_rng(0).permutation(len(labelled))[:candidates]
    titles = [labelled[index].title for index in chosen]
    words = read_words(QUERY)
    encoded = Titles(classifier.tokenizer, titles)
    tasks = {method: Task(QUERY, words, method, max_words=WORDS_KEPT) for method in METHODS}
    sides = {ONE_PASS: lambda: judge(classifier, encoded.encode([QUERY]))} | {
        method: partial(condense, classifier, task, titles) for method, task in tasks.items()
    }
    seconds = alternate(sides, rounds)
    report = Report(
        f"the shipped model, a query of {len(words)} words with {len(titles)} candidates; one "
        f"pass over them takes {statistics.median(seconds[ONE_PASS]) * 1000:.0f} ms."
    )
    for method in METHODS:
        passes = ratio(seconds, ONE_PASS, method)
        name = f"{method}: passes"
        if method in LARGEST:
            row = at_most(name, passes.median, LARGEST[method], ".0f", more=passes.range(".1f"))
        else:
            row = Row(name, passes.text(".1f"))
        report.rows.append(row)
    return report

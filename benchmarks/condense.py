"""Condensing a query of 15 words with 50 candidates, against one forward pass over the candidates."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import alternate, machine, ratio
from models import Classifier
from models.condense.local import condense, judge
from models.condense.methods import METHODS
from models.condense.search import Task
from models.condense.titles import Titles
from models.condense.words import read_words
from models.quality.labelled import read_labelled

DATA = Path(__file__).parents[1] / "data" / "sample" / "test.jsonl.gz"
QUERY = "where can i find a good warm dish towel set that dries fast and lasts"
ROUNDS = 5
CANDIDATES = 50
WORDS_KEPT = 4
LARGEST = {"greedy": 90.0, "leave_one_out": 16.0}
ONE_PASS = "one pass"


def measure(rounds: int, model: Path | None = None, candidates: int = CANDIDATES) -> dict[str, Any]:
    """Seconds of one pass and of each method, and how many passes a method takes, by round."""
    classifier = Classifier.load(model, device="cpu")
    labelled = read_labelled(DATA, grades=5)
    picked = np.random.default_rng(0).permutation(len(labelled))[:candidates]
    titles = [labelled[place].title for place in picked]
    words = read_words(QUERY)
    encoded = Titles(classifier.tokenizer, titles)
    sides: dict[str, Any] = {ONE_PASS: lambda: judge(classifier, encoded.encode([QUERY]))}
    for method in METHODS:
        task = Task(QUERY, words, method, max_words=WORDS_KEPT)
        sides[method] = lambda task=task: condense(classifier, task, titles)
    seconds = alternate(sides, rounds)
    return {
        "machine": machine(),
        "words": len(words),
        "candidates": len(titles),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "passes": {method: asdict(ratio(seconds, ONE_PASS, method)) for method in METHODS},
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The table."""
    seconds = result["seconds"]
    return "\n".join(
        [
            f"{result['machine']}; the shipped model, a query of {result['words']} words with "
            f"{result['candidates']} candidates; one pass over them takes {seconds[ONE_PASS] * 1000:.0f} ms.",
            "",
            "| method | seconds | passes (range of the rounds) | target |",
            "|---|---|---|---|",
            *(
                f"| {method} | {seconds[method]:.2f} | {passes['median']:.1f} ({passes['low']:.1f} to "
                f"{passes['high']:.1f}) | {f'≤ {LARGEST[method]:.0f}' if method in LARGEST else '–'} |"
                for method, passes in result["passes"].items()
            ),
        ]
    )


def missed(result: dict[str, Any]) -> list[str]:
    """The targets that this run does not reach, in words."""
    return [
        f"{method} takes {result['passes'][method]['median']:.1f} passes, target {most:.0f}"
        for method, most in LARGEST.items()
        if result["passes"][method]["median"] > most
    ]

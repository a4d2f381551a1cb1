"""Writing the short query of a question of 20 words, greedy and with beams, alone on all cores."""

import statistics
from functools import partial
from pathlib import Path

from benchmarks.measure import alternate
from benchmarks.report import Report, at_most
from headroom import Classifier

QUESTION = (
    "hi i am looking for a quiet wireless mouse for small hands that works with my old laptop and my tablet"
)
ROUNDS = 20
LARGEST_MS = {1: 60.0, 4: 150.0}
"""By the number of beams."""


def measure(rounds: int, model: Path | None = None) -> Report:
    """Measure each number of beams, in turns."""
    classifier = Classifier.load(model, device="cpu")
    sides = {str(beams): partial(classifier.generate_query, QUESTION, beams) for beams in LARGEST_MS}
    seconds = alternate(sides, rounds)
    queries = {beams: classifier.generate_query(QUESTION, beams)[0].query for beams in LARGEST_MS}
    report = Report(f"the shipped model, a question of {len(QUESTION.split())} words, no other work.")
    for beams, limit in LARGEST_MS.items():
        name = "greedy" if beams == 1 else f"{beams} beams"
        milliseconds = statistics.median(seconds[str(beams)]) * 1000
        more = f" (a query of {len(queries[beams].split())} words)"
        report.rows.append(at_most(f"{name}: milliseconds", milliseconds, limit, ".0f", more=more))
    return report

"""ARCS: data sets of public catalogues, judged for the queries of their visitors (Socrata, 2015).

all.csv, from the history of socrata/arcs: query, name (the data set's title), relevance: the votes from 0 to
3, one per line; -1 is a vote that does not count.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from models.training.demo.sources.judging import Pair, grade_of_votes


def judged_pairs(folder: Path) -> Iterator[Pair]:
    """Return every judged data set, in the file's order; a data set that was judged twice comes twice."""
    with (folder / "all.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            votes = [int(vote) for vote in row["relevance"].split()]
            yield row["query"], row["name"], grade_of_votes([vote for vote in votes if vote >= 0])

"""Writes 57,270 pairs of the sample's texts that nobody judged, to try `headroom distil` with.

Its queries, but those of test.jsonl.gz, and pieces of its titles, each with titles that share words with it
and a few that are drawn. Needs scikit-learn.

python data/sample/make_pairs.py runs/pairs.csv
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

SAMPLE = Path(__file__).parent
AT_ONCE = 512

FROM_START = 0.4
SCATTERED = 0.3
"""Shares of the pieces that begin with the title, and whose words do not stand side by side."""


def read(name: str) -> dict[str, set[str]]:
    """Return the titles of each query of a file."""
    titles_of: dict[str, set[str]] = {}
    with gzip.open(SAMPLE / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for pair in map(json.loads, lines):
            titles_of.setdefault(pair["query"], set()).add(pair["title"])
    return titles_of


def piece_of(title: str, rng: np.random.Generator) -> str:
    """Return two to five words of a title, as somebody might ask for it; empty if it has one word."""
    words = re.findall(r"[\w'&.-]+", title)
    count = int(rng.integers(2, 6))
    if len(words) < 2:
        return ""
    first = 0
    if rng.random() >= FROM_START:
        first = int(rng.integers(0, max(1, len(words) - count + 1)))
    chosen = words[first : first + count]
    if rng.random() < SCATTERED and len(words) > 6:
        places = rng.choice(min(len(words), 14), size=count, replace=False)
        chosen = [words[place] for place in sorted(places)]
    return " ".join(chosen).lower()


def pairs_of(
    queries: Sequence[str],
    titles: Sequence[str],
    judged: Mapping[str, Set[str]],
    rng: np.random.Generator,
    *,
    near: int,
    far: int,
) -> Iterator[tuple[str, str]]:
    """Yield each query with its judged titles, `near` that share words with it, and `far` of any.

    Half of the near ones are the nearest; the others are drawn from the next.
    """
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit(titles)
    of_titles = vectorizer.transform(titles).T
    nearest = near // 2
    for start in range(0, len(queries), AT_ONCE):
        some = queries[start : start + AT_ONCE]
        likeness = (vectorizer.transform(some) @ of_titles).toarray()
        for query, row in zip(some, likeness, strict=True):
            # Stable and rounded: equal titles stand in one order on every processor.
            order = np.argsort(-row.round(6), kind="stable")[: 3 * near]
            next_ones = rng.choice(order[nearest:], size=near - nearest, replace=False)
            any_ones = rng.integers(0, len(titles), far)
            chosen = {titles[index] for index in (*order[:nearest], *next_ones, *any_ones)}
            for title in sorted(chosen | judged.get(query, set())):
                yield query, title


def write(file: Path) -> None:
    """Write the pairs as csv, the same ones every time."""
    test = read("test")
    others = read("calibration")
    titles = sorted(set().union(*test.values(), *others.values()))
    measured = {query.lower().strip() for query in test}
    queries = sorted(query for query in others if query.lower().strip() not in measured)
    rng = np.random.default_rng(0)
    pieces = dict.fromkeys(piece_of(title, rng) for title in titles)
    asked = [piece for piece in pieces if piece and piece not in measured]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("query", "title"))
        writer.writerows(pairs_of(queries, titles, others, rng, near=40, far=8))
        writer.writerows(pairs_of(asked, titles, others, rng, near=6, far=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write pairs to try `headroom distil` with.")
    parser.add_argument("file", type=Path, help="csv file to write, such as runs/pairs.csv")
    write(parser.parse_args().file)

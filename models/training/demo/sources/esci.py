"""ESCI: what people searched for on Amazon, and products judged for it (Reddy et al. 2022, arXiv:2206.06588).

Files:
- esci_us_judgments.json, 150 queries of the US set:
  {"judgmentRatings": [{"query": ..., "ratings": [{"docId": ASIN, "rating": "100.000"}, ...]}, ...]};
- ubi_ecommerce_products.json.gz, their products, one JSON object a line: asin, title, brand (or null),
  bullet_points (one a line, or null), description (or null);
- esci.csv and sample_2c_full_data.csv, 685 pairs of 250 queries: query, product_title and esci_label
  ("Exact" or "E", ...).

The 150 queries' ratings are gains: 100 exact, 10 substitute, 1 complement, 0 irrelevant. An irrelevant
product was at least retrieved for the query, so it gets grade 1; grade 0 is a product of another query.
"""

import csv
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.training.demo.sources.judging import Pair

GRADE_OF_RATING = {100: 4, 10: 3, 1: 2, 0: 1}
GRADE_OF_LABEL = {"E": 4, "S": 3, "C": 2, "I": 1}
UNRELATED_PER_QUERY = 8


def judged_pairs(folder: Path) -> Iterator[Pair]:
    """Return the 150 queries' pairs, in the file's order."""
    titles = {product["asin"]: product["title"] for product in _products(folder)}
    judgments = json.loads((folder / "esci_us_judgments.json").read_text(encoding="utf-8"))
    for judged in judgments["judgmentRatings"]:
        for rating in judged["ratings"]:
            grade = GRADE_OF_RATING[int(float(rating["rating"]))]
            yield judged["query"], titles[rating["docId"]], grade


def unrelated_pairs(folder: Path) -> Iterator[Pair]:
    """Return pairs of grade 0: each of the 150 queries with products of others that share no word with it.

    The seed makes them the same every time, unless Python changes random.choice.
    """
    own: dict[str, set[str]] = {}
    for query, title, _ in judged_pairs(folder):
        own.setdefault(query, set()).add(title)
    titles = sorted(set().union(*own.values()))
    rng = random.Random(7)
    for query in sorted(own):
        words = set(query.lower().split())
        drawn = 0
        while drawn < UNRELATED_PER_QUERY:
            title = rng.choice(titles)
            if title not in own[query] and words.isdisjoint(title.lower().split()):
                drawn += 1
                yield query, title, 0


def extra_pairs(folder: Path) -> Iterator[Pair]:
    """Return the pairs of other queries."""
    for name in ("esci.csv", "sample_2c_full_data.csv"):
        with (folder / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield row["query"], row["product_title"], GRADE_OF_LABEL[row["esci_label"][0]]


def text_lines(folder: Path) -> Iterator[str]:
    """Return each product's title and brand, bullet points and description."""
    for product in _products(folder):
        yield f"{product['title'].strip()} {product['brand'] or ''}".strip()
        bullets = (product["bullet_points"] or "").split("\n")
        yield from (bullet.strip() for bullet in bullets if bullet.strip())
        if product["description"]:
            yield " ".join(product["description"].split())


def _products(folder: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / "ubi_ecommerce_products.json.gz", "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)

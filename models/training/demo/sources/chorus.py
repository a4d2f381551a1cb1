"""Chorus: electronics from the Icecat catalogue, rated for 135 shop queries by up to three people.

Files, from querqy/chorus:
- Broad_Query_Set_rated.csv: query, docid, rating (0 to 3);
- Broad_Query_Set_individual_ratings.csv: query, docid, agent_1_rating to agent_3_rating, for most of them;
- 1.json.zip to 4.json.zip, each one JSON list of products: id, title, name (the model), supplier,
  short_description (not always) and attributes as attr_TYPE_NAME.

The product text is Icecat's, under its Open Content License: train on it, do not copy it into the project.
"""

import csv
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.training.demo.sources.judging import Pair, grade_of_votes

_ATTRIBUTE_PREFIX = len("attr_t_")


def judged_pairs(folder: Path) -> Iterator[Pair]:
    """Return the rated pairs, graded by the three ratings if there are three, else by the agreed one."""
    title = {product["id"]: product["title"] for product in _products(folder)}
    votes = {
        (row["query"], row["docid"]): [int(row[f"agent_{agent}_rating"]) for agent in (1, 2, 3)]
        for row in _rows(folder / "Broad_Query_Set_individual_ratings.csv")
    }
    for row in _rows(folder / "Broad_Query_Set_rated.csv"):
        query, product = row["query"], row["docid"]
        yield query, title[product], grade_of_votes(votes.get((query, product), [int(row["rating"])]))


def titles(folder: Path) -> Iterator[dict[str, str | None]]:
    """Return each product's id, title, supplier and short description."""
    for product in _products(folder):
        yield {
            "id": product["id"],
            "title": product["title"],
            "supplier": product["supplier"],
            "short": product.get("short_description"),
        }


def text_lines(folder: Path) -> Iterator[str]:
    """Return each product's title, short description, and "SUPPLIER MODEL - ATTRIBUTE: VALUE, ..."."""
    for product in _products(folder):
        yield product["title"]
        if product.get("short_description"):
            yield product["short_description"]
        attributes = [
            f"{key[_ATTRIBUTE_PREFIX:].replace('_', ' ')}: {value}"
            for key, value in product.items()
            if key.startswith("attr_")
        ]
        if attributes:
            yield f"{product['supplier']} {product['name']} - {', '.join(attributes)}"


def _products(folder: Path) -> Iterator[dict[str, Any]]:
    for part in (1, 2, 3, 4):
        with zipfile.ZipFile(folder / f"{part}.json.zip") as archive:
            yield from json.loads(archive.read(f"{part}.json"))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)

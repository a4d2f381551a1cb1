"""What a person checks first on the shipped model; the pairs were written by hand and never trained on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from models import Classifier
from models.training.shipped.checks import KINDS, read_quadruples

SYNONYMS = (
    ("sofa", "Modern Couch, Grey Fabric, 3 Seater", "Motor Oil 5W-30"),
    ("couch", "Modern Sofa, Grey Fabric, 3 Seater", "Motor Oil 5W-30"),
    ("television", "LG 43 inch LED TV", "Wool Gloves"),
    ("sneakers", "Puma Mens Running Shoes", "Garden Rake"),
    ("trash can", "Garbage Bin with Lid, 13 Gallon", "Ballpoint Pens"),
    ("rug", "Area Carpet, 5 x 7, Blue", "Phone Charger"),
    ("cellphone", "Nokia Mobile Phone, Dual SIM", "Baking Soda"),
    ("bag", "Leather Handbag, Brown", "Drill Bits"),
)


@pytest.fixture(scope="module")
def clf() -> Classifier:
    return Classifier.load(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def quadruples() -> list[dict[str, str]]:
    return read_quadruples("english")


def expected_grades(clf: Classifier, pairs: list[tuple[str, str]], columns: int) -> np.ndarray:
    """(len(pairs) / columns, columns)."""
    return clf.score(pairs).expected_grade.reshape(-1, columns)


def test_the_quadruples_cover_many_kinds_of_product(quadruples: list[dict[str, str]]) -> None:
    assert len(quadruples) == 60
    assert len({row["type"] for row in quadruples}) >= 15
    assert len({row["type"] for row in read_quadruples("development")}) >= 50


def test_exact_beats_a_substitute_and_an_accessory_beats_the_unrelated(
    clf: Classifier, quadruples: list[dict[str, str]]
) -> None:
    """All four in order: models/training/shipped/checks.py."""
    grades = expected_grades(clf, [(row["query"], row[kind]) for row in quadruples for kind in KINDS], 4)
    assert (grades[:, 0] > grades[:, 3]).all()
    in_order = np.diff(grades, axis=1) < 0
    assert in_order[:, 0].mean() >= 0.9
    assert in_order[:, 2].mean() >= 0.9


def test_a_typo_or_another_word_order_still_finds_the_product(
    clf: Classifier, quadruples: list[dict[str, str]]
) -> None:
    rng = random.Random(0)
    misspelled, reordered = [], []
    for row in quadruples:
        words = row["query"].split()
        longest = max(words, key=len)
        place = rng.randrange(1, len(longest) - 1)
        swapped = longest[:place] + longest[place + 1] + longest[place] + longest[place + 2 :]
        misspelled.append(" ".join(swapped if word == longest else word for word in words))
        reordered.append(" ".join(rng.sample(words, len(words))))

    for queries in (misspelled, reordered):
        pairs = [
            (query, row[kind])
            for query, row in zip(queries, quadruples, strict=True)
            for kind in ("exact", "unrelated")
        ]
        exact, unrelated = expected_grades(clf, pairs, 2).T
        assert (exact > unrelated).mean() >= 0.95


def test_a_synonym_beats_an_unrelated_product(clf: Classifier) -> None:
    pairs = [(query, title) for query, *titles in SYNONYMS for title in titles]
    synonym, unrelated = expected_grades(clf, pairs, 2).T

    assert (synonym > unrelated).mean() >= 0.85, dict(
        zip((row[0] for row in SYNONYMS), synonym - unrelated, strict=True)
    )

"""The lexical bars: each by its definition, and grades from scores by maximum likelihood."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from models import Classifier
from models.quality.evaluation import Evaluation
from models.quality.lexical import bm25, idf_overlap
from models.training.data import Judged
from models.training.demo.baselines import as_markdown, char_tfidf, compare, fit_ordinal

TITLES = ["red lamp", "blue lamp", "wood screws", "lamp shades in red and white"]


def test_bm25_by_hand() -> None:
    idf = math.log(1 + (4 - 3 + 0.5) / (3 + 0.5))  # "lamp" is in three of four titles
    mean = (2 + 2 + 2 + 6) / 4
    expected = idf * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / mean))
    assert bm25(TITLES)("lamps", "red lamp") == pytest.approx(expected)
    assert bm25(TITLES)("sofa", "red lamp") == 0


def test_overlap_weighs_rare_words_more() -> None:
    score = idf_overlap(TITLES)
    assert score("red lamp", "lamp in red") == pytest.approx(1)
    assert score("wood lamp", "wood screws") > score("wood lamp", "blue lamp") > 0
    assert score("?!", "wood") == 0


def test_character_grams_forgive_spelling() -> None:
    score = char_tfidf(TITLES)
    assert score("red lamp", "red lamp") == pytest.approx(1)
    assert score("scerws", "wood screws") > score("lamp", "wood screws") == 0
    assert score("", "wood") == 0


def test_proportional_odds_recover_the_parameters_they_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, 20_000)
    thresholds = np.array([1.0, 2.0, 4.0, 5.0])
    latent = 0.8 * x + rng.logistic(size=len(x))
    grades = (latent[:, None] > thresholds).sum(1)

    predict = fit_ordinal(x, grades.tolist())

    at = np.array([0.0, 3.0, 6.0])
    below = 1 / (1 + np.exp(-(thresholds - 0.8 * at[:, None])))
    expected = np.diff(np.concatenate([np.zeros((3, 1)), below, np.ones((3, 1))], 1))
    np.testing.assert_allclose(predict(at), expected, atol=0.02)


def test_the_comparison_is_paired_and_by_source(tiny_checkpoint: Path) -> None:
    rows = [
        Judged(f"lamp {i % 5}", title, grade, source, 4)
        for i in range(20)
        for title, grade in zip(TITLES, (4, 3, 0, 1) if i % 4 else (1, 0, 3, 4), strict=True)
        for source in ("esci_us_150q", "chorus_icecat", "socrata_arcs")
    ]
    report = compare(Classifier.load(tiny_checkpoint, "cpu", "float32"), rows, rows, TITLES)

    assert list(report) == ["chorus", "esci", "socrata", "products", "all"]
    assert report["products"]["pairs"] == 160
    found = report["esci"]
    change = found["model_minus"]["bm25"]["qwk"]["value"]
    metrics = found["metrics"]
    assert change == pytest.approx(metrics["model"]["qwk"]["value"] - metrics["bm25"]["qwk"]["value"])
    assert as_markdown(report).count("\n") == 1 + 5 * 5
    assert "(no interval) |" in as_markdown(report)  # of five queries
    assert "nan" not in as_markdown(report)


def test_a_baseline_is_judged_on_a_source_by_what_that_source_s_grades_mean(tiny_checkpoint: Path) -> None:
    """The grades of one source rise with the score, those of the larger one fall."""
    rng = np.random.default_rng(0)
    score = idf_overlap(TITLES)
    rows = []
    for source, copies in (("esci_us_150q", 1), ("dbpedia_entity_v2", 2)):
        for number in range(40 * copies):
            query, title = "red lamp", TITLES[number % 4]
            high = score(query, title) + rng.normal(0, 0.3) > 0.5
            grade = 4 * high if source.startswith("esci") else 4 * (not high)
            rows.append(Judged(f"{query}{' ?' * (number % 15)}", title, int(grade), source, 4))
    report = compare(Classifier.load(tiny_checkpoint, "cpu", "float32"), rows, rows, TITLES)

    for group, source in (("esci", "esci_us_150q"), ("dbpedia", "dbpedia_entity_v2")):
        own = [row for row in rows if row.source == source]
        scores, grades = np.array([score(row.query, row.title) for row in own]), [row.grade for row in own]
        alone = Evaluation([row.query for row in own], grades, fit_ordinal(scores, grades)(scores))
        found = report[group]["metrics"]["idf_overlap"]
        assert found["qwk"]["value"] == pytest.approx(alone.metrics()["qwk"])
        assert found["qwk"]["value"] > 0.5
    # The score ranks as it is: no fit turns it round.
    assert report["esci"]["metrics"]["idf_overlap"]["spearman"]["value"] > 0.5
    assert report["dbpedia"]["metrics"]["idf_overlap"]["spearman"]["value"] < -0.5
    with pytest.raises(ValueError, match="no training pairs of dbpedia"):
        compare(Classifier.load(tiny_checkpoint, "cpu", "float32"), rows[:40], rows, TITLES)

"""What decides which weights are shipped: the baseline's words, the sources kept apart, the temperature."""

import numpy as np
import pytest

from models.quality.lexical import weighted_overlap
from models.training.data import Judged
from models.training.demo.titles import TitleStatistics, overlap_probabilities
from models.training.evaluate import (
    by_family,
    calibrated_temperature,
    probabilities_of,
)

STATISTICS = TitleStatistics({"bracket": 3.0, "angle": 2.0, "red": 1.0}, 5.0, {}, frozenset(), frozenset())


def test_word_overlap_weighs_rare_words_more_and_takes_a_plural_for_its_singular() -> None:
    assert weighted_overlap("angle bracket", "Corner Brackets", STATISTICS.rarity) == pytest.approx(3 / 5)
    assert weighted_overlap("unheard bracket", "Bracket", STATISTICS.rarity) == pytest.approx(3 / 8)
    assert weighted_overlap("!", "Bracket", STATISTICS.rarity) == 0


def test_sources_are_measured_apart_and_esci_is_one_of_them() -> None:
    sources = ("esci_us_150q", "esci_extra", "chorus_icecat", "dbpedia_entity_v2")
    judged = [
        Judged(f"{source} q", f"t{grade}", grade, source, 2) for source in sources for grade in range(5)
    ]
    figures = by_family(judged, np.tile(np.eye(5), (4, 1)))
    assert {name: metrics["pairs"] for name, metrics in figures.items()} == {
        "esci": 10, "chorus": 5, "dbpedia": 5, "products": 15, "all": 20,
    }  # fmt: skip
    assert all(metrics["qwk"] == metrics["ndcg10"] == 1 for metrics in figures.values())


def test_the_baseline_ranks_by_overlap() -> None:
    titles = ("Red Angle Bracket", "Bracket", "Sofa")
    judged = [
        Judged("angle bracket", title, grade, "esci_us_150q", 2)
        for title, grade in zip(titles, (4, 3, 0), strict=True)
    ]
    figures = by_family(judged, overlap_probabilities(judged, STATISTICS))
    assert figures["esci"]["spearman"] == pytest.approx(1)


def test_the_temperature_undoes_overconfidence() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4000, 5)) * 1.5
    truth = np.array([rng.choice(5, p=row) for row in probabilities_of(logits, 1.0)])
    judged = [Judged(str(place), "t", int(grade), "esci_us_150q", 2) for place, grade in enumerate(truth)]
    assert calibrated_temperature(judged, logits * 3) == pytest.approx(3, rel=0.1)

"""The figures of the model card."""

from __future__ import annotations

import numpy as np
import pytest

from models.training.data import Judged
from models.training.demo.report import as_markdown, with_intervals


def test_no_interval_of_the_card_leaves_the_range_of_its_metric() -> None:
    """Twelve queries, of which the model orders all but two as people do."""
    rows = [
        Judged(f"lamp {query}", f"title {grade}", grade, "esci_us_150q", 0)
        for query in range(12)
        for grade in (0, 4)
    ]
    right = [np.eye(5)[row.grade if number >= 4 else 4 - row.grade] for number, row in enumerate(rows)]
    figures = with_intervals(rows, np.array(right))
    assert figures["accuracy"]["value"] == pytest.approx(20 / 24)
    assert figures["accuracy"]["high"] != figures["accuracy"]["high"]
    bar = {"spearman": 0.5, "ndcg10": 0.5}
    table = as_markdown({"model": {"esci": figures}, "word_overlap": {"esci": bar}})
    assert "| 0.833 (no interval) |" in table

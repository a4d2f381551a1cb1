"""Files for distillations."""

from pathlib import Path

import pytest

from tests.checkpoints import random_pairs
from tests.prompt import write_labelled


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Pairs without grades, four titles a query."""
    rows = [f"{query} {number // 4}\t{title}" for number, (query, title) in enumerate(random_pairs(200))]
    file = tmp_path / "pairs.tsv"
    file.write_text("query\ttitle\n" + "\n".join(rows) + "\n")
    return file


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """Two titles for each of 20 other queries, one of which is right."""
    rows = [(f"lamp {i}", title, grade) for i in range(20) for title, grade in (("a lamp", 4), ("wood", 0))]
    return write_labelled(tmp_path / "judged.csv", rows)

"""`headroom.study`, from a frame."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from headroom import Classifier, ModelError, StudyResult, study
from tests.prompt import run as run

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.more]

WORDS = "lamp usb cable red blue steel kitchen towel screw deck laptop case".split()


def judged(prefix: str) -> pd.DataFrame:
    """480 pairs of 120 queries with grades at random: nothing is shown, and everything is computed."""
    rng = np.random.default_rng(0)
    rows = [
        (f"{prefix} {WORDS[number % 12]} {number}", " ".join(rng.choice(WORDS, 4)), grade)
        for number in range(120)
        for grade in rng.permutation(5)[:4].tolist()
    ]
    return pd.DataFrame(rows, columns=["query", "title", "grade"])


@pytest.fixture(scope="module")
def single(one_label: Classifier) -> StudyResult:
    return study.single(one_label, judged("a"), quick=True)


def test_a_table_has_a_row_per_head_with_its_change_and_interval(single: StudyResult) -> None:
    table = single.to_frame()
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    assert list(zip(table["layer"], table["head"], strict=True)) == heads
    assert (table["interval_ndcg10_low"] <= table["delta_ndcg10"]).all()
    assert (table["delta_ndcg10"] <= table["interval_ndcg10_high"]).all()
    assert "delta_qwk" not in table  # a model with one score has no grades
    assert single.kind == "single"
    assert single.mask is None


def test_wrong_input_is_refused_in_a_sentence(one_label: Classifier) -> None:
    with pytest.raises(ModelError, match="what: 'tails' is none of heads, units, layers"):
        study.search(one_label, judged("a"), what=("tails",))


@pytest.mark.parametrize(
    ("kind", "options", "valid"),
    [
        ("single", {"margn": 0.05}, "query, title, grade, seed, quick, out, margin, part$"),
        ("initialisation", {"margin": 0.05}, "quick, out, seeds, steps$"),
        ("search", {"recover": 5}, "margin, holdout, what, speedup$"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_with_the_valid_ones(
    one_label: Classifier, kind: str, options: dict[str, Any], valid: str
) -> None:
    name = next(iter(options))
    with pytest.raises(TypeError, match=rf"study.{kind}\(\) takes no option '{name}'; it takes .*{valid}"):
        getattr(study, kind)(one_label, judged("a"), **options)

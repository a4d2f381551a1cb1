"""Measures how far a number format moves the shipped model's scores from float32, on labelled pairs."""

from __future__ import annotations

from pathlib import Path

from models.classifier import Classifier
from models.quality.agreement import agreement
from models.quality.labelled import read_labelled

DATA = Path(__file__).parents[1] / "data" / "sample" / "test.jsonl.gz"


def measure(dtype: str = "bfloat16", path: Path | None = None, limit: int | None = None) -> dict[str, float]:
    """Compare the scores of the labelled sample in `dtype` with those in float32.

    path: a checkpoint, None for the shipped one. limit: number of pairs, None for all.
    Returns max_probability_difference, grades_changed (share), and qwk and ndcg10 of each format.
    """
    exact, ours = (Classifier.load(path, device="cpu", dtype=name) for name in ("float32", dtype))
    labelled = read_labelled(DATA, grades=len(exact.grades))[:limit]
    pairs = [(pair.query, pair.title) for pair in labelled]
    compared = agreement(exact.score(pairs), ours.score(pairs), labelled)
    result = {
        "pairs": float(compared.pairs),
        "max_probability_difference": compared.largest_probability_difference,
        "grades_changed": 1 - compared.same_grade,
    }
    for name, metrics in (("float32", compared.before), (dtype, compared.after)):
        result |= {f"qwk_{name}": metrics["qwk"], f"ndcg10_{name}": metrics["ndcg10"]}
    return result

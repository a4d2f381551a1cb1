"""The figures of a finished model: its temperature, and its metrics beside word overlap."""

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from models.training.data import TEST_FOLDS, VALIDATION_FOLDS, Judged, read_judged
from models.training.demo.mixture import Sources
from models.training.demo.titles import overlap_probabilities
from models.training.evaluate import (
    Floats,
    by_family,
    calibrated_temperature,
    crossed,
    logits_of,
    probabilities_of,
)
from models.training.network import Model


def final_metrics(model: Model, tokenizer: Tokenizer, sources: Sources, data: Path) -> dict[str, Any]:
    """Return the temperature from the validation folds, and metrics of model and baseline on both splits.

    "test" and "validation" are the product pairs' figures; "..._by_source" holds every source's.
    """
    result: dict[str, Any] = {}
    for name, folds in (("validation", VALIDATION_FOLDS), ("test", TEST_FOLDS)):
        rows = read_judged(data, folds)
        logits = logits_of(model, tokenizer, [(row.query, row.title) for row in rows])
        if name == "validation":
            result["temperature"] = temperature_of(model, tokenizer, rows, logits)
        by_source = by_family(rows, probabilities_of(logits, result["temperature"]))
        result[name] = by_source["products"]
        result[f"{name}_by_source"] = by_source
        result[f"{name}_word_overlap"] = by_family(
            rows, overlap_probabilities(rows, sources.shelf.statistics)
        )
    return result


def temperature_of(model: Model, tokenizer: Tokenizer, judged: list[Judged], logits: Floats) -> float:
    """Return the temperature that fits judged pairs and as heavy a set of other queries' titles.

    logits: those of the judged pairs.
    """
    others = crossed(judged)
    more = logits_of(model, tokenizer, [(row.query, row.title) for row in others])
    return calibrated_temperature([*judged, *others], np.concatenate([logits, more]))

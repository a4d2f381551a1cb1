"""Prints the figures of a finished checkpoint for the model card.

    python -m models.training.demo.report --model models/default --data ../shared/data --folds test \\
        --plot curve.png
    python -m models.training.demo.report --model models/default --query "angle bracket" "12-Gauge Angle"
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import transformers
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from models.numbers import fixed
from models.quality.calibration import Curve, floor
from models.quality.evaluation import Evaluation, as_json, intervals
from models.quality.lexical import words_of
from models.training.data import (
    REPORTED_FOLDS,
    Judged,
    read_judged,
    read_products,
    read_text,
    source_groups,
)
from models.training.demo.dictionary import read_dictionary
from models.training.demo.reliability import curves, plot
from models.training.demo.titles import overlap_probabilities, title_statistics
from models.training.evaluate import (
    Floats,
    by_family,
    logits_of,
    measured,
    probabilities_of,
)


def predict(directory: Path, pairs: Sequence[tuple[str, str]]) -> Floats:
    """Return calibrated probabilities, (pairs, grades), computed by transformers in float32."""
    model = BertForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    temperature: float = model.config.headroom["temperature"]
    return probabilities_of(logits_of(model, tokenizer, pairs, bf16=False), temperature)


def report(directory: Path, data: Path, folds: str) -> tuple[dict[str, Any], dict[str, Curve]]:
    """Return metrics by source family, each with its interval, and by title length; the calibration curves.

    The ranking metrics of the lexical baseline and of a random order are included.
    """
    rows = read_judged(data, REPORTED_FOLDS[folds])
    probabilities = predict(directory, [(row.query, row.title) for row in rows])
    dictionary = read_dictionary(read_text(data)["oewn_text"])
    statistics = title_statistics(read_products(data), dictionary.nouns())
    figures = {
        "model": {
            name: with_intervals([rows[place] for place in places], probabilities[places])
            for name, places in source_groups(rows).items()
        },
        "word_overlap": by_family(rows, overlap_probabilities(rows, statistics)),
        "by_title_words": _by_length(rows, probabilities),
        "predicted": np.bincount(probabilities.argmax(axis=1), minlength=probabilities.shape[1]).tolist(),
    }
    return figures, curves(rows, probabilities)


def with_intervals(rows: Sequence[Judged], probabilities: Floats) -> dict[str, Any]:
    """Return the metrics of some pairs; an interval that leaves its metric's range has nan for its ends."""
    evaluation = Evaluation([row.query for row in rows], [row.grade for row in rows], probabilities)
    return {
        "pairs": len(rows),
        "queries": evaluation.queries,
        "ndcg10_random_order": evaluation.random_order_ndcg10(),
        "floor": floor(probabilities),
        **as_json(intervals(evaluation, resamples=1000)),
    }


def _by_length(rows: Sequence[Judged], probabilities: Floats) -> dict[str, dict[str, float]]:
    """Return accuracy and Spearman of the product pairs, by how many words the title has."""
    lengths = np.array([len(words_of(row.title)) for row in rows])
    product = np.array([row.source.startswith(("esci", "chorus")) for row in rows])
    result = {}
    for low, high in ((1, 6), (7, 12), (13, 20), (21, 200)):
        places = np.flatnonzero(product & (lengths >= low) & (lengths <= high))
        if len(places):
            metrics = measured([rows[int(place)] for place in places], probabilities[places])
            result[f"{low}-{high}"] = {
                "pairs": metrics["pairs"],
                "accuracy": metrics["accuracy"],
                "spearman": metrics["spearman"],
            }
    return result


def as_markdown(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the report's first table: one row per source family, 95 % intervals in brackets."""
    lines = [
        "| source | pairs / queries | accuracy | macro-F1 | QWK | Spearman | by word overlap "
        "| NDCG@10 | by word overlap; in random order | ECE; of a perfect model "
        "| class-wise ECE; of a perfect model |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for family, ours in figures["model"].items():
        bar = figures["word_overlap"][family]
        cells = (
            family,
            f"{ours['pairs']:,} / {ours['queries']}",
            *(_cell(ours[metric]) for metric in ("accuracy", "macro_f1", "qwk", "spearman")),
            fixed(bar["spearman"]),
            _cell(ours["ndcg10"]),
            f"{fixed(bar['ndcg10'])}; {fixed(ours['ndcg10_random_order'])}",
            *(f"{_cell(ours[name])}; {fixed(ours['floor'][name])}" for name in ("ece", "classwise_ece")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(metric: Mapping[str, float]) -> str:
    value, low, high = (fixed(metric[key]) for key in ("value", "low", "high"))
    return f"{value} (no interval)" if math.isnan(metric["low"]) else f"{value} ({low}–{high})"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.demo.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--data", type=Path, help="the data directory: metrics on its judged pairs")
    parser.add_argument("--folds", choices=sorted(REPORTED_FOLDS), default="validation")
    parser.add_argument("--plot", type=Path, help="draw the calibration curves here (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--query", nargs="+", metavar=("QUERY", "TITLE"), help="score these titles instead")
    options = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    if options.query:
        query, *titles = options.query
        probabilities = predict(options.model, [(query, title) for title in titles])
        for title, row in zip(titles, probabilities, strict=True):
            shares = " ".join(f"{share:.2f}" for share in row)
            print(f"{row @ np.arange(len(row)):.2f}  [{shares}]  {query} | {title}")
        return
    if not options.data:
        parser.error("give --data for metrics, or --query with titles")
    figures, found = report(options.model, options.data, options.folds)
    if options.plot:
        plot(found, options.plot)
    if options.json:
        print(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode())
    else:
        print(as_markdown(figures))
        print(f"\npredicted grades: {figures['predicted']}", file=sys.stderr)


if __name__ == "__main__":
    main()

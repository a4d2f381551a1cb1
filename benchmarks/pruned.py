"""Measures the shipped masks in every number format: speed beside the intact model, loss on other queries."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.int8 import DTYPES, INT8, SAMPLE, formats
from benchmarks.measure import Ratio, alternate, machine, ratio
from models import Classifier, HeadMask
from models.checkpoint.hub import DEFAULT
from models.compress.quantize import quantize
from models.device import one_thread
from models.quality.evaluation import Evaluation
from models.quality.labelled import read_labelled, read_pairs
from models.study.base import Judged
from models.study.search.noninferiority import compare
from models.study.statistics import Resamples

PAIRS = 256
INTACT, PROVEN, TARGET = "intact", "fast", 2.2
MARGIN, LEVEL, RESAMPLES = 0.02, 0.025, 2000


def measure(rounds: int, limit: int | None = None) -> dict[str, Any]:
    """Measure the stored masks, text to scores, on one thread, in turns with the intact model.

    limit: number of pairs to calibrate and to judge; None: 512, and all.
    """
    sample = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:limit]
    judged = Judged.of(sample, "data/sample/test.jsonl.gz")
    shipped, rows = Classifier.load(DEFAULT, "cpu", "float32"), []
    with TemporaryDirectory() as directory:
        int8 = Path(directory) / "int8"
        known = read_pairs(SAMPLE / "calibration.jsonl.gz")[: limit or 512]
        quantize(DEFAULT, int8, shipped.tokenizer.encode(known))
        for name, path, dtype in _formats(int8):
            clf = Classifier.load(path, "cpu", dtype)
            rows += _rows(name, clf, shipped.stored_masks, judged, rounds)
    return {"machine": machine(), "rounds": rounds, "queries": len(judged.queries), "rows": rows}


def _formats(int8: Path) -> list[tuple[str, Path, str]]:
    floats = [(name, DEFAULT, str(DTYPES[name]).removeprefix("torch.")) for name in formats()]
    return [*floats, (INT8, int8, "auto")]


def _losses(clf: Classifier, masks: dict[str, HeadMask], judged: Judged) -> dict[str, dict[str, Any]]:
    """Return the loss of each mask with its one-sided bound, against the intact model in the same format."""

    def evaluation(mask: HeadMask | None) -> Evaluation:
        scores = clf.score(judged.pairs, mask)
        queries = [query for query, _ in judged.pairs]
        return Evaluation(queries, judged.grade.tolist(), scores.probabilities)

    resamples = Resamples(judged, RESAMPLES, seed=0)
    whole, queries = resamples.draws(evaluation(None)), len(judged.queries)
    found = {}
    for name, mask in masks.items():
        losses = compare(
            resamples, whole, evaluation(mask), margin=MARGIN, alpha=LEVEL, queries=queries
        )  # fmt: skip
        found[name] = {metric: {"delta": loss.delta, "bound": loss.bound} for metric, loss in losses.items()}
    return found


def _rows(
    name: str, clf: Classifier, masks: dict[str, HeadMask], judged: Judged, rounds: int
) -> list[dict[str, Any]]:
    def run(mask: HeadMask | None) -> Callable[[], object]:
        return lambda: clf.score(judged.pairs[:PAIRS], mask)

    sides = {INTACT: run(None)} | {mask: run(masks[mask]) for mask in masks}
    losses = _losses(clf, masks, judged)
    with one_thread():
        for side in sides.values():
            side()  # what is off is cut out when a mask is used a second time
        seconds = alternate(sides, rounds)
    return [
        {
            "format": name,
            "mask": mask,
            "pairs_per_second": len(judged.pairs[:PAIRS]) / statistics.median(seconds[mask]),
            "over_intact": asdict(ratio(seconds, mask, INTACT)),
            "loss": losses.get(mask),
        }
        for mask in sides
    ]


def as_markdown(result: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        f"{result['machine']}; text to scores of {PAIRS} pairs on one thread, {result['rounds']} turns. "
        f"Losses are against the intact model in the same format, on {result['queries']} held-out queries, "
        "with one-sided 97.5 % lower bounds if enough of these have titles of different grades.",
        "",
        "| mask | format | pairs/s | × intact | QWK | NDCG@10 |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        loss = row["loss"] or {}
        cells = " | ".join(_loss(loss[metric]) if loss else "" for metric in ("qwk", "ndcg10"))
        lines.append(
            f"| {row['mask']} | {row['format']} | {row['pairs_per_second']:.0f} "
            f"| {Ratio(**row['over_intact'])} | {cells} |"
        )
    return "\n".join(lines)


def _loss(loss: dict[str, Any]) -> str:
    bound = f"≥ {loss['bound']:+.3f}" if math.isfinite(loss["bound"]) else "too few queries"
    return f"{loss['delta']:+.3f} ({bound})"


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that this run misses."""
    lines = []
    for row in result["rows"]:
        where = f"`{row['mask']}` in {row['format']}"
        if row["mask"] == PROVEN and row["over_intact"]["median"] < TARGET:
            lines.append(
                f"{where} is {row['over_intact']['median']:.2f} × the intact model, target {TARGET} ×"
            )
        if row["mask"] == PROVEN:
            lines += [
                f"{where}: {metric} may fall by {-loss['bound']:.3f}, margin {MARGIN}"
                for metric, loss in row["loss"].items()
                if -math.inf < loss["bound"] <= -MARGIN
            ]
    return lines

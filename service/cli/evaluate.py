"""`headroom evaluate`: how good a model's grades are on labelled pairs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from models import Classifier, HeadMask
    from models.quality.evaluation import Evaluation, Interval
    from models.quality.labelled import LabelledPair

CHUNK = 4096
"""Pairs between two reports of progress."""


def command(
    data: Annotated[
        Path, typer.Option(help="Labelled pairs: csv, tsv, jsonl or parquet of query,title,grade.")
    ],
    model: Annotated[str | None, typer.Option(help="Checkpoint directory or hub id.")] = None,
    mask: Annotated[
        str | None, typer.Option(help="Evaluate under this head mask, and beside no mask.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=100, max=100_000, help="Bootstrap resamples.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Accuracy, macro-F1, quadratic weighted kappa, Spearman, NDCG@10 and calibration error of the grades.

    Each with its 95 % interval by cluster bootstrap over queries; with --mask, the change is paired.

    Example: headroom evaluate --data data/sample/test.jsonl.gz --mask @pruned60
    """
    from models import HeadMask, ModelError
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from models.device import check_device_name, check_dtype_name
    from models.quality.labelled import read_labelled

    check_device_name(device)
    check_dtype_name(dtype)
    directory = locate(model)
    own = read_config(directory)
    if not own.is_graded:
        raise ModelError(f"{directory} gives one score and no grades; evaluate needs a graded classifier")
    head_mask = None
    if mask is not None:
        stored = read_stored_masks(directory, own)
        head_mask = HeadMask.parse(mask, layers=own.num_layers, heads=own.num_heads, stored=stored)
    pairs = read_labelled(data, grades=len(own.labels))

    import orjson

    from models import Classifier  # torch, after all that can be wrong without it
    from models.quality.evaluation import as_json as plain
    from models.quality.evaluation import differences, intervals, within_range

    clf = Classifier.load(model, device, dtype)
    whole = evaluate(clf, pairs, None)
    columns = {"none": within_range(intervals(whole, resamples=resamples, seed=seed))}
    if head_mask is not None:
        masked = evaluate(clf, pairs, head_mask)
        columns[head_mask.spec] = within_range(intervals(masked, resamples=resamples, seed=seed))
        change = differences(whole, masked, resamples=resamples, seed=seed)
        columns["change"] = within_range(change, change=True)
    if as_json:
        report = {
            "schema": 1,
            "model": clf.name,
            "data": str(data),
            "pairs": len(pairs),
            "queries": whole.queries,
            "ndcg10_random_order": whole.random_order_ndcg10(),
            "head_masks": {spec: plain(metrics) for spec, metrics in columns.items()},
        }
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{clf.name} on {data}: {len(pairs)} pairs, {whole.queries} queries")
        print(table(columns))
        if any(found.low != found.low for metrics in columns.values() for found in metrics.values()):
            print(f"no interval: {whole.queries} queries are too few for one that stays within the possible")
        print(f"a random order has NDCG@10 {whole.random_order_ndcg10():.3f}")


def evaluate(clf: Classifier, pairs: list[LabelledPair], mask: HeadMask | None) -> Evaluation:
    """The model's grades of the pairs beside the labels, with progress on standard error."""
    import numpy as np

    from models.quality.evaluation import Evaluation

    parts = []
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        parts.append(clf.score([(pair.query, pair.title) for pair in chunk], mask).probabilities)
        if len(pairs) > CHUNK:
            done = min(start + CHUNK, len(pairs))
            print(f"\r{done} of {len(pairs)} pairs", end="", file=sys.stderr, flush=True)
    if len(pairs) > CHUNK:
        print(file=sys.stderr)
    return Evaluation([pair.query for pair in pairs], [pair.grade for pair in pairs], np.concatenate(parts))


def table(columns: dict[str, dict[str, Interval]]) -> str:
    """A line per metric, a column per mask: value and interval."""
    cells = [["", *columns]]
    for name in next(iter(columns.values())):
        row = [name]
        for heading, metrics in columns.items():
            sign = "+" if heading == "change" else ""
            found = metrics[name]
            interval = f"({found.low:{sign}.3f} to {found.high:{sign}.3f})"
            row.append(f"{found.value:{sign}.3f} {interval if found.low == found.low else '(no interval)'}")
        cells.append(row)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )

"""`headroom evaluate` measures a model's grades on labelled pairs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import evaluate_variant
from service.cli.options import AsJson, Data, Device, Dtype, Model
from service.cli.terminal import progress, table

if TYPE_CHECKING:
    from models import Classifier, HeadMask
    from models.quality.evaluation import Evaluation, Interval
    from models.quality.labelled import LabelledPair

CHUNK = 4096
"""Number of pairs scored between two updates of the progress bar."""


def command(
    data: Data,
    model: Model = None,
    mask: Annotated[str | None, typer.Option(help="Head mask to compare with the unmasked model.")] = None,
    variant: evaluate_variant.Variant = None,
    config: evaluate_variant.Config = None,
    resamples: Annotated[int, typer.Option(min=100, max=100_000, help="Bootstrap resamples.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how well a model's grades agree with labelled pairs.

    Prints accuracy, macro-F1, quadratic weighted kappa, Spearman correlation, NDCG@10 and calibration
    error, each with a 95 % interval (bootstrap over queries). With --mask, also prints how the mask
    changes each metric.

    Example: headroom evaluate --data data/sample/test.jsonl.gz --mask @pruned60
    """
    if variant is not None:
        if mask is not None:
            raise typer.BadParameter("a variant has its own mask; leave one of them out", param_hint="--mask")
        evaluate_variant.run(
            data,
            model,
            config,
            variant,
            device=device,
            dtype=dtype,
            resamples=resamples,
            seed=seed,
            as_json=as_json,
        )
        return
    pairs, head_mask = check(data, model, mask, device, dtype)

    import orjson

    from models import Classifier  # imports torch, so it comes after the checks that do not need it

    clf = Classifier.load(model, device, dtype)
    unmasked = evaluate(clf, pairs, None)
    masked = None if head_mask is None else (head_mask.spec, evaluate(clf, pairs, head_mask))
    columns = measure(unmasked, masked, resamples=resamples, seed=seed)
    if as_json:
        document = as_document(clf.name, data, unmasked, columns)
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(text(clf.name, data, unmasked, columns))


def check(
    data: Path, model: str | None, mask: str | None, device: str, dtype: str
) -> tuple[list[LabelledPair], HeadMask | None]:
    """Return the pairs and the mask. Refuse wrong arguments before torch is imported, which takes seconds."""
    from models import HeadMask, ModelError
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from models.device import check_device_name, check_dtype_name
    from models.quality.labelled import read_labelled

    check_device_name(device)
    check_dtype_name(dtype)
    directory = locate(model)
    config = read_config(directory)
    if not config.is_graded:
        raise ModelError(f"{directory} gives one score and no grades; evaluate needs a graded classifier")
    head_mask = None
    if mask is not None:
        stored = read_stored_masks(directory, config)
        shape = {"layers": config.num_layers, "heads": config.num_heads}
        head_mask = HeadMask.parse(mask, **shape, stored=stored)
    return read_labelled(data, grades=len(config.labels)), head_mask


def evaluate(clf: Classifier, pairs: list[LabelledPair], mask: HeadMask | None) -> Evaluation:
    """Return the model's grades of the pairs beside their labels; show progress on standard error."""
    import numpy as np

    from models.quality.evaluation import Evaluation

    parts = []
    with progress("{task.completed} of {task.total} pairs", len(pairs)) as advance:
        for start in range(0, len(pairs), CHUNK):
            chunk = pairs[start : start + CHUNK]
            parts.append(clf.score([(pair.query, pair.title) for pair in chunk], mask).probabilities)
            advance(start + len(chunk))
    return Evaluation([pair.query for pair in pairs], [pair.grade for pair in pairs], np.concatenate(parts))


def measure(
    unmasked: Evaluation, masked: tuple[str, Evaluation] | None, *, resamples: int, seed: int
) -> dict[str, dict[str, Interval]]:
    """Return the metrics without a mask and, if there is one, with it, and how it changes them.

    masked: the mask and the evaluation under it.
    """
    from models.quality.evaluation import differences, intervals, within_range

    columns = {"none": within_range(intervals(unmasked, resamples=resamples, seed=seed))}
    if masked is not None:
        spec, evaluation = masked
        columns[spec] = within_range(intervals(evaluation, resamples=resamples, seed=seed))
        change = differences(unmasked, evaluation, resamples=resamples, seed=seed)
        columns["change"] = within_range(change, change=True)
    return columns


def as_document(
    name: str, data: Path, unmasked: Evaluation, columns: dict[str, dict[str, Interval]]
) -> dict[str, Any]:
    """Return the metrics by mask as plain values."""
    from models.quality.evaluation import as_json

    return {
        "schema": 1,
        "model": name,
        "data": str(data),
        "pairs": len(unmasked.truth),
        "queries": unmasked.queries,
        "ndcg10_random_order": unmasked.random_order_ndcg10(),
        "head_masks": {spec: as_json(metrics) for spec, metrics in columns.items()},
    }


def text(name: str, data: Path, unmasked: Evaluation, columns: dict[str, dict[str, Interval]]) -> str:
    """Return the metrics by mask as text for people."""
    lines = [
        f"{name} on {data}: {len(unmasked.truth)} pairs, {unmasked.queries} queries",
        table(metric_rows(columns)),
    ]
    if any(math.isnan(metric.low) for metrics in columns.values() for metric in metrics.values()):
        lines.append(f"no interval: {unmasked.queries} queries are too few to give one in the metric's range")
    lines.append(f"a random order has NDCG@10 {unmasked.random_order_ndcg10():.3f}")
    return "\n".join(lines)


def metric_rows(columns: dict[str, dict[str, Interval]]) -> list[list[str]]:
    """Return one row per metric and one column per mask, each with a value and its interval."""
    rows = [["", *columns]]
    for name in next(iter(columns.values())):
        row = [name]
        for heading, metrics in columns.items():
            sign = "+" if heading == "change" else ""
            metric = metrics[name]
            interval = f"({metric.low:{sign}.3f} to {metric.high:{sign}.3f})"
            row.append(f"{metric.value:{sign}.3f} {'(no interval)' if math.isnan(metric.low) else interval}")
        rows.append(row)
    return rows

"""`headroom evaluate --variant` measures a variant of the config file, also a cascade, on labelled pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.terminal import progress, table

if TYPE_CHECKING:
    from models.quality.evaluation import Evaluation, Interval
    from models.quality.labelled import LabelledPair
    from service.scoring.catalog import Choice

Variant = Annotated[
    str | None,
    typer.Option(
        help="Variant of the config file to measure, beside its model without a mask; a cascade beside its "
        "last stage alone, its titles ranked by the cascade's scores."
    ),
]
Config = Annotated[Path | None, typer.Option(help="Config file that declares variants, with --variant.")]


def run(
    data: Path,
    model: str | None,
    config: Path | None,
    variant: str,
    *,
    device: str,
    dtype: str,
    resamples: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a variant beside what it is to replace, and print both with their difference."""
    import orjson

    from models import ModelError
    from models.quality.evaluation import differences, intervals, within_range
    from models.quality.labelled import read_labelled
    from service.cli.score import resolve

    choice = resolve(model, config, variant, None, device, dtype)
    classifier = choice.variant.classifier
    if not classifier.grades:
        raise ModelError(
            f"{classifier.name} gives one score and no grades; evaluate needs a graded classifier"
        )
    pairs = read_labelled(data, grades=len(classifier.grades))
    name, base = baseline(choice)
    before, _ = evaluate(base, pairs)
    after, stages = evaluate(choice, pairs)
    draws = {"resamples": resamples, "seed": seed}
    columns = {
        name: within_range(intervals(before, **draws)),
        variant: within_range(intervals(after, **draws)),
        "change": within_range(differences(before, after, **draws), change=True),
    }
    if as_json:
        document = as_document(classifier.name, data, before, columns, stages)
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    print(f"{classifier.name} on {data}: {len(pairs)} pairs, {before.queries} queries")
    print(table(rows(columns)))
    for stage, count in stages.items():
        print(f"stage {stage}: the last one of {count} pairs")
    print(f"a random order has NDCG@10 {before.random_order_ndcg10():.3f}")


def baseline(choice: Choice) -> tuple[str, Choice]:
    """Return what a variant is measured beside, and its name: a cascade's last stage, else all heads on."""
    from dataclasses import replace

    if choice.stages:
        return choice.stages[-1].variant.name, choice.stages[-1]
    return "none", replace(choice, mask=choice.variant.classifier.all_heads)


def evaluate(choice: Choice, pairs: list[LabelledPair]) -> tuple[Evaluation, dict[str, int]]:
    """Return the variant's grades beside the labels, and of a cascade how many pairs ended at each stage.

    Titles are ranked by the variant's scores. Shows progress on standard error.
    """
    from models.quality.evaluation import Evaluation
    from service.scoring.offline import score

    done = 0
    with progress("{task.completed} of {task.total} pairs", len(pairs)) as show:

        def advance(count: int) -> None:
            nonlocal done
            done = min(len(pairs), done + count)
            show(done)

        found = score(choice, [(pair.query, pair.title) for pair in pairs], advance=advance)
    highest = len(choice.variant.classifier.grades) - 1
    evaluation = Evaluation(
        [pair.query for pair in pairs],
        [pair.grade for pair in pairs],
        found.scores.probabilities,
        found.scores.score.astype(float) * highest if found.stages is not None else None,
    )
    ended = Counter(found.stages or ())
    return evaluation, {stage.variant.name: ended[stage.variant.name] for stage in choice.stages}


def as_document(
    name: str, data: Path, before: Evaluation, columns: dict[str, dict[str, Interval]], stages: dict[str, int]
) -> dict[str, Any]:
    """Return the results as plain values. `stages`: how many pairs each stage of a cascade scored last."""
    from models.quality.evaluation import as_json

    return {
        "schema": 1,
        "model": name,
        "data": str(data),
        "pairs": len(before.truth),
        "queries": before.queries,
        "ndcg10_random_order": before.random_order_ndcg10(),
        "variants": {column: as_json(metrics) for column, metrics in columns.items()},
        "stages": stages or None,
    }


def rows(columns: dict[str, dict[str, Interval]]) -> list[list[str]]:
    """Return one row per metric and one column per variant, each with a value and its interval."""
    found = [["", *columns]]
    for name in columns["change"]:
        row = [name]
        for heading, metrics in columns.items():
            sign, metric = "+" if heading == "change" else "", metrics[name]
            has_interval = metric.low == metric.low
            interval = (
                f"({metric.low:{sign}.3f} to {metric.high:{sign}.3f})" if has_interval else "(no interval)"
            )
            row.append(f"{metric.value:{sign}.3f} {interval}")
        found.append(row)
    return found

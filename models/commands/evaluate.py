"""`headroom evaluate` measures models and head masks on labelled pairs, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from models.commands import host
from models.commands.host import Network, Sides
from models.commands.options import (
    FORMS,
    AsJson,
    Config,
    Data,
    Delimiter,
    Device,
    Dtype,
    GradeColumn,
    QueryColumn,
    TitleColumn,
    parse_mask,
)
from models.commands.terminal import scored

if TYPE_CHECKING:
    from models.quality.comparison import Comparison, Side
    from models.quality.labelled import Columns

Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<str>",
        help="Checkpoint directory or hub id (NAME@REVISION); repeat it to compare models."
        "  [default: the shipped one]",
    ),
]
Masks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<str>",
        help=f"Mask to compare with the unmasked model: {FORMS}; repeat it to compare several.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Directory for report.html, with plots, and report.json.")]
Variant = Annotated[
    str | None,
    typer.Option(
        help="Variant of the config file to measure, beside its intact model (`full`); a cascade beside its "
        "last stage alone, its titles ranked by the cascade's scores."
    ),
]

WHOLE = "full"
"""The variant with everything on, which masks are laid on."""


def command(
    data: Data,
    model: Models = None,
    mask: Masks = None,
    variant: Variant = None,
    config: Config = None,
    query_column: QueryColumn = "query",
    title_column: TitleColumn = "title",
    grade_column: GradeColumn = "grade",
    delimiter: Delimiter = ",",
    resamples: Annotated[int, typer.Option(min=100, max=100_000, help="Bootstrap resamples.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well a model's grades agree with labelled pairs.

    Prints accuracy, macro-F1, quadratic weighted kappa, NDCG@10, Spearman correlation within queries and
    over all pairs, and calibration error, each with a 95 % interval (bootstrap over queries), beside word
    overlap and BM25. Several models and masks are compared with each other, paired. With --out, also writes a
    report with each grade's calibration, confusion matrices and the worst queries.

    Example: headroom evaluate --data data/sample/test.jsonl.gz --mask @pruned30 --out runs/evaluation
    """
    refuse_idle(model, mask, variant, config)
    from models.quality.comparison import compare
    from models.quality.labelled import Columns

    columns = Columns(query_column, title_column, grade_column, delimiter)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # before the work, because it may fail
    if variant is None:
        judged = grade(data, columns, model or [None], mask or [], device, dtype)
    else:
        network = Network(model[0] if model else None, config, variant, None, device, dtype)
        judged = host.sides(network, data, columns)
    comparison = compare(named(judged.sides), judged.pairs, resamples=resamples, seed=seed)
    show(comparison, data, judged, out, as_json)


def show(comparison: Comparison, data: Path, judged: Sides, out: Path | None, as_json: bool) -> None:
    """Print the comparison, and write the reports if `out` is given."""
    import orjson

    from models.commands import evaluate_report

    document = evaluate_report.as_document(comparison, data) | {"stages": judged.stages or None}
    if as_json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(evaluate_report.as_text(comparison, data))
        for stage, count in judged.stages.items():
            print(f"{count} {'pair' if count == 1 else 'pairs'} ended at stage {stage}")
    if out is not None:
        evaluate_report.write(out, comparison, document, judged.labels)
        if not as_json:
            print(out / "report.html")


def refuse_idle(
    model: list[str] | None, mask: list[str] | None, variant: str | None, config: Path | None
) -> None:
    """Refuse options that would do nothing, or that exclude each other."""
    if variant is None and config is not None:
        raise typer.BadParameter("it needs --variant", param_hint="--config")
    if variant is not None and mask:
        raise typer.BadParameter("a variant has its own mask; leave one of them out", param_hint="--mask")
    if variant is not None and model and len(model) > 1:
        raise typer.BadParameter("a variant is of one model", param_hint="--model")
    if model and len(set(model)) < len(model):
        raise typer.BadParameter("one model is given twice", param_hint="--model")


def grade(
    data: Path, columns: Columns, paths: Sequence[str | None], values: list[str], device: str, dtype: str
) -> Sides:
    """Grade the pairs of a file by each model under each mask, laid on the variant `full`: the intact model.

    values: the masks as they were written.
    """
    from models import HeadMask, ModelError
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from models.quality.labelled import read_labelled

    labels, masks = [], []
    for path in paths:
        directory = locate(path)
        config = read_config(directory)
        if not config.is_graded:
            raise ModelError(f"{directory} gives one score and no grades; evaluate needs a graded classifier")
        labels.append(config.labels)
        stored = read_stored_masks(directory, config)
        parsed = {value: parse_mask(value, config, stored) for value in values}
        masks.append({"none": HeadMask.none(config.num_layers, config.num_heads)} | parsed)
    grades = {*map(len, labels)}
    if len(grades) > 1:
        raise ModelError(
            f"the models have {' and '.join(map(str, sorted(grades)))} grades; they must have as many"
        )
    pairs = read_labelled(data, grades=grades.pop(), labels=labels[0], columns=columns)
    texts = [(pair.query, pair.title) for pair in pairs]

    from models import Classifier  # imports torch, so it comes after the checks that do not need it
    from models.quality.comparison import Side
    from models.quality.evaluation import evaluation_of

    sides: list[Side] = []
    for path, of_model in zip(paths, masks, strict=True):
        clf = Classifier.load(path, device, dtype)
        name = str(path) if clf.name in {side.model for side in sides} else clf.name
        for value, mask in of_model.items():
            scores = scored(clf, texts, None if mask.is_none else mask)
            evaluation = evaluation_of(pairs, scores.probabilities, scores.raw_score)
            shown = WHOLE if value == "none" else f"{WHOLE} {value}"
            sides.append(Side(shown, name, WHOLE, mask.spec, evaluation))
    return Sides(sides, pairs, labels[0], {})


def named(sides: list[Side]) -> list[Side]:
    """Return the sides; if there are several models, each is named in place of its variant."""
    if len({side.model for side in sides}) == 1:
        return sides
    return [replace(side, name=side.model + side.name.removeprefix(side.variant)) for side in sides]

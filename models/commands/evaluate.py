"""`headroom evaluate` measures models and head masks on labelled pairs, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from models.commands.host import Network, host
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
    from models import HeadMask
    from models.quality.comparison import Comparison, Side
    from models.quality.labelled import Columns, LabelledPair

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
    overlap and BM25. Several models and masks are compared with each other, paired. With --out, also writes
    calibration curves, confusion matrices and the worst queries.

    Example: headroom evaluate --data data/sample/test.jsonl.gz --mask @pruned30 --out runs/evaluation
    """
    from models.quality.labelled import Columns

    refuse_idle(model, mask, variant, config)
    columns = Columns(query_column, title_column, grade_column, delimiter)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # before the work, because it may fail
    stages: dict[str, int] = {}
    if variant is None:
        paths = [*(model or (None,))]
        pairs, masks, labels = check(data, columns, paths, mask or [])
        sides: list[Side] = []
        for path, masks_of_model in zip(paths, masks, strict=True):
            sides_of_model = score(path, pairs, masks_of_model, device, dtype)
            if sides_of_model[0].model in {side.model for side in sides}:
                sides_of_model = [replace(side, model=str(path)) for side in sides_of_model]
            sides += sides_of_model
    else:
        network = Network(model[0] if model else None, config, variant, None, device, dtype)
        judged = host.sides(network, data, columns)
        sides, pairs, labels, stages = judged.sides, judged.pairs, judged.labels, judged.stages

    from models.quality.comparison import compare

    comparison = compare(named(sides), pairs, resamples=resamples, seed=seed)
    show(comparison, data, labels, stages, out, as_json)


def show(
    comparison: Comparison,
    data: Path,
    labels: tuple[str, ...],
    stages: dict[str, int],
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the comparison, and write the reports if `out` is given."""
    import orjson

    from models.commands.evaluation_text import as_document, as_text

    document = as_document(comparison, data) | {"stages": stages or None}
    if as_json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(as_text(comparison, data))
        for stage, count in stages.items():
            print(f"{count} {'pair' if count == 1 else 'pairs'} ended at stage {stage}")
    if out is not None:
        from models.commands import evaluate_report

        evaluate_report.write(out, comparison, document, labels)
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


def check(
    data: Path,
    columns: Columns,
    models: Sequence[str | None],
    values: list[str],
) -> tuple[list[LabelledPair], list[dict[str, HeadMask]], tuple[str, ...]]:
    """Return the pairs, each model's masks as they were written, `none` first, and the first one's labels.

    Refuse wrong arguments before torch is imported, which takes seconds.
    """
    from models import HeadMask, ModelError
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from models.quality.labelled import read_labelled

    if len(set(models)) < len(models):
        raise typer.BadParameter("one model is given twice", param_hint="--model")
    labels, masks = [], []
    for path in models:
        directory = locate(path)
        config = read_config(directory)
        if not config.is_graded:
            raise ModelError(f"{directory} gives one score and no grades; evaluate needs a graded classifier")
        labels.append(config.labels)
        stored = read_stored_masks(directory, config)
        shape = {"layers": config.num_layers, "heads": config.num_heads}
        parsed = {value: parse_mask(value, config, stored) for value in values}
        masks.append({"none": HeadMask.none(**shape)} | parsed)
    grades = set(map(len, labels))
    if len(grades) > 1:
        raise ModelError(
            f"the models have {' and '.join(map(str, sorted(grades)))} grades; they must have as many"
        )
    pairs = read_labelled(data, grades=grades.pop(), labels=labels[0], columns=columns)
    return pairs, masks, labels[0]


def score(
    path: str | None, pairs: list[LabelledPair], masks: dict[str, HeadMask], device: str, dtype: str
) -> list[Side]:
    """Load a model and grade the pairs under each mask, laid on the variant `full`: the intact model."""
    from models import Classifier  # imports torch, so it comes after the checks that do not need it
    from models.quality.comparison import Side
    from models.quality.evaluation import evaluation_of

    clf = Classifier.load(path, device, dtype)
    texts = [(pair.query, pair.title) for pair in pairs]
    sides = []
    for name, mask in masks.items():
        scores = scored(clf, texts, None if mask.is_none else mask)
        evaluation = evaluation_of(pairs, scores.probabilities, scores.raw_score)
        shown = WHOLE if name == "none" else f"{WHOLE} {name}"
        sides.append(Side(shown, clf.name, WHOLE, mask.spec, evaluation))
    return sides


def named(sides: list[Side]) -> list[Side]:
    """Return the sides; if there are several models, each is named in place of its variant."""
    if len({side.model for side in sides}) == 1:
        return sides
    return [replace(side, name=side.model + side.name.removeprefix(side.variant)) for side in sides]

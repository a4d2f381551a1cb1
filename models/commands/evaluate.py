"""`headroom evaluate` measures models and head masks on labelled pairs, and compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headroom.models.checkpoint.config import read_config, read_stored_masks
from headroom.models.checkpoint.hub import locate
from headroom.models.commands import cut, options
from headroom.models.files import Json, check_no_file
from headroom.models.quality.labelled import Columns

if TYPE_CHECKING:
    from headroom import HeadMask
    from headroom.models.checkpoint.config import ModelConfig
    from headroom.models.quality.comparison import Side

Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<str>", help="Checkpoint or hub id; repeat it to compare.  [default: the shipped one]"
    ),
]
Masks = Annotated[
    list[str] | None,
    typer.Option(metavar="<str>", help=f"Mask to compare: {options.FORMS}; repeat it for several."),
]
Out = Annotated[Path | None, typer.Option(help="Directory for report.html and report.json.")]
Precision = Annotated[
    float | None,
    typer.Option(min=0.01, max=1.0, help="Find the lowest min_score whose results have this precision."),
]
Threshold = Annotated[float | None, typer.Option(help="Say which precision and recall this min_score has.")]
Position = Annotated[
    str | None,
    typer.Option(
        help="Column of each title's rank, from 1, in the order that you have.  [default: the rows' order]"
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        help="File with that order by query and document id: a TREC run, a snapshot of Quepid, UBI's queries."
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Classes of queries in which the model is compared with the order: words, all-words-in-a-title, "
        "script, or a column.  [default: words]"
    ),
]
Variant = Annotated[
    str | None,
    typer.Option(
        help="Variant of the config file, compared with `full`; a cascade with its last stage alone."
    ),
]


def command(
    context: typer.Context,
    data: options.Data,
    model: Models = None,
    mask: Masks = None,
    variant: Variant = None,
    config: options.Config = None,
    query_column: options.QueryColumn = "query",
    title_column: options.TitleColumn = "title",
    grade_column: options.GradeColumn = "grade",
    delimiter: options.Delimiter = ",",
    queries: options.Queries = None,
    titles: options.Titles = None,
    precision: Precision = None,
    threshold: Threshold = None,
    position: Position = None,
    order: Order = None,
    by: By = None,
    relevant: options.Relevant = None,
    margin: options.Margin = 0.02,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    label_order: options.LabelOrder = None,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how well a model agrees with labelled pairs.

    Prints NDCG@10, MRR@10, MAP, recall@10, pair accuracy, and Spearman's correlation within queries and over
    all pairs; of a model with grades also accuracy, macro-F1, quadratic weighted kappa and calibration error.
    Each has a 95 % interval (bootstrap over queries), and word overlap, BM25 and the order of the file stand
    beside; the first line says whether the model is better than that order, and where it harms. Several
    models and masks are compared with each other, paired, in the metrics that both have. With --out, also
    writes a report with the worst queries, and of grades the calibration and confusion matrices.

    With --precision or --threshold, says instead what a cut at a score keeps: the `min_score` of requests.

    Example: headroom evaluate --data data/sample/test.jsonl.gz --mask @pruned20 --out runs/evaluation

    Example: headroom evaluate --data data/sample/test.jsonl.gz --precision 0.9
    """
    models = model or []
    masks = mask or []
    _check_options(models, masks, variant, config)
    columns = Columns(query_column, title_column, grade_column, delimiter, queries, titles)
    network = options.Network(
        model=models[0] if models else None,
        config=config,
        variant=variant,
        mask=masks[0] if masks else None,
        device=device,
        dtype=dtype,
        label_order=options.label_names(label_order),
    )
    if precision is not None or threshold is not None:
        if precision is not None and threshold is not None:
            raise typer.BadParameter("give one of --precision and --threshold", param_hint="--threshold")
        reason = "--precision and --threshold do not take it"
        options.refuse_unused(context, reason, "variant", "out", "margin", "position", "order", "by")
        _check_one_side(models, masks)
        document = cut.measure(precision, threshold, network, data, columns, relevant)
        print(options.as_indented(document) if as_json else cut.as_text(document))
        return
    from headroom.models.api.evaluation import Evaluated, order_columns
    from headroom.models.quality.order import GivenOrder

    columns = order_columns(columns, position, order, by)
    if out is not None:
        check_no_file(out)
        out.mkdir(parents=True, exist_ok=True)  # before the work, because it may fail
    if variant is None:
        judged = judge(models or [None], masks, network, data, columns, relevant)
    else:
        judged = options.sides(network, data, columns, relevant)
    evaluated = Evaluated.of(
        judged.sides,
        judged.pairs,
        judged.labels,
        str(data),
        margin=margin,
        stages=judged.stages,
        given=GivenOrder.of(columns, by),
    )
    report = None if out is None else evaluated.report(out)
    if as_json:
        print(options.as_indented(evaluated.content))
        return
    print(evaluated)
    if report is not None:
        print(report)


def _check_options(
    models: Sequence[str], masks: Sequence[str], variant: str | None, config: Path | None
) -> None:
    """Raise BadParameter for options that do not go together."""
    if config is not None and variant is None:
        raise typer.BadParameter("it needs --variant", param_hint="--config")
    if variant is not None and masks:
        raise typer.BadParameter("a variant has its own mask; leave one of them out", param_hint="--mask")
    if variant is not None and len(models) > 1:
        raise typer.BadParameter("a variant is of one model", param_hint="--model")
    if len(set(models)) < len(models):
        raise typer.BadParameter("one model is given twice", param_hint="--model")


def _check_one_side(models: Sequence[str], masks: Sequence[str]) -> None:
    """Raise BadParameter if a cut is asked for of several models or masks."""
    for name, given in (("--model", models), ("--mask", masks)):
        if len(given) > 1:
            raise typer.BadParameter("--precision and --threshold do not take more than one", param_hint=name)


def judge(
    paths: Sequence[str | None],
    masks: Sequence[str],
    network: options.Network,
    data: Path,
    columns: Columns,
    relevant: int | None,
) -> options.Sides:
    """Judge each model under each mask, laid on the variant `full`: the intact model.

    masks: as they were written. network: the device, number format and order of labels of all models.
    """
    forms = {mask: options.read_form(mask) for mask in ("none", *masks)}
    orders = options.orders_of(paths, network.label_order)
    checked = [_config_and_masks(path, forms, order) for path, order in zip(paths, orders, strict=True)]
    truth, labels = options.read_truth(data, [config for config, _ in checked], columns, relevant)

    from headroom import Classifier  # imports torch, so it comes after the checks that do not need it
    from headroom.models.api.evaluation import sides_of

    sides: list[Side] = []
    for path, order, (_, of_model) in zip(paths, orders, checked, strict=True):
        clf = Classifier.load(path, network.device, network.dtype, label_order=order)
        model = str(path) if clf.name in {side.model for side in sides} else clf.name
        sides += sides_of(truth, clf, of_model, model=model, is_alone=len(paths) == 1)
    return options.Sides(sides, truth.pairs, labels, {})


def _config_and_masks(
    path: str | None, forms: Mapping[str, str | Json], order: tuple[str, ...] | None
) -> tuple[ModelConfig, dict[str, HeadMask]]:
    """Return a checkpoint's config and the masks of these forms. Raises ModelError if it cannot have them."""
    directory = locate(path)
    config = read_config(directory, order)
    stored = read_stored_masks(directory, config)
    return config, {value: config.parse_mask(form, stored) for value, form in forms.items()}

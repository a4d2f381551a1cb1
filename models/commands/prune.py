"""`headroom prune` removes heads, feed-forward units and layers: a checkpoint becomes a smaller one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.checkpoint.config import read_config, read_stored_masks
from headroom.models.checkpoint.files import check_empty
from headroom.models.checkpoint.hub import locate
from headroom.models.commands.distil import run as teach
from headroom.models.commands.options import (
    FORMS,
    SECOND,
    AsJson,
    Delimiter,
    Device,
    GradeColumn,
    LabelOrder,
    Model,
    NewDirectory,
    QueryColumn,
    Seed,
    TitleColumn,
    label_names,
    read_form,
    refuse_unused,
)
from headroom.models.quality.labelled import Columns
from headroom.models.training.distil.job import DistilOptions, StudentSize

Recover = Annotated[
    float | None,
    typer.Option(min=0.01, max=6000, help="Minutes to train the pruned model on the whole model's scores."),
]
Data = Annotated[
    Path | None, typer.Option(help="For --recover: unjudged pairs, as `headroom distil` takes them.")
]
Test = Annotated[
    Path | None,
    typer.Option(
        help=f"For --recover: judged pairs to compare on; their queries are not trained on. {SECOND}  "
        "[default, for five grades: data/sample/test.jsonl.gz]"
    ),
]


def command(
    context: typer.Context,
    out: NewDirectory,
    mask: Annotated[str, typer.Option(help=f"Mask that says what to remove: {FORMS}.")],
    model: Model = None,
    recover: Recover = None,
    data: Data = None,
    test: Test = None,
    query_column: QueryColumn = "query",
    title_column: TitleColumn = "title",
    grade_column: GradeColumn = "grade",
    delimiter: Delimiter = ",",
    seed: Seed = 0,
    device: Device = "auto",
    label_order: LabelOrder = None,
    as_json: AsJson = False,
) -> None:
    """Remove heads, units and layers for good. The new checkpoint scores like the old one with the mask. Its
    layers are numbered from 0.

    With --recover it is taught by the old one afterwards, as `headroom distil` teaches, and what that gained
    is printed. The same command goes on after Ctrl-C.

    Example: headroom prune --mask @pruned20 --out ./smaller && headroom serve --model ./smaller

    Example: headroom prune --mask 6-11.* --recover 20 --data pairs.csv --out ./smaller
    """
    check_empty(out)
    if (recover is None) != (data is None):
        raise typer.BadParameter("--recover needs --data, and only it takes that", param_hint="--recover")
    if test is None:
        refuse_unused(context, "it needs --test", "grade_column")
    if recover is not None and data is not None:
        options = DistilOptions(
            data=data,
            out=out,
            teacher=model,
            model=model,
            cut=StudentSize(mask=read_form(mask)),
            test=test,
            minutes=recover,
            seed=seed,
            device=device,
            columns=Columns(query_column, title_column, grade_column, delimiter),
            teacher_labels=label_names(label_order),
        )
        teach(options, as_json=as_json)
        return
    of_pairs = ("query_column", "title_column", "delimiter")
    refuse_unused(context, "it needs --recover", *of_pairs, "test", "seed", "device")
    _prune(model, mask, label_names(label_order), out, as_json=as_json)


def _prune(
    model: str | None, mask: str, label_order: tuple[str, ...] | None, out: Path, *, as_json: bool
) -> None:
    """Write the smaller checkpoint and print what is left of the model. mask: as it was written."""
    source = locate(model)
    config = read_config(source, label_order)
    weights = config.parse_mask(read_form(mask), read_stored_masks(source, config))
    config.check_head_left(weights)

    from headroom.models.api.smaller import pruned  # imports torch

    smaller = pruned(source, config, weights, out)
    if not as_json:
        print(smaller)
        return
    refusal = smaller.transformers
    document = {
        "out": str(out),
        "head_mask": {"id": weights.id, "spec": weights.spec},
        **{name: {"before": old, "after": new} for name, (old, new) in smaller.sizes.items()},
        "transformers": {"loads": refusal is None, "reason": refusal},
    }
    print(json.dumps(document))

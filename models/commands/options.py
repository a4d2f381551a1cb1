"""Options that several commands share, with their help texts, and the networks and masks that they name.

Variants belong to the service's config, which `models` does not know: the program that registers the commands
sets `resolve` and `sides`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from headroom import ModelError
from headroom.models.api.arguments import MARGINS
from headroom.models.errors import reading_problem
from headroom.models.files import Json, read_text
from headroom.models.masks.grammar import HOLDS, is_file
from headroom.models.quality.labelled import HIGHEST_GRADE

if TYPE_CHECKING:
    from headroom import Classifier, HeadMask
    from headroom.models.checkpoint.config import ModelConfig
    from headroom.models.quality.comparison import Side, Truth
    from headroom.models.quality.labelled import Columns, LabelledPair


def one_character(value: str) -> str:
    """Return the value of --delimiter. Raises BadParameter if it cannot stand between the cells of csv."""
    if len(value) != 1 or value in '"\r\n':
        raise typer.BadParameter("give one character, such as --delimiter ';'; no quote and no line end")
    return value


def refuse_unused(context: typer.Context, reason: str, *parameters: str) -> None:
    """Raise BadParameter if the command line gives one of these options, which would do nothing.

    reason: what it needs, or does not go with. parameters: of the command, by name.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in parameters and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(reason, param_hint=parameter.opts[0])


Data = Annotated[
    Path,
    typer.Option(
        help="Judged pairs: csv, tsv, jsonl or parquet of query,title,grade; or judgments of Quepid, the "
        "Search Relevance Workbench, ESCI, BEIR or TREC (docs/models.md)."
    ),
]
QueryColumn = Annotated[str, typer.Option(help="The column of the queries.")]
TitleColumn = Annotated[str, typer.Option(help="The column of the titles.")]
GradeColumn = Annotated[
    str, typer.Option(help="The column of the grades: numbers from 0, the labels' names, or ESCI's letters.")
]
SECOND = "If it lacks a column that an option names for --data, the usual one counts: query, title or grade."
"""Help of an option that names a file beside --data (`columns_of_second`)."""

Queries = Annotated[
    str | None,
    typer.Option(help="File with the texts of queries, if --data has ids, as TREC's qrels."),
]
Titles = Annotated[
    str | None,
    typer.Option(help="File with the texts of titles, if --data has ids, as of Quepid, ESCI and qrels."),
]
Delimiter = Annotated[
    str, typer.Option(callback=one_character, help="The character between the cells of csv files.")
]
Relevant = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=HIGHEST_GRADE,
        help="The lowest grade that counts as relevant, for MRR, MAP, recall and cuts.  [default: the "
        "highest grade; 1 if the model has one label]",
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        min=MARGINS[0],
        max=MARGINS[1],
        help="Accepted loss in a metric; the result says how many queries would exclude more.",
    ),
]
NewDirectory = Annotated[Path, typer.Option(help="Directory to write; it must be empty or new.")]
Model = Annotated[
    str | None,
    typer.Option(help="Checkpoint directory or hub id (NAME@REVISION).  [default: the shipped one]"),
]
LabelOrder = Annotated[
    str | None,
    typer.Option(
        help="Names of the model's labels from least to most relevant, with commas between them.  "
        "[default: what its config.json or the names say]"
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="Config file that declares variants and masks. Its model, device and dtype count, unless an "
        "option names others.  [default: the shipped file, unless --model is given]"
    ),
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="Number format: auto, float32, bfloat16 or float16.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

FORMS = "a spec such as 6-11.* or @pruned20, a JSON form, or a .json file such as a study's mask.json"
"""How the help texts describe a mask."""


@dataclass(frozen=True, slots=True)
class Network:
    """The options that name a network: those of the command line with these names."""

    model: str | None
    config: Path | None
    variant: str | None
    mask: str | None
    device: str
    dtype: str
    label_order: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sides:
    """Networks on labelled pairs. labels: the grades, () if there are none. stages: how many pairs ended at
    each, of a cascade."""

    sides: list[Side]
    pairs: Sequence[LabelledPair]
    labels: tuple[str, ...]
    stages: dict[str, int]


resolve: Callable[[Network], tuple[Classifier, HeadMask]]
"""Returns the classifier and the mask that the options name."""

sides: Callable[[Network, Path, Columns, int | None], Sides]
"""Judges a variant, and what it is measured beside, on the labelled pairs of a file with `--relevant`."""


def label_names(value: str | None) -> tuple[str, ...] | None:
    """Return the names that a value of `--label-order` lists; None if it is not given."""
    return None if value is None else tuple(name.strip() for name in value.split(","))


def orders_of(models: Sequence[str | None], order: tuple[str, ...] | None) -> list[tuple[str, ...] | None]:
    """Return the order of each model's labels: this one, or None for a model that has other labels.

    Raises BadParameter if no model has these labels.
    """
    from headroom.models.checkpoint.config import read_config
    from headroom.models.checkpoint.hub import locate

    if order is None or len(models) == 1:  # which is refused with the names of its labels
        return [order] * len(models)
    labels = [read_config(locate(model)).labels for model in models]
    if not any(sorted(names) == sorted(order) for names in labels):
        raise typer.BadParameter("no model has these labels", param_hint="--label-order")
    return [order if sorted(names) == sorted(order) else None for names in labels]


def as_indented(document: Json) -> str:
    """Return a document as indented JSON; a number that is not finite becomes null."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def read_form(value: str) -> str | Json:
    """Return the spec or the JSON form that a value of `--mask` gives, or the content of the file it names.

    That is a JSON form, or, as a study writes it and a checkpoint stores it, has a spec or a form under the
    key `mask` (`HeadMask.parse` takes either). Raises ModelError if JSON or file cannot be read. The model's
    shape is not checked here.
    """
    text = value.strip()
    is_form = text.startswith("{")
    if not is_form and not text.endswith(".json"):
        return value
    try:
        content: Json = json.loads(text if is_form else read_text(text))
        if not isinstance(content, dict):
            raise ModelError(f"{text} does not hold a JSON object")
        if not is_form and not is_file(content) and not content.keys() & HOLDS.keys():
            raise KeyError("mask")
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(reading_problem("--mask" if is_form else text, error)) from None
    return content


def read_truth(
    path: Path, configs: Sequence[ModelConfig], columns: Columns, relevant: int | None
) -> tuple[Truth, tuple[str, ...]]:
    """Return the judged pairs of a file, and the names of their grades. relevant: the value of `--relevant`.

    Raises BadParameter if the models have no such grade.
    """
    from headroom.models.quality.reading import read_truth, shared_labels

    if labels := shared_labels(configs):
        _check_relevant(labels, relevant)
    return read_truth(path, configs, columns, relevant)


def _check_relevant(labels: Sequence[str], relevant: int | None) -> None:
    """Raise BadParameter if a model with these labels has no such grade."""
    highest = len(labels) - 1
    if relevant is not None and relevant > highest:
        raise typer.BadParameter(f"the model's grades are 0 to {highest}", param_hint="--relevant")


def read_judged(
    path: Path, config: ModelConfig, columns: Columns, relevant: int | None
) -> tuple[list[LabelledPair], int]:
    """Return the pairs of a file, of which a share is relevant, and the lowest grade that counts as relevant.

    relevant: the value of `--relevant`. A one-label model's pairs have the grades 0 and 1, or with
    `--relevant` any from 0 to HIGHEST_GRADE. Raises ModelError if the file cannot be read; BadParameter if
    the model has no such grade.
    """
    from headroom.models.quality.reading import read_relevance

    if config.is_graded:
        _check_relevant(config.labels, relevant)
    return read_relevance(path, config, columns, relevant)

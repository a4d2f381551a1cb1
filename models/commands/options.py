"""Options that several commands share, with their help texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from models.checkpoint.config import ModelConfig
    from models.masks.head_mask import HeadMask


def one_character(value: str) -> str:
    """Return the value of --delimiter. Raises BadParameter if it cannot stand between the cells of csv."""
    if len(value) != 1 or value in '"\r\n':
        raise typer.BadParameter("give one character, such as --delimiter ';'; no quote and no line end")
    return value


Data = Annotated[Path, typer.Option(help="Labelled pairs: csv, tsv, jsonl or parquet of query,title,grade.")]
QueryColumn = Annotated[str, typer.Option(help="The column of the queries.")]
TitleColumn = Annotated[str, typer.Option(help="The column of the titles.")]
GradeColumn = Annotated[
    str, typer.Option(help="The column of the grades: numbers from 0, the labels' names, or ESCI's letters.")
]
Delimiter = Annotated[
    str, typer.Option(callback=one_character, help="The character between the cells of csv files.")
]
NewDirectory = Annotated[Path, typer.Option(help="Directory to write; it must be empty or new.")]
Model = Annotated[
    str | None,
    typer.Option(help="Checkpoint directory or hub id (NAME@REVISION).  [default: the shipped one]"),
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
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

FORMS = "a spec such as 6-11.* or @pruned30, a JSON form, or a .json file such as a study's mask.json"
"""What the help texts say of a mask."""


def read_form(value: str) -> str | dict[str, Any]:
    """Return the spec or the JSON form that a value of `--mask` gives or whose file it names.

    A file holds a JSON form, or, as a study writes it and a checkpoint stores it, a spec or a form under the
    key `mask`. Raises ModelError if JSON or file cannot be read. The model's shape is not checked here.
    """
    import json

    from models.errors import ModelError, reading_problem
    from models.files import read_text
    from models.masks.grammar import KEYS

    text = value.strip()
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ModelError(reading_problem("--mask", error)) from None
    if not text.endswith(".json"):
        return value
    try:
        content = json.loads(read_text(text))
        if not isinstance(content, dict):
            raise ModelError(f"{text} does not hold a JSON object")
        form: str | dict[str, Any] = content if content.keys() & set(KEYS) else content["mask"]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(reading_problem(text, error)) from None
    return form


def parse_mask(value: str, config: ModelConfig, stored: Mapping[str, HeadMask]) -> HeadMask:
    """Return the mask that a value of `--mask` gives for a checkpoint; it may switch units off.

    stored: the checkpoint's masks by name. Raises ModelError, or InvalidMask.
    """
    from models.masks.head_mask import HeadMask

    return HeadMask.parse(
        read_form(value),
        layers=config.num_layers,
        heads=config.num_heads,
        units=config.intermediate_size,
        stored=stored,
    )

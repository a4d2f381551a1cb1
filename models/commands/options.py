"""Options that several commands share, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
Model = Annotated[str | None, typer.Option(help="Checkpoint directory or hub id (NAME@REVISION).")]
Config = Annotated[
    Path | None,
    typer.Option(
        help="Config file that declares variants and masks. Its model, device and dtype count, unless an "
        "option names others."
    ),
]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="Number format: auto, float32, bfloat16 or float16.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

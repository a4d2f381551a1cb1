"""`headroom condense` shortens a verbose query to the words that still find the same titles."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from models.commands import host
from models.commands.host import Network
from models.commands.options import FORMS, AsJson, Config, Device, Dtype, Model
from models.commands.terminal import counted, table

if TYPE_CHECKING:
    from models.condense.search import Condensed, Task


Titles = Annotated[
    str,
    typer.Option(
        help="File of the query's candidates: one title per line (- reads standard input), or query,title"
        " in csv, tsv, jsonl or parquet, of which the rows of this query are read."
    ),
]
HowChosen = Annotated[
    Literal["greedy", "leave_one_out"],  # as `Method` of models.condense.search, which imports torch
    typer.Option(
        help="How the words are chosen: greedy deletion, or the loss of each word left out alone (cheaper)."
    ),
]


def command(
    query: Annotated[str, typer.Argument(help="The verbose query; its words stand between spaces.")],
    titles: Titles,
    words: Annotated[int | None, typer.Option(min=1, help="Number of words to keep.")] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Largest loss; the shortest query within it is chosen.  [default: 0.1 without --words]",
        ),
    ] = None,
    method: HowChosen = "greedy",
    mask: Annotated[str | None, typer.Option(help=f"Mask: {FORMS}.")] = None,
    variant: Annotated[
        str | None,
        typer.Option(help="Name of a variant in the config file.  [default: the config's default]"),
    ] = None,
    model: Model = None,
    config: Config = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: AsJson = False,
) -> None:
    """Shorten a query to the words that still find the same titles.

    Prints the short query, then the loss at every length.

    Example: headroom condense "where can i buy a good wireless mouse" --titles candidates.txt --words 2
    """
    if not query.strip():
        raise typer.BadParameter("must not be blank", param_hint="QUERY")
    candidates = read_candidates(titles, query)
    clf, head_mask = host.resolve(Network(model, config, variant, mask, device, dtype))

    from models.condense.local import condense
    from models.condense.search import Task, largest_cost
    from models.condense.words import read_words

    task = Task(query, read_words(query), method, words, max_loss)
    with counted("shorter queries", largest_cost(len(task.words), task.method)) as advance:
        condensed = condense(clf, task, candidates, head_mask, advance)
    if as_json:
        print(_as_json(task, condensed))
    else:
        print(f"{condensed.query}\n\n{_table(condensed)}")
    if condensed.note:
        print(f"headroom: {condensed.note}", file=sys.stderr)


def read_candidates(source: str, query: str) -> list[str]:
    """Return the titles of a file. Raises ModelError."""
    from models.errors import ModelError
    from models.quality.formats import format_of
    from models.quality.labelled import read_pairs

    if format_of(source) is not None:
        titles = [title for of_query, title in read_pairs(Path(source)) if of_query == query]
        if not titles:
            raise ModelError(f"--titles: {source} holds no row of the query {query[:40]!r}")
        return titles
    titles = [line.strip() for line in _lines(source) if line.strip()]
    if not titles:
        raise ModelError(f"--titles: {source} holds no titles")
    return titles


def _lines(source: str) -> list[str]:
    from models.errors import ModelError, reading_problem
    from models.files import read_bytes

    try:
        data = sys.stdin.buffer.read() if source == "-" else read_bytes(source)
        # not str.splitlines, which also cuts at characters that a title may hold, such as U+2028
        return re.split(r"\r\n|\n|\r", data.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"--titles: {reading_problem(source, error)}") from None


def _table(condensed: Condensed) -> str:
    """Return the loss at every length; an estimated loss has a ~."""
    rows = [
        (str(length.words), f"{'' if length.measured else '~'}{length.loss:.3f}", length.query)
        for length in condensed.path
    ]
    return table([("words", "loss", "query"), *rows])


def _as_json(task: Task, condensed: Condensed) -> str:
    columns = zip(task.words, condensed.kept, condensed.importance, strict=True)
    return json.dumps(
        {
            "condensed": condensed.query,
            "loss": condensed.loss,
            "method": task.method,
            "words": [
                {"word": word.text, "form": word.form, "kept": kept, "importance": importance}
                for word, kept, importance in columns
            ],
            "path": [asdict(length) for length in condensed.path],
            "note": condensed.note,
        },
        ensure_ascii=False,
    )

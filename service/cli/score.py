"""`headroom score` scores pairs without a server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headroom.models.commands.options import (
    FORMS,
    Config,
    Delimiter,
    Device,
    Dtype,
    LabelOrder,
    Model,
    Network,
    QueryColumn,
    TitleColumn,
    label_names,
    refuse_unused,
)
from headroom.models.terminal import warn
from headroom.service.cli import choice, score_files

if TYPE_CHECKING:
    from headroom.service.scoring.catalog import Variant
    from headroom.service.scoring.offline import Scored

LINE_FORMAT = "a query, a tab and a title"

PORTION = 1024
"""Number of pairs read from standard input before they are scored."""

OF_FILES = ("query_column", "title_column", "delimiter", "prefix", "overwrite")
"""The options that only --input takes."""

Masks = Annotated[
    list[str] | None,
    typer.Option(metavar="<str>", help=f"Mask: {FORMS}."),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<str>",
        help="Name of a variant in the config file.  [default: the config's default]",
    ),
]
Instruction = Annotated[
    str | None,
    typer.Option(help="What makes a title relevant, for models whose prompt has an instruction."),
]


def command(
    context: typer.Context,
    query: Annotated[
        str | None,
        typer.Argument(help="The query, or - to read lines of query, tab, title from standard input."),
    ] = None,
    titles: Annotated[
        list[str] | None, typer.Argument(help="The titles to score; -- before them, if one begins with -.")
    ] = None,
    mask: Masks = None,
    variant: Variants = None,
    model: Model = None,
    config: Config = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    label_order: LabelOrder = None,
    instruction: Instruction = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per pair; with --input, one in all.")
    ] = False,
    source: score_files.Input = None,
    output: score_files.Output = None,
    cache: score_files.Cache = None,
    query_column: QueryColumn = "query",
    title_column: TitleColumn = "title",
    delimiter: Delimiter = ",",
    prefix: score_files.Prefix = "",
    overwrite: score_files.Overwrite = False,
) -> None:
    """Score how relevant each title is to the query. Prints one line per title, in the order given.

    With --input and --output, scores the rows of a file of any size (docs/bulk.md). If it is stopped, the
    same command goes on from what is done. With --cache, services with that `score_cache` know the scores.

    Example: headroom score "angle bracket" "Simpson 12-Gauge Angle" "Wood deck screws" --mask @pruned20

    Example: headroom score --input pairs.csv --output scored.csv --variant full --mask @pruned20

    Example: headroom score --input head-queries.csv --cache redis://127.0.0.1:6379/0
    """
    network = Network(
        model,
        config,
        only_one("--variant", variant),
        only_one("--mask", mask),
        device,
        dtype,
        label_names(label_order),
    )
    if source is None and output is None and cache is None:
        if query is None:
            raise typer.BadParameter("give a query and titles, or --input and --output", param_hint="QUERY")
        refuse_unused(context, "it needs --input", *OF_FILES)
        _print_scores(network, query, titles, instruction, as_json=as_json)
        return
    if query is not None or source is None:
        raise typer.BadParameter(
            "it goes without a query, and with --output or --cache", param_hint="--input"
        )
    if (output is None) == (cache is None):
        raise typer.BadParameter("it goes with one of --output and --cache", param_hint="--input")
    refuse_unused(context, "does not go with --input", "instruction")
    if output is None:
        refuse_unused(context, "it needs --output", "prefix", "overwrite")
    from headroom.models.quality.labelled import Columns

    columns = Columns(query_column, title_column, delimiter=delimiter)
    options = score_files.options_of(network, columns, prefix=prefix)
    if output is not None:
        score_files.run(source, output, options, overwrite=overwrite, as_json=as_json)
    elif cache is not None:
        score_files.fill_cache(source, cache, options, as_json=as_json)


def _print_scores(
    network: Network, query: str, titles: list[str] | None, instruction: str | None, *, as_json: bool
) -> None:
    """Print a line for each pair, portion by portion."""
    pairs = pairs_of(query, titles)
    chosen = choice.resolve(network)
    if network.variant is None:
        _say_which_default(chosen, network.mask)
    from headroom.service.scoring.offline import score  # imports torch, after all checks

    with_query = query == "-"
    for portion in portions(pairs, whole_queries=bool(chosen.stages)):
        scored = score(chosen, portion, instruction=instruction)
        for line in lines(chosen, portion, scored, as_json=as_json, with_query=with_query):
            print(line)


def _say_which_default(chosen: Variant, mask: str | None) -> None:
    """Say that the config's default variant scores, if it has a mask of its own. mask: laid on it."""
    if not (chosen.configured or chosen).mask.is_none:
        on = f"{chosen.mask.heads_on} of {chosen.mask.matrix.size} heads are on"
        warn(f"{choice.default_line(chosen.name, mask)}; {on}")


def pairs_of(query: str, titles: list[str] | None) -> Iterator[tuple[str, str]]:
    """Return the query with each title; if the query is -, the pairs of standard input."""
    if query == "-":
        if titles:
            raise typer.BadParameter("reads pairs from standard input and takes no titles", param_hint="-")
        if sys.stdin.isatty():
            warn(f"type lines of {LINE_FORMAT}; end with Ctrl-D")
        return read_pairs(sys.stdin.buffer)
    if not titles:
        raise typer.BadParameter("give at least one title", param_hint="TITLES")
    if not query.strip():
        raise typer.BadParameter("must not be blank", param_hint="QUERY")
    return iter([(query, title) for title in titles])


def portions(pairs: Iterator[tuple[str, str]], *, whole_queries: bool) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs in lists of PORTION, or, if titles of a query must stay together, query by query.

    Then lines of one query that stand together are one list of titles.
    """
    if whole_queries:
        for _, group in groupby(pairs, key=lambda pair: pair[0]):
            yield list(group)
        return
    while portion := list(islice(pairs, PORTION)):
        yield portion


def only_one(option: str, values: list[str] | None) -> str | None:
    """Return the value of an option that was given at most once."""
    if values and len(values) > 1:
        raise typer.BadParameter("give it once, and score once for each", param_hint=option)
    return values[0] if values else None


def read_pairs(stream: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (query, title) of each line `query<TAB>title` of UTF-8 text; skip empty lines.

    Raises ValueError that names the first line that is not such a pair.
    """
    for number, raw in enumerate(stream, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"standard input, line {number}: not UTF-8 text") from None
        if not line:
            continue
        query, tab, title = line.partition("\t")  # the title may hold further tabs
        if not tab or not query.strip():
            raise ValueError(f"standard input, line {number}: expected {LINE_FORMAT}; found {line[:40]!r}")
        yield query, title


def lines(
    chosen: Variant, pairs: Iterable[tuple[str, str]], scored: Scored, *, as_json: bool, with_query: bool
) -> Iterator[str]:
    """Yield one line per pair: score, label and title separated by tabs, or one JSON object."""
    import orjson

    grades = chosen.classifier.grades
    scores = scored.scores
    for index, (query, title) in enumerate(pairs):
        label = grades[scores.grade[index]] if grades else ""
        if not as_json:
            texts = (query, title) if with_query else (title,)
            yield "\t".join((f"{scores.score[index]:.4f}", label, *texts))
            continue
        row: dict[str, Any] = {"query": query, "title": title}
        row |= {"variant": chosen.name, "head_mask": chosen.mask.spec, "score": scores.score[index]}
        if grades:
            row |= {"grade": int(scores.grade[index]), "label": label}
            row["expected_grade"] = scores.expected_grade[index]
            row["probabilities"] = scores.probabilities[index]
        if scored.stages is not None:
            row["stage"] = scored.stages[index]
        yield orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY).decode()

"""`headroom condense` shortens a verbose query to the words that still find the same titles."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from headroom.models.commands import options
from headroom.models.condense.search import Method, Task, largest_cost
from headroom.models.errors import ModelError, reading_problem
from headroom.models.files import read_bytes
from headroom.models.quality.labelled import read_pairs
from headroom.models.rows import format_of
from headroom.models.terminal import counted, table, warn

Titles = Annotated[
    str | None,
    typer.Option(help="The candidates: a file of titles, one per line (-: standard input), or of pairs."),
]
Generate = Annotated[
    bool,
    typer.Option(
        "--generate", help="Write the short query, also with words that the question does not have."
    ),
]
Beams = Annotated[
    int | None,
    typer.Option(min=1, max=8, help="Queries that --generate keeps in its search; 1: greedy.  [default: 4]"),
]
DEFAULT_BEAMS = 4
Words = Annotated[int | None, typer.Option(min=1, help="Number of words to keep.")]
MaxLoss = Annotated[
    float | None, typer.Option(min=0, max=1, help="Largest loss.  [default: 0.1 without --words]")
]
HowChosen = Annotated[
    Method | None,
    typer.Option(
        help="greedy: delete the least costly word each time; leave_one_out: rank all words once (cheaper).  "
        "[default: greedy]"
    ),
]
Mask = Annotated[
    str | None,
    typer.Option(help=f"Mask: {options.FORMS}; with --generate also decoder:0.1 and cross:1.*, after a ';'."),
]
Variant = Annotated[
    str | None, typer.Option(help="Variant of the config file.  [default: the config's default]")
]


def command(
    query: Annotated[str, typer.Argument(help="The verbose query; its words stand between spaces.")],
    titles: Titles = None,
    words: Words = None,
    max_loss: MaxLoss = None,
    method: HowChosen = None,
    generate: Generate = False,
    beams: Beams = None,
    mask: Mask = None,
    variant: Variant = None,
    model: options.Model = None,
    config: options.Config = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    label_order: options.LabelOrder = None,
    as_json: options.AsJson = False,
) -> None:
    """Shorten a query to the words that still find the same titles, or write the short query (--generate).

    Prints the short query, then the loss at every length; or the best queries with their scores.

    Example: headroom condense "where can i buy a good wireless mouse" --titles candidates.txt --words 2

    Example: headroom condense "where can i buy a good wireless mouse" --generate
    """
    if not query.strip():
        raise typer.BadParameter("must not be blank", param_hint="QUERY")
    order = options.label_names(label_order)
    network = options.Network(model, config, variant, mask, device, dtype, order)
    if generate:
        selecting = {"--titles": titles, "--words": words, "--max-loss": max_loss, "--method": method}
        for name, value in selecting.items():
            if value is not None:
                raise typer.BadParameter("chooses words; --generate writes the query", param_hint=name)
        _generate(query, network, DEFAULT_BEAMS if beams is None else beams, as_json=as_json)
        return
    if beams is not None:
        raise typer.BadParameter("is for --generate", param_hint="--beams")
    if titles is None:
        raise typer.BadParameter("name the candidates, or give --generate", param_hint="--titles")
    candidates = read_candidates(titles, query)

    from headroom.models.condense.words import read_words

    task = Task(query, read_words(query), method or "greedy", words, max_loss)
    _choose_words(task, network, candidates, as_json=as_json)


def _choose_words(task: Task, network: options.Network, candidates: list[str], *, as_json: bool) -> None:
    """Print the words that still find the same titles, and the loss at every length."""
    clf, head_mask = options.resolve(network)

    from headroom.models.condense.local import condense

    with counted("shorter queries", largest_cost(len(task.words), task.method)) as advance:
        condensed = condense(clf, task, candidates, head_mask, advance)
    if as_json:
        columns = zip(task.words, condensed.kept, condensed.importance, strict=True)
        document = {
            "condensed": condensed.query,
            "loss": condensed.loss,
            "method": task.method,
            "words": [
                {"word": word.text, "form": word.form, "kept": kept, "importance": importance}
                for word, kept, importance in columns
            ],
            "path": [asdict(length) for length in condensed.path],
            "note": condensed.note,
        }
        print(json.dumps(document, ensure_ascii=False))
    else:
        rows = [  # an estimated loss has a ~
            (str(length.words), f"{'' if length.measured else '~'}{length.loss:.3f}", length.query)
            for length in condensed.path
        ]
        print(f"{condensed.query}\n\n{table([('words', 'loss', 'query'), *rows])}")
    if condensed.note:
        warn(condensed.note)


def _generate(query: str, network: options.Network, beams: int, *, as_json: bool) -> None:
    """Print the best queries that the generator writes."""
    from headroom.models.masks.generation import GenerationMask, generator_masks, split_spec

    parts = split_spec(network.mask or "none")
    clf, encoder_mask = options.resolve(replace(network, mask=parts.encoder))
    generator = clf.checked_generator()
    mask = GenerationMask(encoder_mask, *generator_masks(parts.generator, generator.shape))
    (written,) = clf.write_queries([generator.ask(query, beams, mask)])
    queries = generator.readable_queries(written)
    if as_json:
        document = {
            "condensed": queries[0].query,
            "method": "generate",
            "head_mask": mask.spec,
            "queries": [one._asdict() for one in queries],
        }
        print(json.dumps(document, ensure_ascii=False))
        return
    rows = [(f"{one.score:.3f}", one.query) for one in queries]
    print(f"{queries[0].query}\n\n{table([('score', 'query'), *rows])}")


def read_candidates(source: str, query: str) -> list[str]:
    """Return the titles of a file. Raises ModelError."""
    if format_of(source) is not None:
        titles = [title for of_query, title in read_pairs(Path(source)) if of_query == query]
        missing = f"row of the query {query[:40]!r}"
    else:
        try:
            data = sys.stdin.buffer.read() if source == "-" else read_bytes(source)
            # not str.splitlines, which also cuts at characters that a title may hold, such as U+2028
            lines = re.split(r"\r\n|\n|\r", data.decode("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"--titles: {reading_problem(source, error)}") from None
        titles = [line.strip() for line in lines if line.strip()]
        missing = "titles"
    if not titles:
        raise ModelError(f"--titles: {source} holds no {missing}")
    return titles

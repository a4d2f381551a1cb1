"""`headroom score` scores pairs without a server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.options import Device, Dtype, Model

if TYPE_CHECKING:
    from models import Classifier, HeadMask, Scores
    from service.settings import LiveConfig

EXPECTED = "a query, a tab and a title"

PORTION = 1024
"""Number of pairs read from standard input before they are scored."""


def command(
    query: Annotated[
        str, typer.Argument(help="The query, or - to read lines of query, tab, title from standard input.")
    ],
    titles: Annotated[list[str] | None, typer.Argument(help="The titles to score.")] = None,
    mask: Annotated[str | None, typer.Option(help="Head mask, such as 6-11.* or @pruned60.")] = None,
    variant: Annotated[str | None, typer.Option(help="Name of a variant in the config file.")] = None,
    model: Model = None,
    config: Annotated[Path | None, typer.Option(help="Config file that declares variants and masks.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    overflow: Annotated[
        Literal["truncate", "chunks"],
        typer.Option(
            help="What becomes of a title longer than the model's window: score its beginning, or all of "
            "it in overlapping chunks, of which the best one counts."
        ),
    ] = "truncate",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per pair.")] = False,
) -> None:
    """Score how relevant each title is to the query. Prints one line per title, in the order given.

    Example: headroom score "angle bracket" "Simpson 12-Gauge Angle" "Wood deck screws" --mask @pruned60
    """
    from_stdin = query == "-"
    if from_stdin and titles:
        raise typer.BadParameter("reads pairs from standard input and takes no titles", param_hint="-")
    if not from_stdin and not titles:
        raise typer.BadParameter("give at least one title", param_hint="TITLES")
    if not from_stdin and not query.strip():
        raise typer.BadParameter("must not be blank", param_hint="QUERY")
    if from_stdin and sys.stdin.isatty():
        print(f"headroom: type lines of {EXPECTED}; end with Ctrl-D", file=sys.stderr)
    pairs = read_pairs(sys.stdin.buffer) if from_stdin else iter([(query, title) for title in titles or ()])
    clf, head_mask = resolve(model, config, variant, mask, device, dtype)
    while portion := list(islice(pairs, PORTION)):
        scores = clf.score(portion, head_mask, overflow=overflow)
        for line in lines(clf, portion, scores, as_json=as_json, with_query=from_stdin):
            print(line)


def read_pairs(stream: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (query, title) of each line `query<TAB>title` of UTF-8 text; skip empty lines.

    A first line with the names `query` and `title` says which columns to read; the others are ignored.
    Raises ValueError that names the first line that is not such a pair.
    """
    columns: tuple[int, int] | None = None
    for number, raw in enumerate(stream, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"standard input, line {number}: not UTF-8 text") from None
        if not line:
            continue
        if number == 1:
            names = [name.strip().lower() for name in line.split("\t")]
            if "query" in names and "title" in names:
                columns = names.index("query"), names.index("title")
                continue
        # Without a header the title is all that follows the first tab.
        cells = line.split("\t") if columns else line.split("\t", 1)
        query_at, title_at = columns or (0, 1)
        if len(cells) <= max(query_at, title_at) or not cells[query_at].strip():
            raise ValueError(
                f"standard input, line {number}: expected {EXPECTED}; found {line[:40]!r}, "
                + ("which has too few columns" if cells[0].strip() else "which has no query")
            )
        yield cells[query_at], cells[title_at]


def resolve(
    model: str | None,
    config: Path | None,
    variant: str | None,
    mask: str | None,
    device: str,
    dtype: str,
) -> tuple[Classifier, HeadMask]:
    """Return the classifier and mask that the options name, resolved as the service would."""
    from models.device import check_device_name, check_dtype_name
    from service.cli.serve import DEFAULT_CONFIG
    from service.deployment import config_file
    from service.settings import LiveConfig

    check_device_name(device)
    check_dtype_name(dtype)
    path = DEFAULT_CONFIG if config is None and model is None else config
    live = LiveConfig() if path is None else config_file.load(path, config_file.Overrides()).live
    if variant is not None:
        # The user asked for this variant, so it is an error if the model has no such mask.
        named = [v.model_copy(update={"optional": False}) for v in live.variants if v.name == variant]
        live = live.model_copy(update={"variants": tuple(named)})
        if not live.variants:
            raise ValueError(f"--variant: there is no variant {variant!r} in {path or 'the default config'}")
    else:
        live = LiveConfig(masks=live.masks)
    check_masks(live, live.variants[0].checkpoint or model, mask)

    from models import Classifier  # imports torch, so it comes after the checks that do not need it
    from service.scoring.catalog import BASE, build_catalog

    def load(path: str | None) -> Classifier:
        return Classifier.load(path, device, dtype)

    choice = build_catalog(live, {BASE: load(model)}, load).choose(None, mask)
    return choice.variant.classifier, choice.mask


def check_masks(live: LiveConfig, checkpoint: str | None, mask: str | None) -> None:
    """Raise the errors of a wrong checkpoint or mask before torch is imported, which takes seconds.

    live: a config whose only variant is the one to score with. checkpoint: that variant's checkpoint.
    """
    from models import HeadMask
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from service.variant_masks import resolve_masks, resolve_variant

    directory = locate(checkpoint)
    own = read_config(directory)
    shape = {"layers": own.num_layers, "heads": own.num_heads}
    stored = read_stored_masks(directory, own)
    masks = resolve_masks(live, **shape, units=own.intermediate_size, stored=stored)
    resolve_variant(live, live.variants[0].name, **shape, masks=masks)
    if mask is not None:
        HeadMask.parse(mask, **shape, stored=masks)


def lines(
    clf: Classifier, pairs: Iterable[tuple[str, str]], scores: Scores, *, as_json: bool, with_query: bool
) -> Iterator[str]:
    """Yield one line per pair: score, label and title separated by tabs, or one JSON object."""
    import orjson

    for i, (query, title) in enumerate(pairs):
        label = clf.grades[scores.grade[i]] if clf.grades else None
        if as_json:
            row: dict[str, Any] = {"query": query, "title": title, "score": scores.score[i]}
            if clf.grades:
                row |= {
                    "grade": int(scores.grade[i]),
                    "label": label,
                    "expected_grade": scores.expected_grade[i],
                    "probabilities": scores.probabilities[i],
                }
            if scores.chunks is not None:
                row["chunk"] = scores.chunks[i]
            yield orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        else:
            columns = [f"{scores.score[i]:.4f}", label or "", *([query] if with_query else []), title]
            yield "\t".join(columns)

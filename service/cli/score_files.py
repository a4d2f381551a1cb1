"""`headroom score --input F --output G` scores files of any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from headroom.models.commands.options import read_form
from headroom.models.terminal import Stages, ends_at_once, warn
from headroom.service.cli import choice

if TYPE_CHECKING:
    from headroom.models.quality.labelled import Columns
    from headroom.service.config.settings import LiveConfig
    from headroom.service.config.variants import VariantConfig
    from headroom.service.files.job import Job
    from headroom.service.files.options import ColumnSet, ScoreOptions
    from headroom.service.files.scoring import WindowScorer

Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="File to score: csv, tsv or jsonl (also .gz, .zst) or parquet; a path or an object store's URI.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        help="File to write, whose name appears when it is complete. Format by name.",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        help="Instead of --output: Redis or Valkey server to fill, as a service's `score_cache` names it.",
        metavar="URL",
    ),
]
Prefix = Annotated[str, typer.Option(help="With --input: prefix of the new columns' names.")]
Judgments = Annotated[
    str | None,
    typer.Option(
        help="With --input: write a judgment list (query,docid,rating), as Quepid and the Search Relevance "
        "Workbench import it, with the ids in this column. Ratings are grades; scores if there are none.",
        metavar="COLUMN",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output, and the parts of a run with other options.")
]


class Rows(Stages):
    """Shows the share of rows that are scored, the pace and the time left."""

    _share_before: float | None = None

    def __call__(self, share: float, rows: int, rows_before: int) -> None:
        """Show that a share of the job, `rows` rows, is done. rows_before: those that an earlier run did."""
        if self._share_before is None:
            self._share_before = share * rows_before / rows if rows else 0.0
        seconds = max(time.monotonic() - self.began, 1e-9)
        self.show_words(f"{rows:,} rows, {(rows - rows_before) / seconds:,.0f}/s", share, self._share_before)


@ends_at_once("headroom: stopped; the same command goes on from what is done")
def run(source: str, output: str, options: ScoreOptions, *, overwrite: bool, as_json: bool) -> None:
    """Score the input as the options say, and print the number of rows and rejects."""
    import orjson

    from headroom.service.files.running import run as run_job

    if options.judged_ids and not output.endswith(".csv"):
        raise typer.BadParameter("a judgment list is a .csv file", param_hint="--output")
    began = time.monotonic()
    job, scorer = prepared(source, output, options)
    with closing(Rows()) as progress:
        summary = run_job(job, scorer, progress, overwrite=overwrite)
    seconds = time.monotonic() - began
    if as_json:
        document = {"output": job.output, **asdict(summary), "seconds": round(seconds, 3)}
        print(orjson.dumps(document).decode())
        return
    print(f"{job.output}: {summary.rows:,} pairs scored in {seconds:,.0f} s")
    if summary.rejects:
        warn(f"{summary.rejects:,} rows were set aside: {summary.rejects_file}")


@dataclass(frozen=True, slots=True)
class Target:
    """The place where scores go: the values of --output, --cache and --overwrite."""

    output: str | None
    cache: str | None
    overwrite: bool


def score_file(source: str, target: Target, options: ScoreOptions, *, as_json: bool) -> None:
    """Score a file into another one, or into the shared score cache. Raises BadParameter for options that do
    not go together."""
    if (target.output is None) == (target.cache is None):
        raise typer.BadParameter("it goes with one of --output and --cache", param_hint="--input")
    if target.output is not None:
        run(source, target.output, options, overwrite=target.overwrite, as_json=as_json)
        return
    assert target.cache is not None
    fill_cache(source, target.cache, options, as_json=as_json)


@ends_at_once("headroom: stopped; what is scored is stored, and the same command goes on from there")
def fill_cache(source: str, url: str, options: ScoreOptions, *, as_json: bool) -> None:
    """Store the scores of the input's pairs in the shared score cache, and print how many there were."""
    import orjson

    from headroom.service.files.filling import fill
    from headroom.service.files.scoring import WindowScorer

    began = time.monotonic()
    with closing(WindowScorer(options)) as scorer, closing(Rows()) as progress:
        filled = fill(source, options, scorer, url, progress)
    seconds = time.monotonic() - began
    if as_json:
        print(orjson.dumps({**asdict(filled), "seconds": round(seconds, 3)}).decode())
        return
    print(
        f"{filled.pairs:,} pairs are cached; {filled.computed:,} rows were computed in {seconds:,.0f} s, and "
        f"{filled.known:,} were known"
    )
    if filled.set_aside:
        warn(f"{filled.set_aside:,} rows cannot be scored; the first: {filled.problem}")


def prepared(
    source: str, output: str, options: ScoreOptions
) -> tuple[Job, Callable[[], AbstractContextManager[WindowScorer]]]:
    """Return the job, with the device and number format that score it, and a function that opens its scorer.

    The job is checked before torch is imported, which takes seconds.
    """
    from headroom.service.files.job import make_job

    job = make_job(source, output, options)
    from headroom.models.device import resolve_device, resolve_dtype
    from headroom.service.files.scoring import WindowScorer

    device = resolve_device(options.device)
    dtype = str(resolve_dtype(options.dtype, device, deterministic=False)).removeprefix("torch.")
    resolved = replace(job.options, device=str(device), dtype=dtype)
    return replace(job, options=resolved), lambda: closing(WindowScorer(resolved))


def options_of(
    setup: choice.Setup,
    masks: Sequence[str],
    variants: Sequence[str],
    fields: Columns,
    *,
    overflow: str,
    prefix: str,
    judgments: str | None = None,
) -> ScoreOptions:
    """Return what these options say, checked. Raises BadParameter, ValueError or ModelError."""
    from headroom.service.files.options import ScoreOptions

    if judgments is not None and (prefix or len(masks) > 1 or len(variants) > 1):
        raise typer.BadParameter("it takes one mask and variant, and no --prefix", param_hint="--judgments")
    if fields.query == fields.title:
        raise typer.BadParameter("two of the columns have one name", param_hint="--query-column")
    for option, given in (("--mask", masks), ("--variant", variants)):
        if len(set(given)) < len(given):
            raise typer.BadParameter("one mask or variant is given twice", param_hint=option)
    live = setup.only(variants or (setup.live.default_network,))
    _check_no_cascade(live, by_default=not variants)
    columns = _columns(masks, variants, live.default_variant)
    default = next(variant for variant in live.variants if variant.name == live.default_variant)
    if not variants and default.head_mask not in (None, "none"):
        warn(choice.default_line(default.name, masks[0] if len(masks) == 1 else None))
    of_one_variant = columns[: max(1, len(masks))]  # each mask once
    graded = [_checked(setup, live, variant, of_one_variant) for variant in live.variants]
    return ScoreOptions(
        model=setup.model,
        live=live,
        columns=columns,
        fields=fields,
        graded=any(graded),
        overflow=overflow,
        device=setup.device,
        dtype=setup.dtype,
        prefix=prefix,
        judged_ids=judgments or "",
        label_order=setup.label_order,
    )


def _checked(
    setup: choice.Setup, live: LiveConfig, variant: VariantConfig, columns: Sequence[ColumnSet]
) -> bool:
    """Return whether a variant's checkpoint has grades. Raises ModelError if it cannot have the columns'
    masks."""
    from headroom.models.checkpoint.config import read_config
    from headroom.models.checkpoint.hub import locate

    only = live.model_copy(update={"variants": (variant,), "default": None})
    directory = locate(variant.checkpoint or setup.model, setup.model)
    order = setup.label_order_of(variant)
    for each in columns:
        choice.check_masks(only, directory, each.mask, order)
    return read_config(directory, order).is_graded


def _check_no_cascade(live: LiveConfig, *, by_default: bool) -> None:
    """Raise ValueError for a cascade: a row is scored without the other titles of its query."""
    for variant in live.variants:
        if variant.cascade is not None:
            what = f"{variant.name}, the config's default," if by_default else variant.name
            raise ValueError(
                f"--variant: {what} is a cascade, which ranks the titles of a query; --input scores each row"
                " alone; name one of its stages"
            )


def _columns(masks: Sequence[str], variants: Sequence[str], default: str) -> tuple[ColumnSet, ...]:
    """Return one column for each variant and mask.

    If there are several, each is named by its variant, and by its mask if there are several masks. default:
    the variant that scores if none is named.
    """
    from headroom.service.files.options import ColumnSet

    forms = {mask: read_form(mask) for mask in masks}
    columns = []
    for variant in variants or (None,):
        for mask in masks or (None,):
            words = []
            if len(variants) > 1 or len(masks) > 1:
                words.append(variant or default)
            if mask is not None and len(masks) > 1:
                words.append(mask)
            columns.append(ColumnSet(" ".join(words), variant, None if mask is None else forms[mask]))
    return tuple(columns)

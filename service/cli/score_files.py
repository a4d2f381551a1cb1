"""`headroom score --input F --output G` scores files of any size, on this machine or on a Ray cluster."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.commands.interrupt import ends_at_once
from models.commands.mask_option import read_form
from models.commands.options import one_character
from models.commands.terminal import Share
from service.cli import choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from service.config.settings import LiveConfig
    from service.files.job import Job
    from service.files.options import ColumnSet, ScoreOptions
    from service.files.running import Summary
    from service.files.running import Workers as Opened

    Workers = Callable[[], contextlib.AbstractContextManager[Opened]]

Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="File to score: csv, tsv or jsonl (also .gz, .zst) or parquet; a directory of such files; or an "
        "object store's URI.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", help="File (or directory) to write; its name appears when it is complete. Format by name."
    ),
]
QueryColumn = Annotated[str, typer.Option(help="With --input: the column of the queries.")]
TitleColumn = Annotated[str, typer.Option(help="With --input: the column of the titles.")]
Delimiter = Annotated[
    str,
    typer.Option(callback=one_character, help="With --input: the character between the cells of csv files."),
]
MaskColumn = Annotated[
    str | None, typer.Option(help="With --input: the column of each row's head mask; empty for none.")
]
VariantColumn = Annotated[
    str | None, typer.Option(help="With --input: the column of each row's variant; empty for the default.")
]
Prefix = Annotated[str, typer.Option(help="With --input: begins the names of the new columns.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output, and the parts of a run with other options.")
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="Score on the Ray cluster that RAY_ADDRESS names, or on one started here."),
]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line. columns: of query, title, mask and variant; then the delimiter of csv."""

    source: str
    output: str
    columns: tuple[str, str, str | None, str | None, str]
    masks: tuple[str, ...]
    variants: tuple[str, ...]
    model: str | None
    config: Path | None
    device: str
    dtype: str
    overflow: str
    prefix: str
    overwrite: bool
    use_ray: bool
    as_json: bool


@ends_at_once("headroom: stopped; the same command goes on from what is done")
def run(arguments: Arguments) -> None:
    """Score the input and print what became of it."""
    import orjson

    from service.files.running import run as run_job
    from service.files.writing import readable

    began = time.monotonic()
    with contextlib.closing(Share()) as share, prepared(arguments) as (job, workers):
        summary = run_job(job, workers, share, overwrite=arguments.overwrite)
    seconds = time.monotonic() - began
    if arguments.as_json:
        print(orjson.dumps(_as_json(job, summary, seconds)).decode())
        return
    print(f"{readable(job.output)}: {summary.rows:,} pairs scored in {seconds:,.0f} s")
    if summary.rejects:
        rejects_file = readable(summary.rejects_file)
        print(f"headroom: {summary.rejects:,} rows were set aside: {rejects_file}", file=sys.stderr)


def _as_json(job: Job, summary: Summary, seconds: float) -> dict[str, Any]:
    from service.files.writing import readable

    return {
        "output": readable(job.output),
        "rows": summary.rows,
        "rejects": summary.rejects,
        "rejects_file": readable(summary.rejects_file) if summary.rejects else None,
        "seconds": round(seconds, 3),
    }


@contextlib.contextmanager
def prepared(arguments: Arguments) -> Iterator[tuple[Job, Workers]]:
    """Yield the job, with the device and number format that score it, and a function that opens its workers.

    All arguments are checked before torch is imported, which takes seconds.
    """
    from dataclasses import replace

    from service.files.job import make_job

    job = make_job(arguments.source, arguments.output, _options(arguments))
    if arguments.use_ray:
        from service.ray import bulk

        with bulk.cluster(job.options) as (options, workers):
            yield replace(job, options=options), workers
        return
    from models.device import resolve_device, resolve_dtype
    from service.files.scoring import WindowScorer

    device = resolve_device(job.options.device)
    dtype = str(resolve_dtype(job.options.dtype, device, deterministic=False)).removeprefix("torch.")
    options = replace(job.options, device=str(device), dtype=dtype)
    yield replace(job, options=options), lambda: contextlib.closing(WindowScorer(options))


def _options(arguments: Arguments) -> ScoreOptions:
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate
    from service.files.options import Fields, ScoreOptions

    fields = Fields(*arguments.columns)
    if len(set(fields.needed)) < len(fields.needed):
        raise typer.BadParameter("two of the columns have one name", param_hint="--query-column")
    for option, given, column in (
        ("--mask", arguments.masks, fields.mask),
        ("--variant", arguments.variants, fields.variant),
    ):
        if given and column is not None:
            raise typer.BadParameter(f"{option}-column says it for each row", param_hint=option)
    setup = choice.read_setup(arguments.model, arguments.config, arguments.device, arguments.dtype)
    live = _live(setup, arguments.variants, fields.variant is not None)
    columns = _columns(arguments, None if fields.variant is not None else live.default_variant)
    default = next(variant for variant in live.variants if variant.name == live.default_variant)
    if not (arguments.variants or fields.variant or default.head_mask in (None, "none")):
        mask = arguments.masks[0] if len(arguments.masks) == 1 else None
        print(f"headroom: {choice.of_default(default.name, mask)}", file=sys.stderr)
    for variant in live.variants:
        only = live.model_copy(update={"variants": (variant,), "default": None})
        for each in columns[: max(1, len(arguments.masks))]:  # those of one variant: each mask once
            choice.check_masks(only, variant.checkpoint or setup.model, each.mask)
    paths = {variant.checkpoint or setup.model for variant in live.variants}
    graded = any(read_config(locate(path)).is_graded for path in paths)
    how = arguments.overflow, setup.device, setup.dtype, arguments.prefix
    return ScoreOptions(setup.model, live, columns, fields, graded, *how)


def _columns(arguments: Arguments, default: str | None) -> tuple[ColumnSet, ...]:
    """Return one column for each variant and mask.

    If there are several, each is named by its variant, and by its mask if there are several masks. default:
    the variant that scores if none is named; None: each row names its own.
    """
    from service.files.options import ColumnSet

    columns = []
    forms = {mask: read_form(mask) for mask in arguments.masks}
    for variant in arguments.variants or (None,):
        for mask in arguments.masks or (None,):
            words = (
                (variant or default) if len(arguments.variants) > 1 or len(arguments.masks) > 1 else None,
                mask if len(arguments.masks) > 1 else None,
            )
            form = None if mask is None else forms[mask]
            columns.append(ColumnSet(" ".join(word for word in words if word), variant, form))
    if any(len(set(values)) < len(values) for values in (arguments.masks, arguments.variants)):
        raise typer.BadParameter("one mask or variant is given twice", param_hint="--mask")
    return tuple(columns)


def _live(setup: choice.Setup, variants: tuple[str, ...], all_variants: bool) -> LiveConfig:
    """Return the config's masks, and those of its variants that may be asked for."""
    from service.config.settings import LiveConfig

    live = setup.live
    # A row is scored without the other titles of its query, which a cascade ranks together.
    alone = tuple(variant for variant in live.variants if variant.cascade is None)
    names = {variant.name for variant in alone}
    if all_variants:
        if live.default_variant not in names:
            raise ValueError(
                f"--variant-column: {live.default_variant}, which rows without a variant get, is a cascade"
            )
        return LiveConfig(masks=live.masks, variants=alone, default=live.default)
    chosen = setup.only(variants or (live.default_variant,))
    if cascades := [variant.name for variant in chosen.variants if variant.name not in names]:
        what = cascades[0] if variants else f"{cascades[0]}, the config's default,"
        raise ValueError(f"--variant: {what} is a cascade; --input takes its stages, one by one")
    return chosen

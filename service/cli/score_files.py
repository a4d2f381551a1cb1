"""`headroom score --input F --output G` scores files of any size."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from headroom.models.commands.options import Network, read_form
from headroom.models.terminal import Stages, ends_at_once, warn
from headroom.service.cli import choice

if TYPE_CHECKING:
    from headroom.models.quality.labelled import Columns
    from headroom.service.files.job import Job
    from headroom.service.files.options import ScoreOptions
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
    dtype = str(resolve_dtype(options.dtype, device, deterministic=options.deterministic)).removeprefix(
        "torch."
    )
    resolved = replace(job.options, device=str(device), dtype=dtype)
    return replace(job, options=resolved), lambda: closing(WindowScorer(resolved))


def options_of(network: Network, fields: Columns, *, prefix: str) -> ScoreOptions:
    """Return what these options say, checked. Raises BadParameter, ValueError or ModelError."""
    from headroom.models.checkpoint.config import read_config
    from headroom.models.checkpoint.hub import locate
    from headroom.service.files.options import ScoreOptions

    if fields.query == fields.title:
        raise typer.BadParameter("two of the columns have one name", param_hint="--query-column")
    setup = choice.read_setup(network)
    live = setup.only([network.variant or setup.live.default_network])
    chosen = next(each for each in live.variants if each.name == live.default)
    if chosen.cascade is not None:
        what = chosen.name if network.variant else f"{chosen.name}, the config's default,"
        raise ValueError(
            f"--variant: {what} is a cascade, which ranks the titles of a query; --input scores each row "
            "alone; name one of its stages"
        )
    if network.variant is None and chosen.head_mask not in (None, "none"):
        warn(choice.default_line(chosen.name, network.mask))
    form = None if network.mask is None else read_form(network.mask)
    directory = locate(chosen.checkpoint or setup.model, setup.model)
    order = setup.label_order_of(chosen)
    choice.check_masks(live, directory, form, order)
    return ScoreOptions(
        model=setup.model,
        live=live,
        mask=form,
        fields=fields,
        graded=read_config(directory, order).is_graded,
        device=setup.device,
        dtype=setup.dtype,
        prefix=prefix,
        label_order=setup.label_order,
        deterministic=setup.deterministic,
    )

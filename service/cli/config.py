"""`headroom config` looks at a config file, without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from headroom.service.config.file import ConfigFileError, Overrides, load
from headroom.service.ray import preflight

app = typer.Typer(help="Config files of `headroom serve` and `serve deploy`.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Config file, such as deploy/serve.yaml.", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="Checkpoint directory or hub id, as `headroom serve` takes it.")
    ] = None,
) -> None:
    """Say what is wrong with a config file, one line per fault; the exit status is then 1.

    It needs no server. Masks are checked against the checkpoints, of which it downloads no weights, and
    experiments against their database, if there is one. It cannot know the device that will serve.

    Example: headroom config check deploy/serve.yaml
    """
    path = file.absolute()
    try:
        config = load(path, Overrides(model=model))
    except ConfigFileError as error:
        _refuse(error.faults)
    found = preflight.check_anywhere(path, config, _warn)
    for warning in preflight.unknown_variables(config):
        _warn(warning)
    if found.faults:
        _refuse(found.faults)
    if found.left_out:
        print(f"headroom: variants left out: {preflight.and_why(found.left_out)}", file=sys.stderr)
    names = ", ".join(entry.name for entry in config.live.variants if entry.name not in found.left_out)
    print(f"{file}: right; variants: {names}")


def _warn(warning: str) -> None:
    print(f"headroom: warning: {warning}", file=sys.stderr)


def _refuse(faults: Sequence[str]) -> NoReturn:
    """Show the faults, and end with status 1."""
    for fault in faults:
        print(f"headroom: {fault}", file=sys.stderr)
    raise typer.Exit(1)

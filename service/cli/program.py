"""The commands of `headroom`. They import heavy packages only when they run, so that `--help` is quick."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headroom.loadtest.cli import app as load
from headroom.models.commands import (
    calibrate,
    condense,
    distil,
    evaluate,
    options,
    prune,
    quantize,
    study,
    train,
)
from headroom.service.cli import choice, config, experiment, score, serve
from headroom.version import version


class Program(TyperGroup):
    """Takes pydantic's prefix out of what typer says about a wrong value."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, given typer's context."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="headroom",
    cls=Program,
    epilog="Add --debug to any command to see a traceback when it fails.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain lines; rich's boxes would break an error over several
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headroom {version()}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A relevance server whose attention heads are run-time switches."""


options.resolve = choice.network_of
options.sides = choice.sides

app.command("serve")(serve.command)
app.command("score")(score.command)
app.command("train")(train.command)
app.command("distil")(distil.command)
app.command("condense")(condense.command)
app.command("calibrate")(calibrate.command)
app.command("evaluate")(evaluate.command)
app.command("study")(study.command)
app.command("prune")(prune.command)
app.command("quantize")(quantize.command)
app.add_typer(experiment.app, name="experiment")
app.add_typer(config.app, name="config")
app.add_typer(load, name="load")

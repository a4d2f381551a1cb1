"""The `headroom` program. Commands import heavy packages only when they run, so that `--help` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from loadtest.cli import app as load
from service.cli import condense, evaluate, experiment, prune, quantize, score, serve, study, train

app = typer.Typer(
    name="headroom",
    epilog="Add --debug to any command to see a traceback when it fails.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain lines; rich's boxes would break an error over several
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"headroom {version('headroom')}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A BERT relevance server whose attention heads are run-time switches."""


app.command("serve")(serve.command)
app.command("score")(score.command)
app.command("train")(train.command)
app.command("condense")(condense.command)
app.command("evaluate")(evaluate.command)
app.command("study")(study.command)
app.command("prune")(prune.command)
app.command("quantize")(quantize.command)
app.add_typer(experiment.app, name="experiment")
app.add_typer(load, name="load")


def main() -> None:
    """Run the program. Exit status: 0 for success, 1 for failure (one line on stderr), 2 for wrong usage."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        app(arguments, prog_name="headroom")
    except Exception as error:
        if debug:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"headroom: {reason}", file=sys.stderr)
        sys.exit(1)

"""The reference of the commands, from the parsers of the programs themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

from headroom.service.cli.program import app

_ROOT = f"{Path(__file__).parents[1]}/"  # a default that lies in it is shown relative to it

_HEAD = """\
# Commands

`headroom COMMAND --help` prints the same. Exit status: 0 for success, 1 for failure (one line on standard
error), 2 for wrong usage, 130 after Ctrl-C. `--debug` after any command shows the traceback of a failure.
`python -m headroom.loadtest` is `headroom load` alone.
"""


def page() -> str:
    """Return the page: one section per command, with its options in a table."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return "\n".join([_HEAD, *_group(group, typer.Context(group, info_name="headroom"))]) + "\n"


def _group(group: TyperGroup, context: typer.Context) -> Iterator[str]:
    for name, command in group.commands.items():
        inner = typer.Context(command, info_name=name, parent=context)
        if isinstance(command, TyperGroup):
            yield from _group(command, inner)
        else:
            assert isinstance(command, TyperCommand)
            yield from _command(command, inner)


def _command(command: TyperCommand, context: typer.Context) -> Iterator[str]:
    yield f"\n## {context.command_path}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    for paragraph in (command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        if text.startswith("Example: "):
            yield f"```console\n$ {text.removeprefix('Example: ')}\n```\n"
        else:
            yield f"{_plain(text)}\n"
    rows = [record for option in command.params if (record := option.get_help_record(context))]
    if rows:
        yield "| argument or option | meaning |\n|---|---|"
        yield from (f"| `{name}` | {_plain(meaning).replace(_ROOT, '')} |" for name, meaning in rows)


def _plain(text: str) -> str:
    """Return a help text as Markdown: options as code, and no other markup."""
    text = re.sub(r"([*_\[\]|])", r"\\\1", text.replace("<", "&lt;"))
    return re.sub(r"(?<![\w/-])(--[a-z][\w-]*)", r"`\1`", text)

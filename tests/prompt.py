"""The `headroom` program in this process, what a test of it gets back, and the files that it is given."""

import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from headroom.service.cli import main


class Output(NamedTuple):
    out: str
    err: str


Run = Callable[..., Output]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the program with its arguments, which must make it end with this status."""

    def call(*arguments: str, stdin: bytes = b"", status: int = 0) -> Output:
        monkeypatch.setattr(sys, "argv", ["headroom", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        ended: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            ended = end.code
        output = Output(*capsys.readouterr())
        assert int(ended or 0) == status, output
        return output

    return call


@pytest.fixture
def options(tiny_checkpoint: Path) -> list[str]:
    """The options that name a small network."""
    return ["--model", str(tiny_checkpoint), "--device", "cpu", "--dtype", "float32"]


@pytest.fixture
def score(run: Run, options: list[str]) -> Run:
    """A function that scores a file on the small network."""

    def call(source: Path | str, output: Path | str, *more: str, status: int = 0) -> Output:
        return run("score", "--input", str(source), "--output", str(output), *options, *more, status=status)

    return call


def with_config(directory: Path, live: str, **settings: Any) -> list[str]:
    """Write a config file with this `user_config`, and return the option that names it."""
    deployment = {"name": "Relevance", "user_config": yaml.safe_load(live)}
    file = directory / "serve.yaml"
    file.write_text(yaml.safe_dump({"applications": [{"args": settings, "deployments": [deployment]}]}))
    return ["--config", str(file)]


def write_labelled(file: Path, rows: Iterable[tuple[str, str, int]]) -> Path:
    """Write queries, titles and grades that hold no comma."""
    file.write_text("query,title,grade\n" + "".join(f"{q},{t},{g}\n" for q, t, g in rows))
    return file

"""The `headroom` program in this process, and what a test of it gets back."""

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from service.cli import main


class Output(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Output]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the program with its arguments."""

    def call(*arguments: str, stdin: bytes = b"") -> Output:
        monkeypatch.setattr(sys, "argv", ["headroom", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return Output(int(status or 0), out, err)

    return call

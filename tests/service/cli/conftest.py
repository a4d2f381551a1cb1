"""The `headroom` program in this process."""

from __future__ import annotations

import io
import sys

import pytest

from service.cli import main
from tests.service.cli.prompt import Output, Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
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

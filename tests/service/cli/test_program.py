"""The program as a whole: Ctrl-C at any time, and errors in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.prompt import Run

INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from service.cli import main
main()
"""


def test_ctrl_c_while_the_program_is_imported_shows_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED, "score", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_errors_of_options_and_files_are_in_words(run: Run, tmp_path: Path) -> None:
    wrong = run("score", "a", "b", "--overflow", "chunk")
    assert (wrong.status, "Value error" in wrong.err) == (2, False)
    assert "'--overflow': 'chunk' is not one of 'truncate', 'chunks'" in wrong.err
    for arguments in (["train", "--out", "new", "--data"], ["condense", "a b", "--titles"]):
        output = run(*arguments, str(tmp_path))
        assert output.err.endswith(f"{tmp_path} is a directory\n")

"""Runs the sandbox's program (`headroom.models.checkpoint.sandboxed`) in forks of one process.

The process has imported what the program needs of transformers. A new process for each checkpoint of the
tests would import it again, which takes seconds.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

IMPORTED = (
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    "jinja2",
)
"""The modules that take long."""


class Sandboxes:
    """Starts the program as `headroom.models.checkpoint.sandbox.start` does, in a fork."""

    def __init__(self, program: Path) -> None:
        self._command = [sys.executable, "-P", __file__, str(program)]
        self._parent: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def start(self, arguments: Sequence[str], job: str) -> subprocess.CompletedProcess[str]:
        """Run the program with these arguments, and the job on its standard input."""
        with self._lock:
            if self._parent is None:
                self._parent = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
                    start_new_session=True,  # Ctrl-C is for the tests
                )
            assert self._parent.stdin is not None
            assert self._parent.stdout is not None
            print(json.dumps([[*arguments], job]), file=self._parent.stdin, flush=True)
            status, out, err = json.loads(self._parent.stdout.readline())
        return subprocess.CompletedProcess(self._command, status, out, err)

    def close(self) -> None:
        """End the process that is forked."""
        if self._parent is not None:
            self._parent.communicate()


def serve(program: ModuleType) -> None:
    """Run the program for each line of standard input, and print how it ended."""
    sys.modules["torch"] = None  # type: ignore[assignment] # as in the program
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        arguments, job = json.loads(line)
        print(json.dumps(in_a_fork(program, arguments, job)), flush=True)


def in_a_fork(program: ModuleType, arguments: Sequence[str], job: str) -> tuple[int, str, str]:
    """Return the program's exit status, standard output and standard error."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(job)
        given.seek(0)
        child = os.fork()
        if child == 0:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            run(program, arguments)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


def run(program: ModuleType, arguments: Sequence[str]) -> NoReturn:
    """Run the program and end this process as Python would."""
    status = 1
    try:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 # the other one holds what the parent has read
        program.main(arguments[0], *map(int, arguments[1:]))
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("sandboxed", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    sandboxed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sandboxed)
    serve(sandboxed)

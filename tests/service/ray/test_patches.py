"""headroom.service.ray.patches: what Ray does with our patches, which another release may change."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.running import Server

ROOT = Path(__file__).parents[3]
PATCHES = ROOT / "service" / "ray" / "patches.py"


CALLS = (
    "leave_out_idle_programs()",
    "replace_haproxy_manager(type('Manager', (), {}))",
    "start_no_fallback_proxy()",
    "use_haproxy_template('', None)",
    "haproxy_manager().check_health",
)
GONE = "_replace(patches, 'gone', None)"
TRACEBACK = """
import builtins, logging, sys
from ray.serve._private import logging_utils

def formatted():
    try:
        raise OSError("the disk is full")
    except OSError:
        return logging.Formatter().formatException(sys.exc_info())

builtins.print = logging_utils.redirected_print
assert "('Traceback" in formatted(), "this release is mended: the patch can go"
patches.restore_print()
sys.stdout.write(formatted())
"""
EACH_IN_A_FORK = """
import contextlib, io, json, os, sys, tempfile, traceback
from ray import serve
from headroom.service.ray import patches

for code in sys.argv[1:]:
    with tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if child == 0:
            out = io.StringIO()
            error = ""
            try:
                with contextlib.redirect_stdout(out):
                    exec(code, {"patches": patches, "__name__": "__main__"})
            except BaseException:
                error = traceback.format_exc()
            json.dump([out.getvalue(), error], told)
            told.flush()
            os._exit(0)
        os.waitpid(child, 0)
        told.seek(0)
        print(told.read(), flush=True)
"""
"""Runs each argument in a process of its own, which the patches do not outlive. Ray is imported once."""


@pytest.fixture(scope="module")
def ran() -> dict[str, tuple[str, str]]:
    """The output of each piece of code, and its traceback if it failed."""
    codes = (*(f"patches.{call}" for call in (*CALLS, GONE)), TRACEBACK)
    command = [sys.executable, "-W", "ignore", "-c", EACH_IN_A_FORK, *codes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    lines = done.stdout.splitlines()
    assert len(lines) == len(codes), done.stderr
    return {code: tuple(json.loads(line)) for code, line in zip(codes, lines, strict=True)}


@pytest.mark.parametrize("call", CALLS)
def test_this_release_has_what_is_patched(call: str, ran: dict[str, tuple[str, str]]) -> None:
    assert ran[f"patches.{call}"] == ("", "")


def test_a_name_that_is_gone_is_named(ran: dict[str, tuple[str, str]]) -> None:
    assert "has no attribute 'gone'" in ran[f"patches.{GONE}"][1]


def test_a_traceback_in_a_replicas_log_is_as_python_writes_it(ran: dict[str, tuple[str, str]]) -> None:
    """`logging` prints it, and Serve's `print` writes each line as a tuple."""
    output, error = ran[TRACEBACK]
    assert error == ""
    lines = output.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "OSError: the disk is full")


def test_no_other_file_uses_private_names_of_ray() -> None:
    """At Ray's next release, a maintainer looks into one file."""
    for file in (ROOT / "service").rglob("*.py"):
        if file != PATCHES:
            modules = [
                name.name if isinstance(node, ast.Import) else node.module or ""
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in node.names
            ]
            private = [name for name in modules if name.startswith("ray.") and "._" in name]
            assert not private, file


def test_ray_starts_no_program_that_nobody_uses(server: Server) -> None:
    """Each is a Python process of 45 to 75 MB."""
    started = [" ".join(process.cmdline()) for process in server.family()]
    assert any("raylet" in command for command in started)
    for program in ("monitor.py", "log_monitor.py", "dashboard.py"):
        assert not [command for command in started if f"/{program}" in command]

"""headroom.service.ray.patches: what Ray does with our patches, which another release may change."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from headroom.service.ray import patches
from tests.service.running import Server

ROOT = Path(__file__).parents[3]
PATCHES = ROOT / "service" / "ray" / "patches.py"

TRACEBACK = """
import builtins, logging, sys
from ray.serve._private import logging_utils
from headroom.service.ray import patches

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


def test_a_name_that_is_gone_is_named() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'gone'"):
        patches._replace(patches, "gone", None)


def test_a_traceback_in_a_replicas_log_is_as_python_writes_it() -> None:
    """`logging` prints it, and Serve's `print` writes each line as a tuple."""
    command = [sys.executable, "-W", "ignore", "-c", TRACEBACK]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
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
